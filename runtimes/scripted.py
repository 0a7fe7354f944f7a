"""The shipped fake: a runtime that answers from a script, for tests of everything above a runtime without a model.

`write_bundle` makes a bundle of a few kilobytes whose tokenizer has a token a byte. The bundle's `script.json` says

    answers   texts (or lists of ids), given in turn, one to each prompt; after each an end token
    delay_s   how long a forward takes
    fail_at   forwards after which logits are NaN, null for never

A slot holds the id of the token stored there, so `visible` tells which tokens the latest query could see, and how much
attention a query pays to a token that it sees follows from their ids (`attention`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge import bundle as bundles
from edge import texts
from edge.bundle import Bundle, FileInfo, Manifest, TokenizerInfo
from edge.decoder import DecoderSpec, RopeSpec
from edge.errors import BundleError, ClosedError
from edge.graph import build
from edge.kv import KvLayout, Move
from edge.layers import Dense, Gqa, LayerSpec
from edge.options import RuntimeOptions
from edge.runtime import (
    Batch,
    Capabilities,
    KvRows,
    Segment,
    Support,
    check_finite,
    check_tap,
    pick_device,
    pick_kv_dtype,
)
from edge.safetensors import plan_header
from edge.sums import sha256
from edge.weights import describe

SCRIPT = "script.json"
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
END = 256
_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class ScriptedRuntime:
    """A Runtime whose logits single out the script's next token."""

    name = "scripted"
    device = "cpu"
    capabilities = Capabilities(extents=False, batching=True, attention=True)
    notes: tuple[str, ...] = ()

    def __init__(self, bundle: Bundle, layout: KvLayout) -> None:
        text = bundle.read_text(SCRIPT)
        if text is None:
            raise BundleError(f"{bundle.path}: holds no {SCRIPT}; the scripted runtime runs only bundles that have one")
        script = texts.parse_json(text)
        self.spec = bundle.spec
        self.layout = layout
        self.kv_dtypes = ("float32",) * len(bundle.spec.layers)
        self.visible: list[int] = []
        self.forwards = 0
        self._answers = [list(a.encode()) if isinstance(a, str) else [int(i) for i in a] for a in script["answers"]]
        self._delay: float = script["delay_s"]
        self._fail_at: int | None = script["fail_at"]
        self._turn = 0
        # Slot of a token → the answer that it belongs to, and the index of the id that was given behind it.
        self._next: dict[int, tuple[list[int], int]] = {}
        self._slots = [np.full(layout.sequences * ring.slots, -1, np.int64) for ring in layout.rings]
        self._closed = False

    def forward(self, batch: Batch) -> list[npt.NDArray[np.float32]]:
        self._check_open()
        check_tap(batch.tap, self)
        time.sleep(self._delay)
        self.forwards += 1
        results = []
        for segment in batch.segments:
            logits = np.zeros((segment.logit_rows, self.spec.vocab_size), np.float32)
            for slot in segment.plan.rings[0].writes.tolist():
                self._next.pop(slot, None)
            if segment.logit_rows:
                logits[-1, self._answer(segment)] = 10.0
            if self._fail_at is not None and self.forwards > self._fail_at:
                logits[:] = np.nan
            if len(logits):
                check_finite(logits, self.name)
            for slots, plan in zip(self._slots, segment.plan.rings, strict=True):
                slots[plan.writes] = segment.tokens
                if plan.attention is not None:
                    held, rows = plan.unrolled()
                    plan.attention[:] += attention(segment.tokens[:, None], slots[rows]) * plan.mask(held)
            self.visible = self.seen(segment)
            results.append(logits)
        return results

    def _answer(self, segment: Segment) -> int:
        """The script's next id: the following one if this feeds the last one back, else the first of an answer."""
        plan = segment.plan.rings[0]
        held, slots = plan.unrolled()
        before = slots[held == plan.start - 1]
        answer, index = self._next.get(int(before[0]), ([], -1)) if len(before) else ([], -1)
        if len(segment.tokens) == 1 and 0 <= index < len(answer) and answer[index] == segment.tokens[0]:
            index += 1
        else:
            answer, index = [*self._answers[self._turn % len(self._answers)], END], 0
            self._turn += 1
        self._next[int(plan.writes[-1])] = (answer, index)
        return answer[index]

    def seen(self, segment: Segment) -> list[int]:
        """The tokens that the segment's last query sees, by their positions; its own are in their slots already."""
        plan = segment.plan.rings[0]
        held, slots = plan.unrolled()
        return [int(token) for token in self._slots[0][slots[plan.mask(held)[-1]]]]

    def move(self, move: Move) -> None:
        self._check_open()  # token ids have no angle
        slots = self._slots[move.ring]
        slots[move.target : move.target + move.count] = slots[move.source : move.source + move.count]
        for row in range(move.count if move.ring == 0 else 0):
            if move.source + row in self._next:
                self._next[move.target + row] = self._next[move.source + row]

    def read_rows(self, layer: int, slots: npt.NDArray[np.int64]) -> KvRows:
        """A token's id is its key."""
        self._check_open()
        keys = np.zeros((len(slots), 1, 2), np.float32)
        keys[:, 0, 0] = self._slots[self.spec.layer_groups[layer]][slots]
        return KvRows(keys, np.zeros_like(keys))

    def write_rows(self, layer: int, slots: npt.NDArray[np.int64], rows: KvRows) -> None:
        self._check_open()
        self._slots[self.spec.layer_groups[layer]][slots] = rows.keys[:, 0, 0].astype(np.int64)

    @property
    def kv_bytes(self) -> int:
        return sum(slots.nbytes for slots in self._slots)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the scripted runtime is closed; load the model again")


