"""Which added tokens swallow the white space beside them.

A tokenizer.json says so (`lstrip`, `rstrip`), a GGUF file cannot. The marks of almost all models swallow none; the
exceptions are told by tokens that together stand at these ids in one family of vocabularies only. Facts: the
tokenizer_config.json of Phi-3-mini and of Phi-4, and llama.cpp, which knows Phi-3 by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Swallowing:
    """Whether added tokens swallow white space before and behind them; those that are `plain` never do."""

    before: bool = False
    behind: bool = False
    plain: frozenset[str] = frozenset()

    def flags(self, token: str) -> dict[str, bool]:
        """As a tokenizer.json has them."""
        swallows = token not in self.plain
        return {"lstrip": self.before and swallows, "rstrip": self.behind and swallows}


NONE = Swallowing()
_PHI3 = Swallowing(behind=True, plain=frozenset(("<unk>", "<s>", "<|endoftext|>")))
_PHI4 = Swallowing(before=True, behind=True)
KNOWN: tuple[tuple[dict[int, str], Swallowing], ...] = (
    ({32000: "<|endoftext|>", 32001: "<|assistant|>", 32007: "<|end|>", 32010: "<|user|>"}, _PHI3),
    ({100257: "<|endoftext|>", 100264: "<|im_start|>", 100265: "<|im_end|>", 100266: "<|im_sep|>"}, _PHI4),
)
_OPEN = {"phi3": ("<|assistant|>", "<|end|>", "<|im_sep|>")}  # architectures whose vocabularies differ in this


def find_swallowing(path: Path, arch: object, tokens: Sequence[str]) -> Swallowing:
    """What holds for the added tokens of a vocabulary.

    Raises CheckpointError for one of a family whose marks may swallow white space, but not one of those known here.
    """
    for marks, swallowing in KNOWN:
        if all(index < len(tokens) and tokens[index] == token for index, token in marks.items()):
            return swallowing
    mark = next((mark for mark in _OPEN.get(str(arch), ()) if mark in tokens), None)
    if mark is not None:
        raise CheckpointError(
            f"{path}: a GGUF file does not say whether {mark} swallows the white space beside it, and this vocabulary "
            f"of an architecture {arch} is not known here; export from the model's safetensors folder"
        )
    return NONE
