"""The program that a graph becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge.errors import UnsupportedError
from edge.graph import Graph, build
from edge.ops import Add, Attention, Linear, Op, Weight
from edge.payload import parse_scheme
from runtimes.native import builder
from runtimes.native.builder import ALL, CREST
from runtimes.native.program import NONE, Program
from tests.specs import small_spec

SPEC = small_spec(
    windows=(None, None), attention={"heads": 4, "kv_heads": 2, "head_dim": 16, "scale": 0.25}, mlp={"size": 96},
    vocab_size=300, hidden_size=64,
)  # fmt: skip
LAYER = ["norm", "linear", "store", "attention", "quantize", "linear", "norm", "linear", "linear"]


def program_of(graph: Graph, *, exact: bool = False, **schemes: str) -> Program:
    names = {weight.name: schemes.get(weight.name.rpartition(".")[2], "int4-g32-sym") for weight in graph.weights}
    return builder.build(graph, {name: parse_scheme(scheme) for name, scheme in names.items()}, names, exact=exact)


def kinds(program: Program) -> list[str]:
    return [step.kind for step in program.instructions]


def test_a_layer_becomes_nine_instructions() -> None:
    program = program_of(build(SPEC))
    assert kinds(program) == ["embed", *LAYER, *LAYER[:4], "select", "select", *LAYER[4:], "norm", "linear"]
    first = program.instructions[2]
    assert [part.rows for part in first.parts] == [64, 32, 32]
    assert [matrix.interleaved for matrix in program.matrices] == [False] + [False, False, True, False] * 2 + [False]


def test_residuals_are_added_in_place_and_gates_leave_codes() -> None:
    program = program_of(build(SPEC))
    out, gated, down = (program.instructions[i] for i in (6, 8, 9))
    assert out.b == out.parts[0].buffer == program.instructions[0].out
    assert (gated.gated, gated.out, gated.quantized_out) == (1, NONE, down.quantized)
    assert down.b == program.instructions[0].out


def test_a_residual_that_the_linear_reads_too_keeps_its_numbers() -> None:
    """x + W·x: in place, some panels would be computed from what others have written."""
    graph = build(SPEC)
    *ops, norm, select, head = graph.ops
    (x,) = norm.inputs
    ops += [Op("/square", (x,), Linear(Weight("square", (64, 64), "down"))), Op("/sum", (x, "/square"), Add())]
    widths = graph.widths | {"/square": 64, "/sum": 64}
    ops += [replace(norm, inputs=("/sum",)), select, head]
    linear, add = program_of(replace(graph, ops=tuple(ops), widths=widths), exact=True).instructions[-4:-2]
    assert (linear.kind, add.kind) == ("linear", "add")
    assert linear.a not in [part.buffer for part in linear.parts]


def test_blocks_with_outliers_are_precise_and_all_of_the_head() -> None:
    program = program_of(build(SPEC))
    assert {step.crest for step in program.instructions if step.kind == "norm"} == {CREST, 0.0}
    assert program.instructions[-2].crest == ALL
    assert program.quantized[program.instructions[-1].quantized] == (64, True)


def test_exact_programs_quantize_nothing() -> None:
    program = program_of(build(SPEC), exact=True)
    assert program.quantized == []
    assert all(step.quantized == NONE for step in program.instructions)


def test_siblings_of_different_schemes_stay_apart() -> None:
    program = program_of(build(SPEC), v="int8-g32-sym", up="float16")
    assert kinds(program)[1:12] == [
        "norm", "linear", "linear", "store", "attention", "quantize", "linear", "norm", "linear", "linear", "gate",
    ]  # fmt: skip
    assert program.instructions[10].a != NONE  # float weights read floats
    assert kinds(program)[12:14] == ["quantize", "linear"]


def test_a_soft_cap_on_the_logits_ends_in_their_buffer() -> None:
    program = program_of(build(replace(SPEC, logit_softcap=30.0)))
    assert program.instructions[-1].kind == "softcap"
    assert program.instructions[-1].out == 0
    assert program.instructions[-2].parts[0].buffer != 0


def test_the_hidden_state_keeps_its_buffer() -> None:
    program = program_of(build(SPEC))
    writers = [
        i
        for i, step in enumerate(program.instructions)
        if program.hidden in (step.out, *(p.buffer for p in step.parts))
    ]
    assert writers[-1] == len(program.instructions) - 2
    assert program.instructions[writers[-1]].kind == "norm"


@pytest.mark.parametrize("layers", [1, 5])
def test_buffers_do_not_grow_with_the_layers(layers: int) -> None:
    program = program_of(build(replace(SPEC, layers=SPEC.layers[:1] * layers)))
    assert len(program.buffers) <= 9
    assert len(program.quantized) <= 4


def test_a_value_that_is_also_read_unrotated_is_refused() -> None:
    """Rotation is in place: another reader would get the rotated value."""
    graph = build(SPEC)
    ops = [
        replace(op, inputs=(op.inputs[0], op.inputs[1], "/layers.0/attn/k"))
        if isinstance(op.attrs, Attention) and op.attrs.layer == 0
        else op
        for op in graph.ops if op.output != "/layers.0/attn/v"
    ]  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"turns /layers.0/attn/k in place, so nothing but .*k_rope may read it"):
        program_of(replace(graph, ops=tuple(ops)))
