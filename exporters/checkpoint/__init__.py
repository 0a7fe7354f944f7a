"""Source models, read lazily: a checkpoint is metadata plus named tensors that are read a few rows at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge.payload import Scheme


class SourceTensor(Protocol):
    """A tensor of a checkpoint. Nothing is in memory until it is read, and then only the rows asked for."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str:
        """As the source calls it: "F32", "BF16", "Q4_1", …"""
        ...

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows start…stop of the first axis, dequantized."""
        ...

    @property
    def scheme(self) -> Scheme | None:
        """The scheme that holds this tensor's own codes exactly, if there is one."""
        ...

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        """Rows start…stop in the layout of `scheme` (see edge.payload); only where `scheme` is not None."""
        ...

    @property
    def note(self) -> str:
        """For the quality report: why a source that is quantized has no scheme; "" where there is nothing to say."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a bundle needs to turn text into ids and back.

    tokenizer       the text of a tokenizer.json
    chat_template   the one that is used unless said otherwise; `chat_templates` are further ones by name
    enders          every end token, with the places that name it (known fault T6)
    special         the `*_token` variables of a template, such as {"bos_token": "<s>", "eos_token": "</s>"}
    notes           for the quality report: what was read otherwise than it is written
    """

    tokenizer: str
    chat_template: str | None
    bos: int | None
    special: Mapping[str, str]
    add_bos: bool
    enders: Mapping[int, tuple[str, ...]]
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def eos(self) -> tuple[int, ...]:
        return tuple(self.enders)


class Checkpoint(Protocol):
    """An opened source."""

    @property
    def path(self) -> str: ...

    @property
    def kind(self) -> str:
        """ "safetensors" or "gguf"."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold tensors."""
        ...

    @property
    def license(self) -> str | None:
        """As those files state it; None where they do not."""
        ...

    @property
    def architecture(self) -> str:
        """As the source names it: LlamaForCausalLM, or GGUF's llama. Known before `config` is read."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The keys of a Hugging Face config.json whatever the format."""
        ...

    @property
    def tensors(self) -> Mapping[str, SourceTensor]:
        """By the source's own names."""
        ...

    def tokenizer(self) -> TokenizerFiles: ...

    def sampling(self) -> Mapping[str, float]:
        """The fields of `edge.options.Sampling` that the source recommends. Raises CheckpointError for bad values."""
        ...

    def close(self) -> None: ...
