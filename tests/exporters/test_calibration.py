"""Calibration: its texts, its statistics against the reference interpreter, its memory."""

from __future__ import annotations

import gc
import hashlib
import json
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import edge
from edge import graph as graphs
from edge import payload
from edge.chat import check_templates
from edge.errors import CheckpointError, NotFoundError, OptionError
from edge.ops import Experts, LatentAttention, Linear
from edge.tokenizer import Tokenizer
from exporters.architectures import Model, describe
from exporters.calibration import calibrator, parallel, spill, text
from exporters.calibration.walk import cut
from exporters.checkpoint import Checkpoint, TokenizerFiles
from exporters.checkpoint.open import open_checkpoint
from exporters.export import export
from exporters.payload_writer import EncodedRows, Plan
from exporters.quant import gptq, method, recipe
from exporters.quant.method import Statistics
from exporters.reference import Reference
from tests.exporters.architectures.editing import edit_weights
from tests.exporters.tiny import tiny_deepseek_v2, tiny_gemma3, tiny_llama, tiny_olmoe, tiny_qwen2, write_gguf

ROOT = Path(edge.__file__).parents[1]

WORDS = [f"word{index}" for index in range(4000)]


@pytest.fixture
def files(llama_folder: Path) -> TokenizerFiles:
    checkpoint = open_checkpoint(llama_folder)
    try:
        return checkpoint.tokenizer()
    finally:
        checkpoint.close()


@pytest.fixture
def tokenizer(files: TokenizerFiles) -> Tokenizer:
    return Tokenizer(files.tokenizer, bos=files.bos, eos=files.eos, add_bos=True, special=files.special)


