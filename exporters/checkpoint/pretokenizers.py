"""How byte-level BPE tokenizers split text before merging: one entry a value of `tokenizer.ggml.pre`.

The regular expressions are those of the published tokenizer.json files of the models named beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edge.errors import CheckpointError

_NFC = {"type": "NFC"}
_DIGITS = {"type": "Digits", "individual_digits": True}
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"


@dataclass(frozen=True, slots=True)
class Splitting:
    """`patterns` are regular expressions applied one after another, each match a piece of its own.

    `gpt2`: GPT-2's own expression follows them. `digits`: every digit stands alone (before GPT-2's expression, after
    the others). `whole_words`: a piece that is a token is taken without merging. `add_bos`: what holds unless the file
    says otherwise.
    """

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    digits: bool = False
    normalizer: dict[str, Any] | None = None
    whole_words: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> dict[str, Any]:
        """The `pre_tokenizer` of a tokenizer.json."""
        steps: list[dict[str, Any]] = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]
        if self.digits:
            steps.append(_DIGITS)
        steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": self.gpt2})
        return {"type": "Sequence", "pretokenizers": steps}


_LLAMA3 = Splitting((_WORDS + r"|\p{N}{1,3}" + _TAIL,), whole_words=True, add_bos=True)
_DBRX = Splitting(_LLAMA3.patterns)
_QWEN2 = Splitting((_WORDS + r"|\p{N}" + _TAIL,), normalizer=_NFC)
_QWEN35 = Splitting(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    normalizer=_NFC,
)
# The letters with case that the model's authors list; lower-case Armenian and Georgian letters are missing.
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώ"
    "ᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏"
    "𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_EAST_ASIA = "[一-龥ࠀ-一가-\ud7ff]+"
_DEEPSEEK_CODER = Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIA), digits=True, add_bos=True)
_DEEPSEEK_LLM = Splitting(
    (
        r"[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _EAST_ASIA,
    ),
    digits=True,
    add_bos=True,
)
_DEEPSEEK_V3 = Splitting(
    (
        r"\p{N}{1,3}",
        "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    add_bos=True,
)
_DIGITS_APART = Splitting(gpt2=True, digits=True)
_TAIL_WITH_SLASH = _TAIL.replace(r"]+[\r\n]*", r"]+[\r\n/]*")
# Words that start with capitals or none: two ways, the first of which ends in a small letter.
_CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]%s[\p{Ll}\p{Lm}\p{Lo}\p{M}]%s"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _TITLE = _CASED % ("+", "*"), _CASED % ("*", "+")
_TEKKEN = Splitting((rf"{_TITLE}|{_UPPER}|\p{{N}}{_TAIL_WITH_SLASH}",), whole_words=True, add_bos=True)
_GPT4O = Splitting((rf"{_TITLE}{_ENDING}|{_UPPER}{_ENDING}|\p{{N}}{{1,3}}{_TAIL_WITH_SLASH}",))

SPLITTINGS = {
    "gpt-2": Splitting(gpt2=True),
    "smollm": _DIGITS_APART,
    "refact": _DIGITS_APART,  # Granite 3
    "starcoder": _DIGITS_APART,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": replace(_LLAMA3, add_bos=False),  # SmolLM3, early files of Llama 3.1
    "dbrx": _DBRX,  # OLMo 2
    "qwen2": _QWEN2,
    "qwen35": _QWEN35,
    "deepseek-r1-qwen": replace(_QWEN2, add_bos=True),
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-llm": _DEEPSEEK_LLM,  # DeepSeek V2 too
    "deepseek-v3": _DEEPSEEK_V3,
    "tekken": _TEKKEN,  # Mistral NeMo, Ministral
    "gpt-4o": _GPT4O,  # Phi-4-mini
}

# Tokens at ids that together occur in one family of vocabularies only: (id, token)… → the splitting of that family.
EVIDENCE = (
    (((0, "<|endoftext|>"), (1, "<|im_start|>"), (2, "<|im_end|>"), (3, "<repo_name>"), (49151, "ectable")), "smollm"),
    (((128000, "<|begin_of_text|>"), (128001, "<|end_of_text|>"), (128009, "<|eot_id|>")), "llama-bpe"),
    (((151643, "<|endoftext|>"), (151644, "<|im_start|>"), (151645, "<|im_end|>")), "qwen2"),
    (((0, "!"), (256, "\u0120t"), (50256, "<|endoftext|>")), "gpt-2"),
)


def choose_splitting(path: Path, pre: str | None, tokens: Sequence[str]) -> Splitting:
    """The splitting that a file names, or that its vocabulary proves where the file names none.

    "default" is what converters wrote when they did not know, so it counts as no name. Raises CheckpointError for an
    unknown name, for no name and no proof, and for a name that the vocabulary contradicts: a wrong splitting would
    only lower the quality of every answer, unseen.
    """
    proven = next((name for marks, name in EVIDENCE if _has(tokens, marks)), None)
    advice = "export from the model's safetensors folder, or convert it again"
    if pre is None or pre == "default":
        if proven is None:
            found = "no tokenizer.ggml.pre" if pre is None else 'only "default" as tokenizer.ggml.pre'
            raise CheckpointError(f"{path}: {found}, so it is unknown how text is split into tokens; {advice}")
        return SPLITTINGS[proven]
    if pre not in SPLITTINGS:
        raise CheckpointError(
            f"{path}: tokenizer.ggml.pre is {pre!r}; known are {', '.join(sorted(SPLITTINGS))}; {advice}"
        )
    if proven is not None and replace(SPLITTINGS[proven], add_bos=SPLITTINGS[pre].add_bos) != SPLITTINGS[pre]:
        raise CheckpointError(
            f"{path}: tokenizer.ggml.pre is {pre!r} but the vocabulary is that of {proven!r}; {advice}"
        )
    return SPLITTINGS[pre]


def _has(tokens: Sequence[str], marks: Sequence[tuple[int, str]]) -> bool:
    return all(index < len(tokens) and tokens[index] == token for index, token in marks)
