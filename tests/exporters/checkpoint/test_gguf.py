"""GGUF files: codes carried over exactly, and a container parser that takes nothing on trust."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import _type_traits
from gguf.quants import dequantize as gguf_dequantize

from edge.errors import CheckpointError, ClosedError, EdgeError, UnsupportedError
from edge.payload import dequantize
from exporters.architectures import describe
from exporters.checkpoint import Checkpoint
from exporters.checkpoint import gguf as gguf_module
from exporters.checkpoint.open import open_checkpoint
from exporters.checkpoint.source import SourceFile
from tests.exporters.tiny import write_gguf

Open = Callable[[Path], Checkpoint]
Kind = gguf.GGMLQuantizationType


def write(path: Path, tensors: dict[str, tuple[np.ndarray, Kind]], *, arch: str = "llama") -> Path:
    """A GGUF file of raw tensors: bytes as they are, of the given type; and an entry of each kind of metadata."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_array("general.languages", ["en", "français"])
    writer.add_array("general.numbers", [1.5, 2.5])
    writer.add_causal_attention(arch == "llama")
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(kind: Kind, rows: int, columns: int) -> np.ndarray:
    """Quantized rows whose codes take every value and whose scales are of both signs."""
    rng = np.random.default_rng(3)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows, columns // block, size), np.uint8)
    halves = rng.standard_normal((rows, columns // block, 2)).astype("<f2").view(np.uint8)
    if kind in (Kind.Q4_0, Kind.Q4_1, Kind.Q8_0):
        raw[..., :2] = halves[..., :2]
    if kind == Kind.Q4_1:
        raw[..., 2:4] = halves[..., 2:]
    return raw.reshape(rows, -1)


@pytest.mark.parametrize(
    ("kind", "scheme"), [("Q4_0", "int4-g32-sym"), ("Q4_1", "int4-g32-affine"), ("Q8_0", "int8-g32-sym")]
)
def test_codes_are_carried_exactly(tmp_path: Path, opened: Open, kind: str, scheme: str) -> None:
    raw = random_blocks(Kind[kind], 48, 160)
    tensor = opened(write(tmp_path / "m.gguf", {"w": (raw, Kind[kind])})).tensors["w"]
    expected = gguf_dequantize(raw, Kind[kind])
    assert (tensor.shape, tensor.dtype) == ((48, 160), kind)
    assert tensor.scheme is not None
    assert tensor.scheme.name == scheme
    for start, stop in ((0, 48), (5, 6), (17, 40)):
        parts = tensor.codes(start, stop)
        assert {name: part.shape for name, part in parts.items()} == {
            name: shape for name, (_, shape) in tensor.scheme.parts(stop - start, 160).items()
        }
        np.testing.assert_array_equal(dequantize(tensor.scheme, parts, 160), expected[start:stop])
        np.testing.assert_array_equal(tensor.read(start, stop), expected[start:stop])


def test_nibble_order_by_hand(tmp_path: Path, opened: Open) -> None:
    """One Q4_0 block of scale 1 whose code i is i for the first 16 and 15 - i for the others, in ggml's order."""
    block = np.array([*np.array([1.0], "<f2").view(np.uint8), *(i | (15 - i) << 4 for i in range(16))], np.uint8)
    tensor = opened(write(tmp_path / "m.gguf", {"w": (block[None], Kind.Q4_0)})).tensors["w"]
    codes = [*range(16), *range(15, -1, -1)]
    assert tensor.read()[0].tolist() == [code - 8 for code in codes]
    assert tensor.codes()["codes"][0].tolist() == [codes[2 * i] | codes[2 * i + 1] << 4 for i in range(16)]


OTHERS = [kind.name for kind in _type_traits if kind.name not in ("Q4_0", "Q4_1", "Q8_0")]


@pytest.mark.parametrize("kind", ["F32", "F16", *OTHERS])
def test_other_types_are_dequantized(tmp_path: Path, opened: Open, kind: str) -> None:
    """Every type that the gguf package dequantizes, from blocks of random bytes: whole, and any range of rows."""
    number = Kind[kind]
    width = {"F32": 64, "F16": 64}.get(kind, 2)  # in blocks
    raw = np.random.default_rng(4).integers(0, 256, (24, width * gguf.GGML_QUANT_SIZES[number][1]), np.uint8)
    raw = np.where(raw == 0x7C, 0, raw & 0xBB).astype(np.uint8)  # no scale that is infinite or NaN, of any float
    tensor = opened(write(tmp_path / "m.gguf", {"w": (raw, number)})).tensors["w"]
    expected = gguf_dequantize(raw, number)
    assert np.isfinite(expected).all()
    assert tensor.scheme is None
    assert bool(tensor.note) == (kind not in ("F32", "F16", "BF16"))
    assert tensor.read().dtype == np.float32
    np.testing.assert_array_equal(tensor.read(), expected)
    for start, stop in ((3, 11), (23, 24), (5, 5)):
        np.testing.assert_array_equal(tensor.read(start, stop), expected[start:stop])


def test_a_type_that_nobody_dequantizes_is_named_before_any_work(tmp_path: Path, opened: Open) -> None:
    data = write(tmp_path / "m.gguf", {"w": (np.zeros((2, 32), np.int32), Kind.I32)})
    with pytest.raises(UnsupportedError, match="tensors of type I32 cannot be dequantized"):
        _ = opened(data).config


def test_quantized_vector_is_read_by_numbers(tmp_path: Path, opened: Open) -> None:
    raw = random_blocks(Kind.Q8_0, 1, 64)
    tensor = opened(write(tmp_path / "m.gguf", {"w": (raw[0], Kind.Q8_0)})).tensors["w"]
    assert tensor.shape == (64,)
    assert tensor.scheme is None
    np.testing.assert_array_equal(tensor.read(5, 40), gguf_dequantize(raw, Kind.Q8_0)[0, 5:40])


def test_closed_checkpoint_reads_nothing(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write(tmp_path / "m.gguf", {"w": (np.zeros((2, 2), np.float32), Kind.F32)}))
    checkpoint.close()
    with pytest.raises(ClosedError):
        checkpoint.tensors["w"].read()


# ---- the container ----


def test_c9_cut_anywhere_in_the_data(llama_folder: Path, tmp_path: Path, opened: Open) -> None:
    path = write_gguf(llama_folder, tmp_path / "m.gguf")
    data = path.read_bytes()
    reader = gguf.GGUFReader(path)
    for tensor in (reader.tensors[0], reader.tensors[5], reader.tensors[-1]):
        end = int(tensor.data_offset) + int(tensor.n_bytes)
        for length in (end - 1, end - int(tensor.n_bytes)):
            path.write_bytes(data[:length])
            message = f"truncated: tensor '{tensor.name}' needs {tensor.n_bytes} bytes .* {end}; it has {length}"
            with pytest.raises(CheckpointError, match=message):
                opened(path)


def test_c9_cut_at_every_byte(tmp_path: Path, opened: Open) -> None:
    path = write(tmp_path / "m.gguf", {"w": (np.zeros((2, 4), np.float32), Kind.F32)})
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"truncated|no GGUF file"):
            opened(path)


def test_c9_complete_file_of_an_unknown_architecture(tmp_path: Path, opened: Open) -> None:
    """It is named even where its metadata (here: attention that is not causal) could not be read either."""
    path = write(tmp_path / "m.gguf", {"w": (np.zeros((2, 2), np.float32), Kind.F32)}, arch="mamba9")
    with pytest.raises(
        UnsupportedError, match=r"architecture 'mamba9' is not supported; supported are .*llama, .*qwen2"
    ):
        describe(opened(path))


def test_hostile_bytes_never_get_past_the_errors(tmp_path: Path, opened: Open) -> None:
    """Every byte of a small header set to extreme values: read, or refused with one of our errors, never worse."""
    path = write(tmp_path / "m.gguf", {"weight": (np.zeros((4, 32), np.float32), Kind.F32)})
    data = path.read_bytes()
    header = data.index(b"weight") + 6 + 4 + 2 * 8 + 4 + 8
    refused = 0
    for at in range(header):
        for value in (0x00, 0x7F, 0xFF):
            path.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
            try:
                opened(path)
            except EdgeError:
                refused += 1
    assert refused > header


def test_huge_counts_are_refused_at_once(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "m.gguf"
    string = struct.pack("<Q", 1) + b"k"
    for body, message in (
        (struct.pack("<IQQ", 3, 0, 2**60), "metadata entries need at least"),
        (struct.pack("<IQQ", 3, 2**60, 0), "tensors need at least"),
        (struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63) + bytes(50), "metadata key 0 needs"),
        (struct.pack("<IQQ", 3, 0, 1) + string + struct.pack("<IIQ", 9, 8, 2**50) + bytes(50), "strings of k need"),
        (struct.pack("<IQQ", 3, 0, 1) + string + struct.pack("<IIQ", 9, 6, 2**50) + bytes(50), "k needs"),
        (struct.pack("<IQQ", 3, 0, 1) + string + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9, "nests arrays"),
        (struct.pack("<IQQ", 3, 0, 1) + string + struct.pack("<I", 77) + bytes(9), "unknown value type 77"),
    ):
        path.write_bytes(b"GGUF" + body)
        with pytest.raises(CheckpointError, match=message):
            opened(path)


@pytest.mark.parametrize(("version", "message"), [(1, "GGUF version 1; 2 and 3"), (0x03000000, "big-endian")])
def test_other_versions(tmp_path: Path, opened: Open, version: int, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0))
    with pytest.raises(UnsupportedError, match=message):
        opened(path)


