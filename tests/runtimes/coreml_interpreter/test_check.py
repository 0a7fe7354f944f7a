"""Faults planted in a package: each is found, and one line names it."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edge
from edge.bundle import Bundle
from edge.coreml_interface import BLOBS, MODEL, PACKAGE
from edge.errors import BundleError
from runtimes.coreml_interpreter import wire
from runtimes.coreml_interpreter.check import check
from runtimes.coreml_interpreter.model import Package
from tests.coreml_host import COREML
from tests.exporters.tiny import tiny_llama

pytestmark = COREML


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("planted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSEDGE_CACHE", str(folder / "cache"))
        return edge.export(tiny_llama(folder / "m"), folder / "x.dsedge", targets=("coreml",), contexts=(128,))


class Planted:
    """A copy of the package, to be damaged: `model` is coremltools' own view of its program."""

    def __init__(self, bundle: Bundle, folder: Path) -> None:
        from coremltools.proto import Model_pb2

        self.root = folder
        shutil.copytree(bundle.path / "coreml", folder / "coreml")
        self.model = Model_pb2.Model()
        self.model.ParseFromString((folder / MODEL).read_bytes())
        self.function = self.model.mlProgram.functions["decode_128"]
        self.block = self.function.block_specializations["CoreML8"]

    def op(self, output: str) -> Any:
        return next(op for op in self.block.operations if op.outputs[0].name == output)

    def blob(self, offset: int, at: int, form: str, value: int) -> None:
        """Change a field of a blob's metadata."""
        path = self.root / BLOBS
        data = bytearray(path.read_bytes())
        struct.pack_into(form, data, offset + at, value)
        path.write_bytes(data)

    def check(self) -> None:
        (self.root / MODEL).write_bytes(self.model.SerializeToString())
        check(Package(self.root / PACKAGE))


def _offset(planted: Planted) -> int:
    return int(_matrix_data(planted).arguments[0].value.blobFileValue.offset)


def _matrix_data(planted: Planted) -> Any:
    return planted.op("weight_layers_0_mlp_down").inputs["data"]


def wrong_shape(planted: Planted) -> None:
    planted.op("layers_0_mlp_act").outputs[0].type.tensorType.dimensions[1].constant.size = 64


def wrong_type(planted: Planted) -> None:
    planted.op("layers_0_mlp_act").outputs[0].type.tensorType.dataType = 11


def dangling_name(planted: Planted) -> None:
    planted.op("layers_0_mlp_act").inputs["y"].arguments[0].name = "nobody"


def used_before_it_is_made(planted: Planted) -> None:
    planted.op("layers_0_attn_residual").inputs["y"].arguments[0].name = "layers_1_attn_residual"


def defined_twice(planted: Planted) -> None:
    planted.op("layers_1_attn_residual").outputs[0].name = "layers_0_attn_residual"


def unknown_op(planted: Planted) -> None:
    planted.op("layers_0_mlp_act").type = "erf"


def wrong_opset(planted: Planted) -> None:
    planted.function.opset = "CoreML7"
    planted.function.block_specializations["CoreML7"].CopyFrom(planted.block)
    del planted.function.block_specializations["CoreML8"]


def wrong_specification(planted: Planted) -> None:
    planted.model.specificationVersion = 8


def missing_input_of_the_function(planted: Planted) -> None:
    del planted.function.inputs[-1]


def missing_parameter(planted: Planted) -> None:
    del planted.op("layers_0_mlp_act").inputs["y"]


def unknown_parameter(planted: Planted) -> None:
    act = planted.op("layers_0_mlp_act")
    act.inputs["z"].CopyFrom(act.inputs["y"])


def missing_output(planted: Planted) -> None:
    planted.block.outputs[0] = "elsewhere"


def description_of_another_shape(planted: Planted) -> None:
    described = next(item for item in planted.model.description.functions if item.name == "decode_128")
    described.input[-1].type.multiArrayType.shape[2] = 32


def description_of_another_name(planted: Planted) -> None:
    described = next(item for item in planted.model.description.functions if item.name == "decode_128")
    described.output[0].name = "logit"


def description_without_a_function(planted: Planted) -> None:
    del planted.model.description.functions[0]


def offset_between_blobs(planted: Planted) -> None:
    _matrix_data(planted).arguments[0].value.blobFileValue.offset += 8


def offset_behind_the_file(planted: Planted) -> None:
    _matrix_data(planted).arguments[0].value.blobFileValue.offset = 1 << 40


def offset_of_data(planted: Planted) -> None:
    _matrix_data(planted).arguments[0].value.blobFileValue.offset += 64


def blob_of_another_matrix(planted: Planted) -> None:
    other = planted.op("weight_layers_0_attn_k").inputs["data"].arguments[0].value.blobFileValue.offset
    _matrix_data(planted).arguments[0].value.blobFileValue.offset = other


def blob_header_of_another_type(planted: Planted) -> None:
    planted.blob(_offset(planted), 4, "<I", 4)


def blob_header_without_its_sign(planted: Planted) -> None:
    planted.blob(_offset(planted), 0, "<I", 0xDEADBEEE)


def blob_header_of_another_size(planted: Planted) -> None:
    planted.blob(_offset(planted), 8, "<Q", 7)


def blob_data_behind_the_file(planted: Planted) -> None:
    planted.blob(_offset(planted), 16, "<Q", 1 << 40)


def blocks_that_do_not_divide(planted: Planted) -> None:
    scale = planted.op("weight_layers_0_mlp_down").inputs["scale"].arguments[0].value
    scale.type.tensorType.dimensions[1].constant.size = 5


