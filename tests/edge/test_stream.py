from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from edge.stream import TextStream
from edge.tokenizer import Tokenizer

KINDS = ["byte_level", "sentencepiece", "metaspace", "digits_apart"]


def make(source: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(source.to_str(), bos=1, eos=(2,), add_bos=False, special={})


def words(*texts: str) -> tokenizers.Tokenizer:
    """A tokenizer whose token n decodes to the n-th text, nothing between them."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({text: n for n, text in enumerate(texts)}, unk_token=texts[0]))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def deltas(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str] = ()) -> tuple[list[str], TextStream]:
    stream = TextStream(tokenizer, stop)
    return [*map(stream.push, ids), stream.finish()], stream


def one_shot(source: tokenizers.Tokenizer, ids: Sequence[int]) -> str:
    return source.decode(list(ids), skip_special_tokens=True)


def cut(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """The rule, a character at a time: the first stop string to be complete, the longest of several."""
    for end in range(1, len(text) + 1):
        for word in sorted(stop, key=len, reverse=True):
            if text[:end].endswith(word):
                return text[: end - len(word)], word
    return text, None


@pytest.mark.parametrize(("kind", "halves"), [("byte_level", "Ã ©"), ("sentencepiece", "<0xC3> <0xA9>")])
def test_a_character_that_a_shown_token_cuts_stays_two_broken_ones(
    kind: str, halves: str, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue(kind)
    head, tail = map(source.token_to_id, halves.split())  # the bytes of é
    assert head is not None is not tail
    stream = TextStream(make(source), spelled={2: "<end>"})
    assert [*map(stream.push, [head, 2, tail]), stream.finish()] == ["", "\ufffd<end>", "", "\ufffd"]


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace"])
def test_a_space_behind_a_shown_token_stays(kind: str, request: pytest.FixtureRequest) -> None:
    source = request.getfixturevalue(kind)
    word = source.token_to_id("▁a")
    stream = TextStream(make(source), spelled={2: "</s>"})
    assert [*map(stream.push, [2, word, word]), stream.finish()] == ["</s>", " a", " a", ""]
    assert source.decode([2, word, word], skip_special_tokens=False) == "</s> a a"


@pytest.mark.parametrize("kind", KINDS)
def test_s1_joined_deltas_equal_the_one_shot_decoding(kind: str, request: pytest.FixtureRequest) -> None:
    source = request.getfixturevalue(kind)
    tokenizer = make(source)
    size = source.get_vocab_size()
    # Broken bytes often, so that runs of them meet every neighbour.
    tricky = [n for n in range(size) if n in tokenizer.byte_ids or one_shot(source, [n]) in ("\ufffd", " ", "")] or [5]

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.one_of(st.integers(0, size - 1), st.sampled_from(tricky)), max_size=40))
    def check(ids: list[int]) -> None:
        assert "".join(deltas(tokenizer, ids)[0]) == one_shot(source, ids)

    check()


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece", "digits_apart"])
def test_s1_no_delta_breaks_a_character(kind: str, request: pytest.FixtureRequest) -> None:
    source = request.getfixturevalue(kind)
    tokenizer = make(source)

    @settings(max_examples=100, deadline=None)
    @given(st.text(st.sampled_from("ab é한漢👍🏽\u200d\n"), max_size=12))
    def check(text: str) -> None:
        parts, _ = deltas(tokenizer, tokenizer.encode(text))
        assert "".join(parts) == text
        assert not any("\ufffd" in part for part in parts)

    check()


def test_s1_halves_of_an_emoji(byte_level: tokenizers.Tokenizer) -> None:
    tokenizer = make(byte_level)
    ids = tokenizer.encode("a👍b")
    assert len(ids) == 6  # a, four bytes, b
    assert deltas(tokenizer, ids)[0] == ["a", "", "", "", "👍", "b", ""]
    assert deltas(tokenizer, ids[:3])[0] == ["a", "", "", "\ufffd"]  # the answer ends inside: shown once, at the end


def test_s1_byte_fallback_of_a_syllable(sentencepiece: tokenizers.Tokenizer) -> None:
    tokenizer = make(sentencepiece)
    ids = tokenizer.encode("a한b")
    assert [source_id in tokenizer.byte_ids for source_id in ids] == [False, True, True, True, False]
    assert deltas(tokenizer, ids)[0] == ["a", "", "", "", "한b", ""]
    assert deltas(tokenizer, ids[:-1])[0] == ["a", "", "", "", "한"]
    # One wrong byte spoils the whole run for the decoder, so nothing of it may be out before its end.
    spoiled = [*ids[:-1], sentencepiece.token_to_id("<0xFF>"), ids[-1]]
    assert "".join(deltas(tokenizer, spoiled)[0]) == "a" + 4 * "\ufffd" + "b"


def test_s1_broken_bytes_for_ever_stay_bounded(
    byte_level: tokenizers.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make(byte_level)
    thumb = tokenizer.encode("👍")
    ids = [*thumb[:1] * 50, *thumb[1:2] * 50, *thumb[:3] * 50, *thumb]
    longest = 0
    plain = tokenizer.spell

    def measured(tokens: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return plain(tokens)

    monkeypatch.setattr(tokenizer, "spell", measured)
    parts, _ = deltas(tokenizer, ids)
    assert "".join(parts) == one_shot(byte_level, ids)
    assert 0 < longest <= 16


def test_s4_leading_spaces(sentencepiece: tokenizers.Tokenizer, byte_level: tokenizers.Tokenizer) -> None:
    pieces = ["▁", "▁a", "▁b"]
    spm = [sentencepiece.token_to_id(piece) for piece in pieces]
    assert deltas(make(sentencepiece), spm)[0] == ["", " a", " b", ""]
    assert deltas(make(sentencepiece), spm[1:])[0] == ["a", " b", ""]
    assert deltas(make(sentencepiece), [2, *spm[1:]])[0] == ["", "a", " b", ""]
    assert deltas(make(sentencepiece), spm[:1] * 4)[0] == ["", " ", " ", " ", ""]
    assert deltas(make(sentencepiece), [spm[1], spm[0], 4, spm[2]])[0] == ["a", " ", "", " b", ""]
    tokenizer = make(byte_level)
    ids = tokenizer.encode(" a b")
    assert "".join(deltas(tokenizer, ids)[0]) == " a b"


def test_s6_nothing_sent_is_rewritten(byte_level: tokenizers.Tokenizer) -> None:
    tokenizer = make(byte_level)
    for text in (" a != b . c 'sword' n't", "x != y", "    .", "a  \n\n ."):
        ids = [token for char in text for token in tokenizer.encode(char)]
        parts, _ = deltas(tokenizer, ids)
        assert parts == [*text, ""]


@pytest.mark.parametrize(("pieces", "stop", "expected", "stopped"), [
    (["A", " ", "O", " ", "P", " ", "Q", "!"], ["O P Q"], ["A", " ", "", "", "", "", "", "", ""], "O P Q"),
    (["hi", "\nUser", ":", "x"], ["\nUser:"], ["hi", "", "", "", ""], "\nUser:"),
    (["hi", "\nUse", "ful", "!"], ["\nUser:"], ["hi", "", "\nUseful", "!", ""], None),
    (["hi", "\nUser"], ["\nUser:"], ["hi", "", "\nUser"], None),
    (["a", "b##c"], ["##"], ["a", "b", ""], "##"),
    (["aab", "c"], ["abc"], ["a", "", ""], "abc"),
    (["aaa", "ab"], ["aab"], ["a", "a", ""], "aab"),
    (["xab", "cd"], ["abcd", "ab"], ["x", "", ""], "ab"),
    (["xab", "cd"], ["bc", "abc"], ["x", "", ""], "abc"),
    (["ab", "c"], ["b", "ab"], ["", "", ""], "ab"),
    (["xabcd"], ["abcd", "bc"], ["xa", ""], "bc"),
    (["stop"], ["stop"], ["", ""], "stop"),
    (["ab", "acx"], ["abab", "cx"], ["", "aba", ""], "cx"),
])  # fmt: skip
def test_s5_stop_strings(pieces: list[str], stop: list[str], expected: list[str], stopped: str | None) -> None:
    unique = list(dict.fromkeys(pieces))
    tokenizer = Tokenizer(words(*unique).to_str(), bos=None, eos=(), add_bos=False, special={})
    parts, stream = deltas(tokenizer, [unique.index(piece) for piece in pieces], stop)
    assert parts == expected
    assert stream.stopped == stopped
    assert cut("".join(pieces), stop) == ("".join(parts), stopped)


def test_s5_a_stop_string_inside_a_broken_character_run(sentencepiece: tokenizers.Tokenizer) -> None:
    tokenizer = make(sentencepiece)
    parts, stream = deltas(tokenizer, tokenizer.encode("a한b"), ["한"])
    assert ("".join(parts), stream.stopped) == ("a", "한")
    parts, stream = deltas(tokenizer, tokenizer.encode("a한"), ["한"])  # seen only when the answer ends
    assert ("".join(parts), stream.stopped) == ("a", "한")


def test_s5_any_text_and_stop_strings_follow_the_rule(byte_level: tokenizers.Tokenizer) -> None:
    tokenizer = make(byte_level)
    word = st.text(st.sampled_from("ab é\n"), min_size=1, max_size=4)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(word, max_size=8), st.lists(word, max_size=3))
    def check(pieces: list[str], stop: list[str]) -> None:
        ids = [token for piece in pieces for token in tokenizer.encode(piece)]
        parts, stream = deltas(tokenizer, ids, stop)
        assert ("".join(parts), stream.stopped) == cut("".join(pieces), stop)
        # Nothing is held back but what may be the start of a stop string.
        alive = TextStream(tokenizer, stop)
        sent = "".join(map(alive.push, ids))
        if alive.stopped is None:
            held = "".join(pieces)[len(sent) :]
            assert not held or any(text.startswith(held) for text in stop)

    check()


def test_a_long_stop_string_takes_its_own_length_of_memory(byte_level: tokenizers.Tokenizer) -> None:
    tokenizer = make(byte_level)
    tracemalloc.start()
    try:
        stream = TextStream(tokenizer, ["ab" * 3_000])
        assert stream.push(*tokenizer.encode("a")) == ""
        assert stream.push(*tokenizer.encode("c")) == "ac"
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # every prefix of it would be 18 MB
    finally:
        tracemalloc.stop()


def test_t6_end_tokens_are_not_shown(byte_level: tokenizers.Tokenizer) -> None:
    tokenizer = Tokenizer(byte_level.to_str(), bos=1, eos=(2, 4), add_bos=False, special={})
    ids = tokenizer.encode("ab")
    assert "".join(deltas(tokenizer, [1, *ids, 4, 2, 3])[0]) == "ab"
    assert deltas(tokenizer, [*ids, 10_000])[0][-2:] == ["", ""]  # a padded row of the head has no text


def test_a_stream_is_silent_after_its_stop_string(byte_level: tokenizers.Tokenizer) -> None:
    tokenizer = make(byte_level)
    stream = TextStream(tokenizer, ["b"])
    out: list[Any] = [stream.push(token) for token in tokenizer.encode("abcdef")]
    assert "".join(out) == "a"
    assert stream.push(tokenizer.encode("b")[0]) == ""
    assert stream.finish() == ""
