"""Text that the model writes: against one sequence at a time in the reference, and a slow draw by the rule."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge import graph as graphs
from edge.errors import OptionError
from edge.numpy_sampling import uniform
from edge.tokenizer import Tokenizer
from exporters import threads
from exporters.architectures import Model, describe
from exporters.calibration import cost, own, text
from exporters.checkpoint import Checkpoint
from exporters.checkpoint.open import open_checkpoint
from exporters.export import export
from exporters.parity import source_reader
from exporters.reference import Reference
from tests.exporters.tiny import tiny_deepseek_v2, tiny_gemma3, tiny_llama, tiny_olmoe

Opener = Callable[[Path], Checkpoint]
SIZE, SEED = (19, 30), 7


def opened_model(checkpoint: Checkpoint, *, add_bos: bool = False) -> tuple[Model, Tokenizer]:
    files = checkpoint.tokenizer()
    tokenizer = Tokenizer(files.tokenizer, bos=files.bos, eos=files.eos, add_bos=add_bos, special=files.special)
    return describe(checkpoint), tokenizer


def written(model: Model, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    graph = graphs.build(model.spec)
    told: list[float] = []
    found = own.write(graph, source_reader(model.weights), tokenizer, size=SIZE, seed=SEED, progress=told.append)
    assert told[-1] == max(told) == 1.0
    return found


def slow_draw(logits: np.ndarray[Any, Any], u: float) -> int:
    """The rule of edge.sampling at temperature 1, all candidates sorted."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    sums = np.cumsum(np.exp(logits[order].astype(np.float64) - logits.max()))
    return int(order[np.searchsorted(sums, u * sums[-1], side="right")])


@pytest.mark.parametrize("make", [tiny_llama, tiny_gemma3, tiny_deepseek_v2, tiny_olmoe])
def test_each_token_is_drawn_from_what_the_model_says_after_its_own_sequence(
    make: Any, opened: Opener, tmp_path: Path
) -> None:
    model, tokenizer = opened_model(opened(make(tmp_path / "model")))
    graph = graphs.build(model.spec)
    found = written(model, tokenizer)
    assert [len(ids) for ids in found] == [SIZE[1]] * SIZE[0]
    prefix = len(tokenizer.with_bos([]))
    reference = Reference(graph, source_reader(model.weights), context=SIZE[1])
    same = total = 0
    for index, ids in enumerate(found[:: own.TOGETHER]):  # the first of each batch
        reference.reset()
        logits = reference.run(ids)[:, : tokenizer.vocab_size]
        seed = int(np.random.default_rng((SEED, index * own.TOGETHER)).integers(1 << 53))
        draws = iter(range(SIZE[1]))
        for position in range(prefix + 1, SIZE[1]):
            if ids[position - 1] not in tokenizer.eos:
                same += slow_draw(logits[position - 1], uniform(seed, next(draws))) == ids[position]
                total += 1
    assert total > SIZE[1]
    assert same >= total - 1  # float32 sums in another order may move a draw


def test_a_sequence_begins_with_bos_and_a_word_and_so_does_a_new_text_after_the_end(
    opened: Opener, tmp_path: Path
) -> None:
    model, tokenizer = opened_model(opened(tiny_llama(tmp_path / "model")), add_bos=True)
    found = written(model, tokenizer)
    starts = [ids[1] for ids in found]
    starts += [after for ids in found for token, after in pairwise(ids[1:]) if token in tokenizer.eos]
    assert {ids[0] for ids in found} == {tokenizer.bos}
    assert len(set(starts)) > 5
    for token in starts:
        word = tokenizer.decode([token]).strip()
        assert len(word) >= 3
        assert word.isalpha()


def test_frequent_words_come_more_often() -> None:
    ranks = [own._by_rank(1000, (i + 0.5) / 10_000) for i in range(10_000)]
    assert min(ranks) == 0
    assert max(ranks) == 999
    expected = [10_000 * np.log2(1 + 1 / (rank + 1)) / np.log2(1001) for rank in (0, 1, 9)]
    assert [ranks.count(rank) for rank in (0, 1, 9)] == pytest.approx(expected, abs=2)


def test_the_text_is_the_same_with_another_number_of_threads(
    llama_folder: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = opened_model(opened(llama_folder))
    made = []
    for count in (1, 5):
        monkeypatch.setattr(threads.os, "cpu_count", lambda count=count: count)
        made.append(written(model, tokenizer))
    assert made[0] == made[1]


def test_an_export_says_that_the_model_wrote_its_text(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "TOKENS", 512)
    monkeypatch.setattr(text, "LENGTH", 64)
    stages: list[str] = []
    bundle = export(
        llama_folder, tmp_path / "x.dsedge", recipe="int4-g32-sym", targets=(), effort="medium", calibration="self",
        progress=lambda stage, share: stages.append(stage),
    )  # fmt: skip
    told = bundle.manifest.recipe["calibration"]
    checkpoint = open_checkpoint(llama_folder)
    try:
        model, tokenizer = opened_model(checkpoint)
        read = source_reader(model.weights)
        ids = own.write(
            graphs.build(model.spec), read, tokenizer, size=(8, 64), seed=text.SEED, progress=lambda share: None
        )
    finally:
        checkpoint.close()
    expected = hashlib.sha256(np.asarray(ids).astype("<i8").tobytes()).hexdigest()
    assert told == {"text": "self", "sha256": expected, "tokens": 512, "samples": 8, "seed": 0}
    assert [stage.partition(":")[0] for stage in dict.fromkeys(stages)][:3] == ["describe", "read text", "calibrate"]


def test_a_model_that_memory_does_not_hold_is_refused_before_it_is_read(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "available", lambda: 400_000)
    with pytest.raises(OptionError, match=r"takes 0\.\d GB of memory in float32, and 0\.0 GB are available"):
        export(llama_folder, tmp_path / "x.dsedge", recipe="int4-g32-sym", effort="medium", calibration="self")
