"""The program that a graph becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge.errors import InternalError, UnsupportedError
from edge.graph import Graph, build
from edge.ops import Add, Attention, Linear, Op, Weight
from edge.payload import Layout
from runtimes.native import builder, schema
from runtimes.native.builder import ALL, CREST
from runtimes.native.matrix import matrix_of
from runtimes.native.passes import Passes
from runtimes.native.program import Instruction, Program
from tests.specs import runs_of, small_spec

SPEC = small_spec(
    windows=(None, None), attention={"heads": 4, "kv_heads": 2, "head_dim": 16, "scale": 0.25}, mlp={"size": 96},
    vocab_size=300, hidden_size=64,
)  # fmt: skip
LAYER = ["norm", "linear", "kv_write", "attention", "quantize", "linear", "norm", "gated_linear", "linear"]


def program_of(graph: Graph, *, exact: bool = False, **schemes: str) -> Program:
    names = {weight.name: schemes.get(weight.name.rpartition(".")[2], "int4-g32-sym") for weight in graph.weights}
    return builder.build(graph, runs_of(graph, "int4-g32-sym", names), exact=exact)


def kinds(program: Program) -> list[str]:
    return [step.kind for step in program.instructions]


def test_a_layer_becomes_nine_instructions() -> None:
    program = program_of(build(SPEC))
    assert kinds(program) == ["embed", *LAYER, *LAYER[:4], "select", "select", *LAYER[4:], "norm", "linear"]
    first = program.instructions[2]
    assert first["matrix"].record()["rows"] == [64, 32, 32]
    assert [program.buffers[buffer]["width"] for buffer in first["outputs"]] == [64, 32, 32]
    assert [len(matrix.weights) for matrix in program.matrices] == [1, *[3, 1, 1, 1, 1] * 2, 1]


def test_attention_rotates_what_it_reads() -> None:
    program = program_of(build(SPEC))
    write, attention = program.instructions[3:5]
    assert (write["rope"], attention["rope"]) == (0, 0)
    assert [attention["queries"], write["keys"], write["values"]] == list(program.instructions[2]["outputs"])


def test_residuals_are_added_in_place_and_gates_leave_codes() -> None:
    program = program_of(build(SPEC))
    out, gated, down = (program.instructions[i] for i in (6, 8, 9))
    assert [out["residual"]] == out["outputs"] == [program.instructions[0]["output"]]
    assert program.buffers[gated["output"]]["codes"]
    assert gated["output"] == down["input"]
    assert down["residual"] == program.instructions[0]["output"]


def test_a_residual_that_the_linear_reads_too_keeps_its_numbers() -> None:
    """x + W·x: in place, some panels would be computed from what others have written."""
    graph = build(SPEC)
    *ops, norm, select, head = graph.ops
    (x,) = norm.inputs
    ops += [Op("/square", (x,), Linear(Weight("square", (64, 64), "down"))), Op("/sum", (x, "/square"), Add())]
    widths = graph.widths | {"/square": 64, "/sum": 64}
    ops += [replace(norm, inputs=("/sum",)), select, head]
    linear = program_of(replace(graph, ops=tuple(ops), widths=widths), exact=True).instructions[-3]
    assert linear["matrix"].weights[0][0].name == "square"
    assert linear["input"] == linear["residual"]
    assert linear["input"] not in linear["outputs"]


def test_what_codes_are_made_of_is_there_as_long_as_they_are() -> None:
    """Threads make the codes of a lone row for themselves: nothing that the linear writes may be what they read."""
    for spec in (SPEC, replace(SPEC, post_norms=True), replace(SPEC, pre_norms=False, post_norms=True)):
        program = program_of(build(spec))
        made: dict[int, set[int]] = {}
        for step in program.instructions:
            for read in step.reads:
                assert made.get(read, set()).isdisjoint(step.writes)
            for buffer in step.writes:
                if program.buffers[buffer]["codes"]:
                    made[buffer] = {*step.reads, *step.writes} - {buffer}


def test_blocks_with_outliers_are_precise_and_all_of_the_head() -> None:
    program = program_of(build(SPEC))
    assert {step["crest"] for step in program.instructions if step.kind == "norm"} == {CREST, ALL}
    assert program.instructions[-2]["crest"] == ALL
    codes = program.buffers[program.instructions[-1]["input"]]
    assert codes == {"width": 64, "codes": True, "wanted": True}


def test_exact_programs_quantize_nothing() -> None:
    program = program_of(build(SPEC), exact=True)
    assert not any(buffer["codes"] for buffer in program.buffers)
    assert "quantize" not in kinds(program)


def test_siblings_stay_apart_where_one_reads_codes_and_one_floats() -> None:
    program = program_of(build(SPEC), v="int8-g32-sym", up="float16")
    assert kinds(program)[1:13] == [
        "norm", "linear", "kv_write", "attention", "quantize", "linear", "norm", "linear", "linear", "gate",
        "quantize", "linear",
    ]  # fmt: skip
    codes = [program.buffers[step["input"]]["codes"] for step in program.instructions if step.kind == "linear"]
    assert codes[:4] == [True, True, True, False]  # q, k and v; o; gate; up
    formats = [[run["format"] for run in matrix.record()["runs"]] for matrix in program.matrices]
    assert formats[1] == ["int4-sym", "int4-sym", "int8-sym"]


def test_runs_of_a_matrix_read_codes_where_blocks_and_groups_are_whole() -> None:
    for layout, codes in (
        ("rows 1 int8-g32-sym, 63 int4-g128-affine", True),
        ("columns 32 int4-g32-zp, 64 int8-g32-sym", True),
        ("columns 32 int8-g32-sym, 64 int4-g64-sym", True),
        ("columns 32 int8-g32-sym, 64 int4-g128-sym", False),  # the last group would end behind column 128
        ("columns 32 int4-g64-sym, 64 int8-g32-sym", False),  # the first group would go on in the second run
        ("columns 31 int4-g32-sym, 65 int4-g32-sym", False),
        ("rows 32 int4-g32-sym, 32 float16", False),
    ):
        program = program_of(build(SPEC), down=layout)
        assert program.buffers[program.instructions[9]["input"]]["codes"] == codes, layout


def test_a_stack_is_cut_where_its_weights_and_its_runs_begin() -> None:
    stack, rows, columns = (
        Weight("w", (3, 40, 64), "gate"),
        "rows 50 int8-g32-sym, 70 int4-g32-zp",
        "columns 32 {}, 32 {}",
    )
    found = matrix_of(stack, Layout.parse(rows).split("w", stack.stored))
    assert [[(run.name, run.first, run.row, run.rows) for run in runs] for runs in found.weights] == [
        [("w.run0", 0, 0, 40)], [("w.run0", 40, 0, 10), ("w.run1", 0, 10, 30)], [("w.run1", 30, 0, 40)],
    ]  # fmt: skip
    found = matrix_of(stack, Layout.parse(columns.format("float16", "int4-g32-zp")).split("w", stack.stored))
    assert [[(run.name, run.first, run.rows, run.column) for run in runs] for runs in found.weights] == [
        [("w.run0", first, 40, 0), ("w.run1", first, 40, 32)] for first in (0, 40, 80)
    ]
    assert found.record()["rows"] == [40, 40, 40]


def test_a_soft_cap_on_the_logits_ends_in_their_buffer() -> None:
    program = program_of(build(replace(SPEC, logit_softcap=30.0)))
    assert program.instructions[-1].kind == "softcap"
    assert program.instructions[-1]["output"] == 0
    assert program.instructions[-2]["outputs"] != [0]


def test_the_hidden_state_keeps_its_buffer() -> None:
    program = program_of(build(SPEC))
    writers = [i for i, step in enumerate(program.instructions) if program.hidden in step.writes]
    assert writers[-1] == len(program.instructions) - 2
    assert program.instructions[writers[-1]].kind == "norm"


@pytest.mark.parametrize("layers", [1, 5])
def test_buffers_do_not_grow_with_the_layers(layers: int) -> None:
    program = program_of(build(replace(SPEC, layers=SPEC.layers[:1] * layers)))
    assert sum(not buffer["codes"] for buffer in program.buffers) <= 9
    assert sum(buffer["codes"] for buffer in program.buffers) <= 4


def test_a_value_that_is_also_read_unrotated_stays_as_it_is() -> None:
    """The keys of a layer as its values too: they are rotated on the way into the ring, or to another buffer."""
    graph = build(SPEC)
    ops = [
        replace(op, inputs=(op.inputs[0], op.inputs[1], "/layers.0/attn/k"))
        if isinstance(op.attrs, Attention) and op.attrs.layer == 0
        else op
        for op in graph.ops if op.output != "/layers.0/attn/v"
    ]  # fmt: skip
    write = program_of(replace(graph, ops=tuple(ops))).instructions[3]
    assert (write["keys"], write["rope"]) == (write["values"], 0)


def test_operands_are_those_of_the_schema() -> None:
    fine = {"left": "/a", "right": "/b", "output": "/c"}
    assert Instruction("add", fine).reads == ("/a", "/b")
    for kind, operands, message in (
        ("spin", fine, "no instruction spin"),
        ("add", {"left": "/a", "output": "/c"}, "add lacks its operand right"),
        ("add", {**fine, "scale": 1.0}, "add has no operand scale"),
    ):
        with pytest.raises(InternalError, match=message):
            Instruction(kind, operands)


def test_an_unknown_op_is_refused_by_name() -> None:
    graph = build(SPEC)
    ops = (*graph.ops[:-1], replace(graph.ops[-1], attrs=SPEC))
    with pytest.raises(UnsupportedError, match=r"does not know the op DecoderSpec \(/logits\)"):
        builder.build(replace(graph, ops=ops), runs_of(graph, "float32"), exact=False, passes=Passes((), ()))


def test_a_schema_is_read_line_by_line() -> None:
    text = "// a comment\n\nRECORD(Buffer, buffer)\n  FIELD(Integer, width)\nEND(Buffer)\n"
    text += "INSTRUCTION(Add, add)\n  FIELD(Reads, left)\nEND(Add)\n"
    assert schema.parse(text) == (
        {"add": {"left": "Reads"}},
        "record buffer width:Integer\ninstruction add left:Reads\n",
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("  FIELD(Reads,left)", r"a line that is none of the schema:   FIELD\(Reads,left\)"),
        ("  FIELD(Reads, left) // first", "a line that is none"),
        ("  FILED(Reads, left)", "a line that is none"),
        ("  FIELD(ReadsList, inputs)", "a field inputs of the unknown type ReadsList"),
    ],
)
def test_a_line_of_the_schema_that_is_not_understood(line: str, words: str) -> None:
    with pytest.raises(InternalError, match=words):
        schema.parse(f"INSTRUCTION(Add, add)\n{line}\nEND(Add)\n")