def test_overlapping_misaligned_and_repeated_tensors(tmp_path: Path, opened: Open) -> None:
    tensors = {name: (np.ones((2, 32), np.float32), Kind.F32) for name in ("aaa", "bbb")}
    path = write(tmp_path / "m.gguf", tensors)
    data = path.read_bytes()
    second = data.index(b"bbb") + 3 + 4 + 2 * 8 + 4  # its offset
    for offset in (0, 128, 260):
        path.write_bytes(data[:second] + struct.pack("<Q", offset) + data[second + 8 :])
        with pytest.raises(CheckpointError, match=f"tensor 'bbb' lies at offset {offset}"):
            opened(path)
    path.write_bytes(data.replace(b"bbb", b"aaa"))
    with pytest.raises(CheckpointError, match="tensor 'aaa' appears twice"):
        opened(path)


# ---- split files ----


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    """A model in three parts, tensors a … f in pairs."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    writer.add_uint32("llama.block_count", 7)
    for index, name in enumerate("abcdef"):
        writer.add_tensor(name, np.full((2, 32), index, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = sorted(tmp_path.glob("m-*.gguf"))
    assert [path.name for path in found] == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    return found


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_split_model_is_read_whole_from_any_part(split: list[Path], opened: Open, number: int) -> None:
    checkpoint = opened(split[number])
    assert checkpoint.config["num_hidden_layers"] == 7
    assert checkpoint.path == str(split[0])
    assert {name: tensor.read(1, 2)[0, 3] for name, tensor in checkpoint.tensors.items()} == {
        name: index for index, name in enumerate("abcdef")
    }


def test_parts_of_a_split_model_that_do_not_fit(split: list[Path], opened: Open) -> None:
    shutil.copy(split[0], split[0].with_name("other.gguf"))
    with pytest.raises(CheckpointError, match=r"one of 3 shards .* must end in -00001-of-00003\.gguf"):
        opened(split[0].with_name("other.gguf"))
    third = split[2].read_bytes()
    shutil.copy(split[1], split[2])
    with pytest.raises(CheckpointError, match=r"00003\.gguf: says that it is shard 1 of 3, not 2 of 3"):
        opened(split[0])
    split[2].write_bytes(third[:-1])
    with pytest.raises(CheckpointError, match=r"00003-of-00003\.gguf: truncated: tensor 'f' needs"):
        opened(split[0])
    split[2].write_bytes(third.replace(b"\x01\0\0\0\0\0\0\0f", b"\x01\0\0\0\0\0\0\0a"))
    with pytest.raises(CheckpointError, match="tensor 'a' is in another shard too"):
        opened(split[0])
    for part in split[1:]:
        part.unlink()
    with pytest.raises(CheckpointError, match=r"2 of 3 shards are missing: m-00002-of-00003\.gguf, m-00003"):
        opened(split[0])


def test_a_part_that_cannot_be_opened_leaves_no_other_open(
    split: list[Path], opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[SourceFile] = []

    def open_some(path: Path) -> SourceFile:
        if path == split[1]:
            raise CheckpointError(f"{path}: cannot be read")
        files.append(SourceFile(path))
        return files[-1]

    monkeypatch.setattr(gguf_module, "SourceFile", open_some)
    with pytest.raises(CheckpointError, match="cannot be read"):
        opened(split[0])
    with pytest.raises(ClosedError):
        files[0].read(0, 1, "a")


def test_a_split_model_that_lacks_tensors(split: list[Path], opened: Open) -> None:
    """The number of tensors that the parts promise is a uint32 or int32 six."""
    data = split[0].read_bytes()
    at = data.index(b"split.tensors.count") + len(b"split.tensors.count") + 4
    assert data[at] == 6
    split[0].write_bytes(data[:at] + b"\x07" + data[at + 1 :])
    with pytest.raises(CheckpointError, match="its shards hold 6 tensors of 7"):
        opened(split[0])
