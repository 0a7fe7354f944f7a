from __future__ import annotations

import re
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
    """What another decoder makes of the ids: the library, or Python's of the bytes where there are byte tokens, since
    the library takes a whole run of those for broken if one byte is (N32)."""
    if source.token_to_id("<0x00>") is None:
        return source.decode(list(ids), skip_special_tokens=True)
    special = {number for number, token in source.get_added_tokens_decoder().items() if token.special}
    texts = [source.id_to_token(token) for token in ids if token not in special]
    data = b"".join(
        bytes([int(text[3:5], 16)]) if re.fullmatch("<0x[0-9A-F]{2}>", text) else text.replace("▁", " ").encode()
        for text in texts
    )
    return data.decode("utf-8", errors="replace").removeprefix(" ")


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
    assert [*map(stream.push, [head, 2, tail]), stream.finish()] == ["", "\ufffd<end>", "\ufffd", ""]


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
        assert tokenizer.decode(ids) == one_shot(source, ids)

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
    assert deltas(tokenizer, ids)[0] == ["a", "", "", "한", "b", ""]
    assert deltas(tokenizer, ids[:-2])[0] == ["a", "", "", "\ufffd"]


def bytes_of(source: tokenizers.Tokenizer, data: bytes) -> list[int]:
    return [source.token_to_id(f"<0x{byte:02X}>") for byte in data]


@pytest.mark.parametrize(("data", "parts"), [
    ("한한".encode() + b"\xff", ["", "", "한", "", "", "한", "\ufffd"]),
    (b"\xff" + "한".encode(), ["\ufffd", "", "", "한"]),
    ("한".encode()[:2] + b"A", ["", "", "\ufffdA"]),
    ("한".encode()[:2] + "é".encode(), ["", "", "\ufffd", "é"]),
    ("👍".encode()[:3] + "👍".encode(), ["", "", "", "\ufffd", "", "", "👍"]),
    (b"\xed\xa0\x80", ["", "", "\ufffd\ufffd\ufffd"]),  # half of a surrogate pair
    (b"\xed\xa0A", ["", "", "\ufffd\ufffdA"]),
    (b" a b", ["", "a", " ", "b"]),  # the decoder drops a space at the start
    (b"A" * 3 + "漢".encode(), ["A", "A", "A", "", "", "漢"]),
])  # fmt: skip
def test_n32_a_broken_byte_damages_no_neighbour(
    sentencepiece: tokenizers.Tokenizer, data: bytes, parts: list[str]
) -> None:
    tokenizer = make(sentencepiece)
    ids = bytes_of(sentencepiece, data)
    assert deltas(tokenizer, ids)[0] == [*parts, ""]
    assert tokenizer.decode(ids) == "".join(parts)
    word = sentencepiece.token_to_id("▁a")
    assert deltas(tokenizer, [word, *ids, word])[0][-2:] == [" a", ""]


def test_n20_bytes_that_never_make_a_character_are_flushed(sentencepiece: tokenizers.Tokenizer) -> None:
    stream = TextStream(make(sentencepiece))
    for count, token in enumerate(bytes_of(sentencepiece, b"\x80") * 2000):
        assert stream.push(token) == "\ufffd", count
    text = "plain ASCII, 漢字 and 한글"
    shown = ""
    for place, byte in enumerate(text.encode(), 1):
        shown += stream.push(*bytes_of(sentencepiece, bytes([byte])))
        assert shown == text.encode()[:place].decode(errors="ignore")
    assert stream.finish() == ""


@pytest.mark.parametrize(("data", "stop", "text"), [
    (b"\n" * 300, "\n\n", ""),
    (b"a\n" + b"\n" * 300, "\n\n", "a"),
    (b"\xff\n\n", "\n\n", "\ufffd"),
    ("x한y".encode() + b"\x80", "한", "x"),
])  # fmt: skip
def test_n32_stop_strings_see_text_as_it_becomes_whole(
    sentencepiece: tokenizers.Tokenizer, data: bytes, stop: str, text: str
) -> None:
    stream, shown, pushed = TextStream(make(sentencepiece), [stop]), "", 0
    for token in bytes_of(sentencepiece, data):
        shown += stream.push(token)
        pushed += 1
        if stream.stopped is not None:
            break
    assert (shown, stream.stopped) == (text, stop)
    assert data[:pushed].decode(errors="replace").endswith(stop)


def test_s1_broken_bytes_for_ever_stay_bounded(byte_level: tokenizers.Tokenizer) -> None:
    tokenizer = make(byte_level)
    thumb = tokenizer.encode("👍")
    ids = [*thumb[:1] * 50, *thumb[1:2] * 50, *thumb[:3] * 50, *thumb]
    stream, shown = TextStream(tokenizer), ""
    for count, token in enumerate(ids, 1):
        shown += stream.push(token)
        whole = one_shot(byte_level, ids[:count])
        assert whole.startswith(shown) or not shown.removesuffix("\ufffd").strip("\ufffd")
        assert len(whole) - len(shown) <= 3  # bytes that may yet become a character
    assert shown + stream.finish() == one_shot(byte_level, ids)


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
    parts, stream = deltas(tokenizer, tokenizer.encode("a한"), ["한"])
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
