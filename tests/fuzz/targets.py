"""The readers of files from elsewhere, each as a function of bytes: whatever they are, only an EdgeError may come out.

A target knows valid inputs to start from. Everything that a reader gives is used a little, so that a wrong size shows.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge.bundle import open_bundle
from edge.calls import FORMATS
from edge.chat import ChatTemplate
from edge.errors import CheckpointError, EdgeError, OptionError
from edge.kv import plan_layout
from edge.reasoning import Tags
from edge.rope import angles
from edge.seal import seal
from edge.sections import Splitter
from edge.tokenizer import Tokenizer
from exporters.architectures import HUGGING_FACE, decoder_spec, describe
from exporters.architectures.config import Config
from exporters.architectures.family import Family
from exporters.checkpoint import Checkpoint
from exporters.checkpoint.added_tokens import fit_rows
from exporters.checkpoint.folder_tokenizer import read_tokenizer
from exporters.checkpoint.gguf_config import read_config
from exporters.checkpoint.open import open_checkpoint
from runtimes.scripted import write_bundle
from tests.fuzz import seeds

_SURROGATE = re.compile("[\ud800-\udfff]")
SETTINGS = {
    "tokenizer_class": "LlamaTokenizer",
    "legacy": False,
    "chat_template": "{% for m in messages %}<s>{{ m.content }}<|end|>{% endfor %}",
    "additional_special_tokens": ["a", {"content": "<|end|>"}, 3],
}
TEXT = "Bien sûr: 12 <|end|> x\n\ud55c🙂 <s>"


@dataclass(frozen=True, slots=True)
class Target:
    """`run(data, folder)` gives the bytes to the reader; the folder is the target's own from call to call."""

    run: Callable[[bytes, Path], None]
    seeds: Callable[[Path], list[bytes]]


def attempt(target: Target, data: bytes, folder: Path) -> str | None:
    """Run a target; the message of the EdgeError that refused the input, None for one that was taken."""
    try:
        target.run(data, folder)
    except EdgeError as error:
        return str(error)
    return None


def _gguf(data: bytes, folder: Path) -> None:
    path = folder / "m.gguf"
    path.write_bytes(data)
    _use(open_checkpoint(path))


def _safetensors(data: bytes, folder: Path) -> None:
    """A config.json, a NUL and the weights."""
    config, _, weights = data.partition(b"\0")
    (folder / "config.json").write_bytes(config)
    (folder / "model.safetensors").write_bytes(weights)
    _use(open_checkpoint(folder))