def test_a_text_becomes_samples_of_equal_length(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "own.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 200, encoding="utf-8")
    found = text.read(path, tokenizer, None, context=64, measured=())
    assert {len(sample) for sample in found.samples} == {64}
    assert {sample[0] for sample in found.samples} == {tokenizer.bos}
    ids = tokenizer.encode(path.read_text(encoding="utf-8"))
    assert [list(sample[1:]) for sample in found.samples[:2]] == [ids[:63], ids[63:126]]
    assert found.to_json()["tokens"] == 64 * len(found.samples)


def test_too_long_a_text_is_drawn_from_as_before(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "long.txt"
    path.write_text(" ".join(WORDS * 8), encoding="utf-8")
    first, second = (text.read(path, tokenizer, None, context=4096, measured=()) for _ in range(2))
    assert first == second
    assert len(first.samples) == text.TOKENS // text.LENGTH


def test_jsonl_takes_texts_and_messages(tmp_path: Path, tokenizer: Tokenizer, files: TokenizerFiles) -> None:
    templates = check_templates(files.chat_template, {}, files.special)
    assert templates is not None
    path = tmp_path / "own.jsonl"
    messages = [{"role": "user", "content": "the dog sleeps " * 60}]
    path.write_text(
        json.dumps({"text": "for index in range(10): " * 60}) + "\n\n" + json.dumps({"messages": messages}),
        encoding="utf-8",
    )
    found = text.read(path, tokenizer, templates, context=4096, measured=())
    ids = [token for sample in found.samples for token in sample[1:]]
    expected = tokenizer.encode("for index in range(10): " * 60 + "\n\n") + templates.encode(messages, tokenizer)
    assert ids == expected[: len(ids)]
    assert len(ids) > len(expected) / 2
    with pytest.raises(OptionError, match="has no chat template; give it texts"):
        text.read(path, tokenizer, None, context=4096, measured=())


def test_unusable_texts_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def read(name: str, content: str, measured: tuple[str, ...] = ()) -> None:
        (tmp_path / name).write_text(content, encoding="utf-8")
        text.read(tmp_path / name, tokenizer, None, context=64, measured=measured)

    with pytest.raises(OptionError, match=r"short\.txt is \d+ tokens; at least 256"):
        read("short.txt", "too short")
    with pytest.raises(OptionError, match=r"line 2 has neither"):
        read("odd.jsonl", '{"text": "x"}\n{"txt": "y"}')
    with pytest.raises(OptionError, match=r"a part of the text that the result is measured on"):
        read("same.txt", " ".join(WORDS[:400]), (" ".join(["other", *WORDS[100:116]]),))
    read("apart.txt", " ".join(WORDS[:400]), (" ".join(["other", *WORDS[100:115], "end"]),))
    with pytest.raises(NotFoundError, match=r"no calibration text"):
        text.read(tmp_path / "none.txt", tokenizer, None, context=64, measured=())


Opener = Callable[[Path], Checkpoint]


def planned(checkpoint: Checkpoint, name: str) -> tuple[Model, graphs.Graph, dict[str, Plan]]:
    model = describe(checkpoint)
    graph = graphs.build(model.spec)
    chosen = recipe.load("int4-g32-sym", name)
    plans = {w.name: Plan(model.weights[w.name], chosen.choose(w, model.weights[w.name])) for w in graph.weights}
    return model, graph, calibrator.settle(graph, plans)


def samples(count: int, length: int, vocab: int) -> list[list[int]]:
    return np.random.default_rng(5).integers(0, vocab, (count, length)).tolist()


def assemble(graph: graphs.Graph, encoded: Iterator[EncodedRows]) -> dict[str, Any]:
    """The numbers of a bundle's weights, from the rows that are written."""
    made = {w.name: np.full(w.stored, np.nan, np.float32) for w in graph.weights}
    for rows in encoded:
        run, job = rows.job.run, rows.job
        kind = payload.parse_scheme(run.scheme)
        values = rows.parts[""] if kind is None else payload.dequantize(kind, rows.parts, run.shape[1])
        made[job.weight.name][run.start + job.start : run.start + job.stop] = values
    assert all(np.isfinite(values).all() for values in made.values())
    return made


Told = list[tuple[Any, Statistics]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the method "spy", which is gptq, was given: rows and their statistics."""
    found: Told = []
    module: Any = ModuleType("spy")
    module.NEEDS = gptq.NEEDS

    def quantize(weight: Any, scheme: payload.Scheme, statistics: Statistics | None) -> Any:
        assert statistics is not None
        found.append((weight.read(), statistics))
        return gptq.quantize(weight, scheme, statistics)

    module.quantize = quantize
    monkeypatch.setitem(sys.modules, "spy", module)
    monkeypatch.setitem(method.METHODS, "spy", "spy")
    return found


def observed(graph: graphs.Graph, made: dict[str, Any], ids: list[list[int]]) -> dict[str, list[list[Any]]]:
    """The inputs of each op of the finished model: by its output, a list for each sample."""
    found: dict[str, list[list[Any]]] = {}
    reference = Reference(graph, lambda name, start, stop: made[name][start:stop], context=len(ids[0]))
    for sample in ids:
        values: dict[str, Any] = {graphs.TOKENS: None}

        def observe(op: Any, result: Any, values: dict[str, Any] = values) -> None:
            found.setdefault(op.output, []).append([values[name] for name in op.inputs])
            values[op.output] = result

        reference.reset()
        reference.run(sample, observe=observe)
    return found


def given(told: Told, rows: Any) -> Any:
    """The moment that came with these rows."""
    return next(item.moment for known, item in told if known.shape == rows.shape and np.array_equal(known, rows))


@pytest.mark.parametrize("make", [tiny_qwen2, tiny_gemma3])
def test_statistics_are_of_the_inputs_that_the_finished_bundle_makes(
    make: Any, opened: Opener, tmp_path: Path, told: Told
) -> None:
    """Layer by layer on its own output: the reference, run with the finished weights, sees the very same moments."""
    model, graph, plans = planned(opened(make(tmp_path / "model")), "spy")
    ids = samples(3, 24, model.spec.vocab_size)
    made = assemble(graph, calibrator.encode(graph, plans, ids, tmp_path))
    inputs = observed(graph, made, ids)
    checked = 0
    for op in graph.ops:
        if isinstance(op.attrs, Linear) and op.attrs.weight.name != "embed":  # a tied head: the float model's inputs
            x = np.concatenate([values[0] for values in inputs[op.output]]).astype(np.float64)
            found = given(told, model.weights[op.attrs.weight.name].read())
            np.testing.assert_allclose(found, x.T @ x / 72, rtol=2e-3, atol=2e-3 * np.abs(found).max())
            checked += 1
    assert checked == 7 * len(model.spec.layers) + (not model.spec.tied_head)


def test_an_expert_is_calibrated_on_the_tokens_that_it_sees_and_by_how_much_they_count(
    opened: Opener, tmp_path: Path, told: Told
) -> None:
    model, graph, plans = planned(opened(tiny_olmoe(tmp_path / "model")), "spy")
    ids = samples(3, 24, model.spec.vocab_size)
    made = assemble(graph, calibrator.encode(graph, plans, ids, tmp_path))
    inputs = observed(graph, made, ids)
    checked = 0
    for op in graph.ops:
        if not isinstance(op.attrs, Experts):
            continue
        x, routing = (np.concatenate(parts) for parts in zip(*inputs[op.output], strict=True))
        gate, up, down = (model.weights[w.name].read().reshape(w.shape) for w in op.weights)
        new_gate, new_up = (made[w.name].reshape(w.shape) for w in op.weights[:2])
        for expert in range(len(gate)):
            seen = x * routing[:, expert, None]
            y = x @ new_gate[expert].T
            inner = y / (1 + np.exp(-y)) * (x @ new_up[expert].T) * routing[:, expert, None]
            for rows, values in ((gate[expert], seen), (up[expert], seen), (down[expert], inner)):
                expected = values.T @ values / 72
                np.testing.assert_allclose(given(told, rows), expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
                checked += 1
    assert checked == 3 * model.spec.layers[0].mlp.experts * len(model.spec.layers)


def test_inner_matrices_of_latent_attention_are_calibrated_on_queries_and_latents(
    opened: Opener, tmp_path: Path, told: Told
) -> None:
    model, graph, plans = planned(opened(tiny_deepseek_v2(tmp_path / "model")), "spy")
    ids = samples(3, 24, model.spec.vocab_size)
    made = assemble(graph, calibrator.encode(graph, plans, ids, tmp_path))
    inputs = observed(graph, made, ids)
    ops = [op for op in graph.ops if isinstance(op.attrs, LatentAttention)]
    assert len(ops) == len(model.spec.layers)
    for op in ops:
        queries, _, latents, _ = (np.concatenate(parts) for parts in zip(*inputs[op.output], strict=True))
        queries = queries.reshape(72, op.attrs.heads, -1)
        for head in range(op.attrs.heads):
            for weight, x in ((op.attrs.key_up, queries[:, head]), (op.attrs.value_up, latents)):
                rows = model.weights[weight.name].read().reshape(weight.shape)[head]
                expected = x.T @ x / 72
                np.testing.assert_allclose(given(told, rows), expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())


def test_every_op_up_to_the_head_runs_once(llama_folder: Path, opened: Opener) -> None:
    graph = graphs.build(describe(opened(llama_folder)).spec)
    ops = [op.output for segment in cut(graph) for op in segment.ops]
    assert ops == [op.output for op in graph.ops][: len(ops)]
    assert cut(graph)[-1].group[0].output == graphs.LOGITS


def test_q5_memory_does_not_grow_with_the_samples(
    llama_folder: Path, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "LIMIT", 0)
    model, graph, plans = planned(opened(llama_folder), "gptq")
    peaks: dict[int, list[int]] = {12: [], 96: []}
    for count in (*peaks, *peaks):  # what else allocates meanwhile, such as a thread of another test, does so once
        ids = samples(count, 64, model.spec.vocab_size)
        gc.collect()
        tracemalloc.start()
        for _ in calibrator.encode(graph, plans, ids, tmp_path):
            pass
        peaks[count].append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    more = (min(peaks[96]) - min(peaks[12])) / 84
    assert more < 64 * model.spec.hidden_size * 4 / 4  # a quarter of one value of the sample: its place in the tables
    assert not list(tmp_path.glob(".values*"))


@pytest.mark.parametrize("tied", [True, False])
def test_a_calibration_goes_on_from_finished_matrices_to_the_same_numbers(
    tied: bool, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after some matrices of the second layer: none of those before is counted or encoded again."""
    folder = tiny_llama(tmp_path / "model", tie_word_embeddings=tied)
    model, graph, plans = planned(opened(folder), "gptq")
    ids = samples(5, 48, model.spec.vocab_size)
    expected = assemble(graph, calibrator.encode(graph, plans, ids, tmp_path))
    begun = calibrator.encode(graph, plans, ids, tmp_path, tmp_path / "finished")
    names = []
    for rows in begun:
        names.append(rows.job.weight.name)
        if names[-1] == "layers.1.attn.o":
            break
    begun.close()
    encoded: list[str] = []
    plain = calibrator.encode_rows

    def spy(job: Any, plan: Any) -> Any:
        if job.weight.is_matrix:
            encoded.append(job.weight.name)
        return plain(job, plan)

    monkeypatch.setattr(calibrator, "encode_rows", spy)
    found = assemble(graph, calibrator.encode(graph, plans, ids, tmp_path, tmp_path / "finished"))
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    assert encoded[0] == "layers.1.attn.o"  # its group was not whole
    assert not {name for name in names[:-1] if not name.endswith("norm")} & set(encoded)
    assert not list((tmp_path / "finished").glob("*.partial"))


def test_a_bundle_is_the_same_with_another_number_of_threads(
    llama_folder: Path, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph, plans = planned(opened(llama_folder), "gptq")
    ids = samples(9, 48, model.spec.vocab_size)
    made = []
    for workers in (1, 5):
        monkeypatch.setattr(calibrator.os, "cpu_count", lambda workers=workers: workers)
        made.append(assemble(graph, calibrator.encode(graph, plans, ids, tmp_path)))
    for name in made[0]:
        np.testing.assert_array_equal(made[0][name], made[1][name])


@pytest.fixture
def own_text(tmp_path: Path) -> Path:
    path = tmp_path / "own.txt"
    path.write_text("\n".join(f"The quick dog {word} sleeps in the country." for word in WORDS[:300]), encoding="utf-8")
    return path


def test_an_export_with_effort_is_closer_to_its_source_and_says_what_it_read(
    llama_folder: Path, own_text: Path, tmp_path: Path
) -> None:
    stages: dict[str, float] = {}
    kl = {}
    for effort in ("none", "medium"):
        given = own_text if effort == "medium" else None
        out = tmp_path / f"{effort}.dsedge"
        bundle = export(
            llama_folder, out, recipe="int4-g32-sym", targets=(), effort=effort, calibration=given,
            progress=lambda stage, share: stages.update({stage: share}),
        )  # fmt: skip
        assert bundle.manifest.quality.parity is not None
        assert bundle.manifest.quality.parity.source is not None
        kl[effort] = bundle.manifest.quality.parity.source.mean_kl
    told = bundle.manifest.recipe["calibration"]
    assert told["sha256"] == hashlib.sha256(own_text.read_bytes()).hexdigest()
    assert (told["text"], told["seed"]) == ("own.txt", 0)
    assert {rule["method"] for rule in bundle.manifest.recipe["rule"]} == {"heads"}
    assert stages["calibrate"] == 1.0
    assert kl["medium"] < 0.95 * kl["none"]  # its inputs are nearly independent: there is little to gain
    assert not list((tmp_path / "medium.dsedge").rglob(".*"))


def test_an_interrupted_calibration_leaves_nothing(llama_folder: Path, own_text: Path, tmp_path: Path) -> None:
    before = threading.active_count()

    def progress(stage: str, share: float) -> None:
        if stage == "calibrate" and share > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(llama_folder, tmp_path / "x.dsedge", effort="medium", calibration=own_text, progress=progress)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.txt"]
    assert threading.active_count() == before


def test_an_interrupted_calibration_goes_on_where_it_was_asked_to(
    llama_folder: Path, own_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    plain = calibrator.encode_rows

    def spy(job: Any, plan: Any) -> Any:
        counted.append(job.weight.name)
        return plain(job, plan)

    monkeypatch.setattr(calibrator, "encode_rows", spy)

    def run(name: str, stop: float, *, resume: bool) -> Path:
        def progress(stage: str, share: float) -> None:
            if stage == "calibrate" and share > stop:
                raise KeyboardInterrupt

        out, recipe = tmp_path / f"{name}.dsedge", "int4-g32-sym"
        export(
            llama_folder, out, recipe=recipe, targets=(), effort="medium", calibration=own_text, resume=resume,
            progress=progress,
        )  # fmt: skip
        return out / "weights.safetensors"

    expected = run("whole", 2.0, resume=False).read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run("x", 0.8, resume=True)
    assert (tmp_path / ".x.dsedge.resume").is_dir()
    assert not (tmp_path / "x.dsedge").exists()
    counted.clear()
    assert run("x", 2.0, resume=True).read_bytes() == expected
    assert not {"embed", "layers.0.mlp.down", "layers.0.attn.q"} & set(counted)
    assert not (tmp_path / ".x.dsedge.resume").exists()


def test_codes_of_the_source_are_carried_whatever_the_effort(
    llama_folder: Path, own_text: Path, tmp_path: Path
) -> None:
    source = write_gguf(llama_folder, tmp_path / "tiny.gguf", quantization="Q4_1")
    made = [
        export(source, tmp_path / f"{effort}.dsedge", targets=(), effort=effort).path / "weights.safetensors"
        for effort in ("none", "medium")
    ]
    assert made[0].read_bytes() == made[1].read_bytes()
    with pytest.raises(OptionError, match="would not be used"):
        export(source, tmp_path / "x.dsedge", targets=(), effort="medium", calibration=own_text)


def test_an_unknown_effort_names_the_known_ones(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown effort 'all'; known are none, medium"):
        export(llama_folder, tmp_path / "x.dsedge", effort="all")


def test_an_export_calibrates_unless_it_is_told_otherwise(llama_folder: Path, own_text: Path, tmp_path: Path) -> None:
    """In a process of its own: the tests' default is none. Without an effort, a text to calibrate on is refused."""
    code = (
        "import sys, edge; made = edge.export(sys.argv[1], sys.argv[2], targets=(), calibration=sys.argv[3]); "
        "print(*{rule['method'] for rule in made.manifest.recipe['rule'] if rule['scheme'].startswith('int4')})"
    )
    words = [sys.executable, "-c", code, str(llama_folder), str(tmp_path / "x.dsedge"), str(own_text)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout, done.returncode) == ("heads\n", 0), done.stderr


@pytest.mark.parametrize(
    "name", ["model.embed_tokens", "model.layers.1.input_layernorm", "model.layers.1.mlp.down_proj"]
)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused_by_the_name_of_their_tensor(
    name: str, bad: float, tmp_path: Path, own_text: Path
) -> None:
    folder = tiny_llama(tmp_path / "model", tie_word_embeddings=True)
    edit_weights(folder, lambda tensors: tensors[f"{name}.weight"].view(-1)[7:8].fill_(bad))
    with pytest.raises(CheckpointError, match=name):
        export(folder, tmp_path / "x.dsedge", recipe="int4-g32-sym", effort="medium", calibration=own_text)
    assert not (tmp_path / "x.dsedge").exists()


def test_inputs_that_overflow_are_refused_by_the_name_of_the_matrix(tmp_path: Path, own_text: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    edit_weights(folder, lambda tensors: tensors["model.layers.1.post_attention_layernorm.weight"].fill_(3e38))
    with pytest.raises(CheckpointError, match=r"inputs of layers\.1\.mlp\.gate are not finite"):
        export(folder, tmp_path / "x.dsedge", recipe="int4-g32-sym", effort="medium", calibration=own_text)


def test_a_moment_of_stripes_is_that_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stripes that do not divide the width, and samples of other lengths in the last batch."""
    monkeypatch.setattr(parallel, "_STRIPE", 48)
    rng = np.random.default_rng(2)
    x = [rng.normal(size=(count, 100)).astype(np.float32) for count in (7, 30, 1)]
    with ThreadPoolExecutor(3) as pool:
        found = None
        for part in x:
            found = parallel.add_moment(pool, found, part)
    whole = np.concatenate(x).astype(np.float64)
    np.testing.assert_allclose(found, whole.T @ whole, rtol=1e-5, atol=1e-4)
