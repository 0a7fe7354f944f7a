"""Rows of a model that have no token: never sampled, and accepted nowhere (N18)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models

import edge
from edge.errors import FormatError, OptionError
from edge.options import GenerateOptions
from edge.pipeline import Pipeline
from edge.sampling import Sampler
from edge.tokenizer import Tokenizer
from tests.exporters.tiny import VOCAB, tiny_llama

ROWS = 320


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A model of 320 rows whose tokenizer has 300 tokens."""
    folder = tmp_path_factory.mktemp("padded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSEDGE_CACHE", str(folder / "cache"))
        edge.export(tiny_llama(folder / "model", vocab_size=ROWS), folder / "m.dsedge")
        with edge.load(folder / "m.dsedge") as opened:
            yield opened


def test_n18_padded_ids_are_never_sampled(pipeline: Pipeline) -> None:
    """At this temperature one in sixteen tokens would be one of them."""
    options = GenerateOptions(temperature=50, seed=1, max_tokens=200, ignore_eos=True)
    assert max(event.id for event in pipeline.tokens([5], options)) < VOCAB
    for more in ({"top_k": 310}, {"top_p": 0.999}, {"min_p": 1e-9}, {"repetition_penalty": 1.5}):
        options = GenerateOptions(temperature=50, seed=1, max_tokens=50, ignore_eos=True, **more)  # type: ignore[arg-type]
        assert max(event.id for event in pipeline.tokens([5], options)) < VOCAB


def test_n18_padded_ids_are_accepted_nowhere(pipeline: Pipeline) -> None:
    with pytest.raises(OptionError, match="the prompt id 300 has no token"):
        pipeline.tokens([5, 300])
    with pytest.raises(OptionError, match="for token 305: the model's ids are 0 to 299"):
        pipeline.tokens([5], GenerateOptions(logit_bias={305: 5.0}))
    assert (
        pipeline.complete("a", GenerateOptions(logit_bias={299: -5.0}, max_tokens=1), raw=True).completion_tokens == 1
    )


@pytest.mark.parametrize("holes", [(), (3,), (0, 4, 7)])
def test_n18_the_best_padded_row_loses(holes: tuple[int, ...]) -> None:
    logits = np.array([9, 1, 2, 9, 9, 3, 0, 9, 9, 9], np.float32)
    padded = (*holes, 8, 9)
    expected = max((index for index in range(10) if index not in padded), key=lambda index: (logits[index], -index))
    assert Sampler(GenerateOptions(), 10, padded=padded).sample(logits) == expected
    sampler = Sampler(GenerateOptions(temperature=1.0, seed=3), 10, padded=padded)
    drawn = {sampler.sample(logits) for _ in range(300)}
    assert drawn.isdisjoint(padded)
    assert expected in drawn
    with pytest.raises(OptionError, match="logit bias 1 for token 8"):
        Sampler(GenerateOptions(logit_bias={8: 1}), 10, padded=padded)


@pytest.mark.parametrize(("ids", "rows", "padded"), [
    (range(6), 6, ()),
    (range(6), 9, (6, 7, 8)),
    ((0, 1, 3, 5), 8, (2, 4, 6, 7)),
])  # fmt: skip
def test_n18_which_ids_are_padded(ids: tuple[int, ...], rows: int, padded: tuple[int, ...]) -> None:
    source = Library(models.WordLevel({f"w{index}": index for index in ids}, "w0"))
    tokenizer = Tokenizer(source.to_str(), bos=None, eos=(), add_bos=False, special={})
    assert tokenizer.padded(rows) == padded


@pytest.mark.parametrize("ids", [(0, 2), (0, 1, 2, 4)])
def test_n18_gaps_into_which_stand_ins_would_fall_are_refused(ids: tuple[int, ...]) -> None:
    source = Library(models.WordLevel({f"w{index}": index for index in ids}, "w0"))
    with pytest.raises(FormatError, match=f"ids have gaps: it has {len(ids)} tokens, and one has the id {ids[-1]}"):
        Tokenizer(source.to_str(), bos=None, eos=(), add_bos=False, special={})