def _use(checkpoint: Checkpoint) -> None:
    """What an export reads of a checkpoint, a row or three of each tensor."""
    try:
        if checkpoint.kind == "gguf":
            checkpoint.tokenizer()
        for tensor in checkpoint.tensors.values():
            rows = tensor.shape[0]
            for start in {0, rows // 2, rows - 1}:
                found = tensor.read(start, start + 1)
                assert found.shape == (1, *tensor.shape[1:])
                assert found.dtype == np.float32
                if tensor.scheme is not None:
                    tensor.codes(start, start + 1)
        for weight in describe(checkpoint).weights.values():
            assert weight.read(0, 1).shape == (1, *weight.shape[1:])
    finally:
        checkpoint.close()


def _config(data: bytes, folder: Path) -> None:
    """A config.json as each family reads it, and the angles of the ropes that come of it."""
    _describe(_document(data))


def _metadata(data: bytes, folder: Path) -> None:
    """GGUF metadata, a list of numbers being an array, and what each family makes of the config that comes of it."""
    metadata = {key: np.array(value) if _numeric(value) else value for key, value in _document(data).items()}
    if any(isinstance(value, int) and abs(value) >= 2**64 for value in metadata.values()):
        raise CheckpointError("the format has no integers of that size")
    _describe({"vocab_size": 8, **read_config(folder / "m.gguf", metadata, {})})


def _document(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError("no JSON") from error
    if not isinstance(found, dict):
        raise CheckpointError("no object")
    return found


def _numeric(value: Any) -> bool:
    fits = isinstance(value, list) and all(type(item) in (bool, int, float) for item in value)
    return fits and all(abs(item) < 2**63 for item in value)


def _describe(config: Any) -> None:
    """Every family has its turn, whatever the others say; a refusal is raised if all of them refuse."""
    refused: list[EdgeError] = []
    modules = sorted(set(HUGGING_FACE.values()))
    for module in modules:
        family: Family = importlib.import_module(f"exporters.architectures.{module}").FAMILY
        try:
            read = Config("config.json", config, family.defaults)
            spec = decoder_spec(read, family)
            family.scales(read)
            for rope in spec.ropes:
                with np.errstate(all="ignore"):
                    angles(rope, np.array([0, 5000], np.int64), context=5000)
        except EdgeError as error:
            refused.append(error)
    if len(refused) == len(modules):
        raise refused[0]


def _tokenizer(data: bytes, folder: Path) -> None:
    """A tokenizer.json in a bundle, and in a checkpoint's folder."""
    text = data.decode("utf-8", errors="replace")
    tokenizer = Tokenizer(text, bos=None, eos=(), add_bos=False, special={"unk_token": "<unk>"})
    _encode_plain(tokenizer)
    tokenizer.decode([0, 1, tokenizer.vocab_size, 2**31])
    (folder / "tokenizer.json").write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    files = read_tokenizer(folder, {"model_type": "llama", "bos_token_id": 0, "eos_token_id": [0, -1]})
    fit_rows(files, tokenizer.vocab_size, "model")


def _encode_plain(tokenizer: Tokenizer) -> None:
    """No control token comes out of text, whatever the file says, except the unknown one; a text may be refused."""
    forged = [*tokenizer.control.ids, *map(_full_width, tokenizer.control.ids)]
    for text in (TEXT, *(f"a {spelling}b" for spelling in forged[:8] if not _SURROGATE.search(spelling))):
        try:
            ids = tokenizer.encode(text)
        except OptionError:
            continue
        control = {token for spelling, token in tokenizer.control.ids.items() if spelling != "<unk>"}
        assert control.isdisjoint(ids), f"{text!r} became {ids}"
        tokenizer.decode(ids)


def _full_width(text: str) -> str:
    return "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in text)


def _manifest(data: bytes, folder: Path) -> None:
    path = folder / "x.dsedge"
    if not path.is_dir():
        write_bundle(path, ["a"])
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        data = seal(json.loads(data)).encode()  # what was changed is to be read, and not stopped by its sum
    (path / "manifest.json").write_bytes(data)
    opened = open_bundle(path)
    plan_layout(opened.spec, min(opened.spec.context, 64))
    for weight in opened.graph.weights:
        opened.weights.read(weight.name, 0, 1)


def _template(data: bytes, folder: Path) -> None:
    """A chat template and what it is rendered with: no control token but those that it writes."""
    document = _document(data)
    source = document.get("template")
    template = ChatTemplate(source if isinstance(source, str) else "", {"bos_token": "<s>"}, steps=100_000)
    path = folder / "t.dsedge"
    if not path.is_dir():
        write_bundle(path, ["a"])
    tokenizer = Tokenizer((path / "tokenizer.json").read_text(), bos=None, eos=(), add_bos=False, special={})
    given = document.get("messages")
    ids = template.encode(given if isinstance(given, list) else [], tokenizer, tools=document.get("tools"))
    text = source if isinstance(source, str) else ""
    if "<|" not in text and "|>" not in text:
        assert tokenizer.control_ids.isdisjoint(ids)


def _answer(data: bytes, folder: Path) -> None:
    """An answer with reasoning and calls, whole and in pieces of three characters: the same comes out."""
    text = str(_document(data).get("text"))
    for style in FORMATS:
        found = []
        for size in (len(text) + 1, 3):
            splitter = Splitter(Tags("<think>", "</think>", {}), [style])
            pieces = [text[start : start + size] for start in range(0, len(text), size)]
            deltas = [delta for piece in pieces for delta in splitter.push(piece)] + splitter.finish()
            said = ["".join(d.text for d in deltas if d.reasoning is reasoning) for reasoning in (True, False)]
            found.append((said, [(d.call.name, d.call.arguments) for d in deltas if d.call]))
        assert found[0] == found[1]


def _program(data: bytes, folder: Path) -> None:
    """A native engine of a program's tables, and two tokens through it. Where it was not built nothing reads them."""
    tables = _document(data)
    if importlib.util.find_spec("runtimes.native._native") is None:
        return
    from runtimes.native import _native

    vectors = [np.ones(size, np.float32) for size in seeds.PROGRAM_VECTORS]
    try:
        engine = _native.Engine(tables, vectors, "portable", 1)
        angles = [(np.ones((2, rope["pairs"]), np.float32),) * 2 for rope in tables["ropes"]]
        runs = [[np.array([[0, 0, 5]])] * len(tables["rings"])]  # three positions from slot 0 on, and the two new ones
        segment = np.array([[2, 3, *[16, 2] * len(tables["rings"])]])
        logits = np.empty((2, tables["buffers"][0]["width"]), np.float32)
        tokens, wanted = np.array([1, 5], np.int32), np.arange(2)
        engine.forward(tokens, segment, runs, angles, wanted, logits)
    except (ValueError, MemoryError) as error:
        raise CheckpointError(f"the native engine: {error}") from error


TARGETS = {
    "gguf": Target(_gguf, seeds.gguf_files),
    "safetensors": Target(_safetensors, seeds.folders),
    "config": Target(_config, seeds.configs),
    "metadata": Target(_metadata, seeds.metadata),
    "tokenizer": Target(_tokenizer, seeds.tokenizers),
    "manifest": Target(_manifest, seeds.manifests),
    "template": Target(_template, seeds.templates),
    "answer": Target(_answer, seeds.answers),
    "program": Target(_program, seeds.programs),
}