def attention(queries: npt.NDArray[Any], keys: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """What queries pay to keys, all by their ids: whole 64ths, whose sums are exact."""
    return np.asarray((queries * 7 + keys * 13) % 97 / 64)


def support() -> Support:
    return Support(("cpu",))


def kept_kv(bundle: Bundle, options: RuntimeOptions) -> list[str]:
    """Nothing is kept but positions; a float32 stands for what would be."""
    pick_kv_dtype("scripted", options, ("auto",))
    return ["float32"] * len(bundle.spec.layers)


def open_model(bundle: Bundle, layout: KvLayout, options: RuntimeOptions) -> ScriptedRuntime:
    pick_device("scripted", options, support().devices)
    pick_kv_dtype("scripted", options, ("auto",))
    return ScriptedRuntime(bundle, layout)


def write_bundle(
    path: Path, answers: Sequence[str | Sequence[int]], *, delay_s: float = 0.0, fail_at: int | None = None,
    context: int = 4096,
) -> Bundle:  # fmt: skip
    """Write a bundle for this runtime to a folder that does not exist yet, and open it."""
    spec = DecoderSpec(
        family="scripted", vocab_size=256 + len(SPECIAL), hidden_size=2,
        layers=(LayerSpec(Gqa(heads=1, kv_heads=1, head_dim=2, scale=1.0), Dense(2)),),
        ropes=(RopeSpec(2, 10_000.0),), context=context, norm_eps=1e-5,
    )  # fmt: skip
    path.mkdir(parents=True)
    header, infos = plan_header([entry for weight in build(spec).weights for entry in describe(weight, "float32")])
    weights = header.ljust(max(info.stop for info in infos.values()), b"\0")
    (path / bundles.WEIGHTS).write_bytes(weights)
    (path / bundles.TOKENIZER).write_text(json.dumps(_tokenizer()), encoding="utf-8")
    (path / bundles.TEMPLATE).write_text(_TEMPLATE, encoding="utf-8")
    script = {
        "answers": [a if isinstance(a, str) else list(a) for a in answers],
        "delay_s": delay_s,
        "fail_at": fail_at,
    }
    (path / SCRIPT).write_text(json.dumps(script), encoding="utf-8")
    files = {file.name: FileInfo(file.stat().st_size, sha256(file)) for file in sorted(path.iterdir())}
    manifest = Manifest(
        name="scripted", spec=spec, schemes={}, recipe={}, graphs={}, kv={}, toolchain={}, files=files,
        tokenizer=TokenizerInfo(bos=None, eos=(END,), special={}, add_bos=False),
    )  # fmt: skip
    bundles.write_manifest(path, manifest)
    return bundles.open_bundle(path)


def _tokenizer() -> dict[str, Any]:
    """A tokenizer.json with a token a byte: ids 0…255 are the bytes, then the control tokens."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    # GPT-2's table: printable bytes stand for themselves, the others for the characters from U+0100 on.
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    added = [
        {"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, text in enumerate(SPECIAL)
    ]  # fmt: skip
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []}  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}  # fmt: skip