def a_file_outside(planted: Planted) -> None:
    _matrix_data(planted).arguments[0].value.blobFileValue.fileName = "@model_path/../secret.bin"


def constant_beyond_float16(planted: Planted) -> None:
    epsilon = planted.op(planted.op("layers_0_attn_norm_factor").inputs["epsilon"].arguments[0].name)
    for kind in (epsilon.outputs[0].type, epsilon.attributes["val"].type):
        kind.tensorType.dataType = 10
    epsilon.attributes["val"].immediateValue.tensor.Clear()
    epsilon.attributes["val"].immediateValue.tensor.bytes.values = b"\x00\x7c"  # infinity


def name_with_a_dash(planted: Planted) -> None:
    planted.op("layers_0_mlp_act").outputs[0].name = "layers-0"


FAULTS: list[tuple[Callable[[Planted], None], str]] = [
    (wrong_shape, r"mul 'layers_0_mlp_act': its inputs make float16 \[1, 96\], and float16 \[1, 64\] is declared"),
    (wrong_type, r"layers_0_mlp_act': its inputs make float16 .*, and float32 .* is declared"),
    (dangling_name, "layers_0_mlp_act': its input 'nobody' is defined nowhere before it"),
    (used_before_it_is_made, "its input 'layers_1_attn_residual' is defined nowhere before it"),
    (defined_twice, "'layers_0_attn_residual' is defined twice"),
    (unknown_op, "erf 'layers_0_mlp_act': an op that is not known here; known are const, abs"),
    (wrong_opset, "function decode_128: opset 'CoreML7'; CoreML8 is read here"),
    (wrong_specification, "specification 8; 9 is read here"),
    (missing_input_of_the_function, "'past_v_0' is defined nowhere"),
    (missing_parameter, "layers_0_mlp_act': parameter 'y' is missing"),
    (unknown_parameter, "layers_0_mlp_act': parameter 'z' is not known"),
    (missing_output, "its output 'elsewhere' is computed nowhere"),
    (description_of_another_shape, r"input past_v_0 is float16 \[2, 2, 128, 16\] in the program and .*\[2, 2, 32"),
    (description_of_another_name, "output logits is .* in the program and absent in its description"),
    (description_without_a_function, "its program has the functions .*, its description"),
    (offset_between_blobs, "lies outside of the file's .* or not at a multiple of 64"),
    (offset_behind_the_file, "lies outside of the file's"),
    (offset_of_data, "has no header of a blob; the package is damaged"),
    (blob_of_another_matrix, r"holds 1024 bytes of uint4, and uint4 \[64, 96\] is needed"),
    (blob_header_of_another_type, r"holds .* bytes of int8, and uint4 \[64, 96\] is needed"),
    (blob_header_without_its_sign, "has no header of a blob"),
    (blob_header_of_another_size, "holds 7 bytes of uint4"),
    (blob_data_behind_the_file, "its data at 1099511627776 lies outside of the file's"),
    (blocks_that_do_not_divide, r"blocks of \[64, 5\] do not divide \[64, 96\]|holds .* bytes of float16"),
    (a_file_outside, "a constant in the file '@model_path/../secret.bin'"),
    (constant_beyond_float16, "a constant that float16 does not hold"),
    (name_with_a_dash, "a value called 'layers-0'"),
]  # fmt: skip


@pytest.mark.parametrize(("plant", "words"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_planted_fault_is_found(plant: Callable[[Planted], None], words: str, bundle: Bundle, tmp_path: Path) -> None:
    planted = Planted(bundle, tmp_path)
    planted.check()
    plant(planted)
    with pytest.raises(BundleError, match=words) as raised:
        planted.check()
    assert "\n" not in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def test_a_damaged_or_foreign_package_is_one_line(bundle: Bundle, tmp_path: Path) -> None:
    planted = Planted(bundle, tmp_path)
    data = (tmp_path / MODEL).read_bytes()
    for size in (0, 1, len(data) // 2, len(data) - 1):
        (tmp_path / MODEL).write_bytes(data[:size])
        with pytest.raises(BundleError, match=re.escape(str(tmp_path))):
            check(Package(tmp_path / PACKAGE))
    (tmp_path / MODEL).write_bytes(b"ONNX is another format")
    with pytest.raises(BundleError):
        Package(tmp_path / PACKAGE)
    (tmp_path / MODEL).write_bytes(data)
    (tmp_path / BLOBS).write_bytes(b"short")
    with pytest.raises(BundleError, match="is no file of Core ML weights"):
        Package(tmp_path / PACKAGE)
    (tmp_path / PACKAGE / "Manifest.json").write_text("{}")
    with pytest.raises(BundleError, match="is no Core ML package"):
        Package(tmp_path / PACKAGE)
    with pytest.raises(BundleError, match="is no Core ML package"):
        Package(tmp_path / "nowhere")
    assert planted.model.specificationVersion == 9


def test_a_function_that_a_package_lacks_is_named(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="has no function decode_64; it has decode_128, prefill_128, score_128"):
        Package(bundle.path / PACKAGE).function("decode_64")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x08", "ends within a number"),
        (b"\x08" + b"\xff" * 11, "more than ten bytes"),
        (b"\x12\x05ab", "ends within a field"),
        (b"\x0b", "wire type 3"),
        (b"\x0a\x00", "a number of the wrong wire type"),
        (b"\x98\x06\x01", "field 99 of Model"),
    ],
)
def test_bytes_that_are_no_model(data: bytes, words: str) -> None:
    from edge.errors import FormatError

    with pytest.raises(FormatError, match=words):
        wire.read("Model", data)
