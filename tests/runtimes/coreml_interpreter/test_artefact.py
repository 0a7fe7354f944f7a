"""The check of a bundle's package: weights are the payload's, functions are the spec's, examples can be replayed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import edge
from edge import artefacts
from edge.bundle import Bundle
from edge.cli import main
from edge.coreml_interface import BLOBS, GOLDEN, MODEL
from edge.errors import BundleError, OptionError
from exporters.reference import Reference
from runtimes.coreml_interpreter import artefact
from runtimes.coreml_interpreter.evaluate import Interpreter
from tests.coreml_host import COREML, package_of
from tests.exporters.tiny import tiny_deepseek_v3, tiny_gemma3, tiny_llama

pytestmark = [pytest.mark.usefixtures("cache"), COREML]
SCHEMES = ("int4-g32-sym", "int4-g64-zp", "int4-g32-affine", "int8-g32-sym", "float16", "float32")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEDGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("checked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSEDGE_CACHE", str(folder / "cache"))
        return edge.export(tiny_llama(folder / "m"), folder / "x.dsedge", targets=("coreml",), contexts=(64, 128))


def copied(bundle: Bundle, folder: Path) -> Bundle:
    shutil.copytree(bundle.path, folder / "copy.dsedge")
    return Bundle(folder / "copy.dsedge", bundle.manifest)


def model_of(bundle: Bundle) -> Any:
    from coremltools.proto import Model_pb2

    model = Model_pb2.Model()
    model.ParseFromString((bundle.path / MODEL).read_bytes())
    return model


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_read_back_are_the_payloads(scheme: str, tmp_path: Path) -> None:
    """Stacks, padded groups and a norm's offset among them; the norm of Gemma holds w + 1."""
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'[[rule]]\nmatch = "*"\nscheme = "{scheme}"\n')
    for make in (tiny_gemma3, tiny_deepseek_v3):
        made = edge.export(
            make(tmp_path / make.__name__), tmp_path / f"{make.__name__}.dsedge", recipe=recipe, targets=("coreml",),
            contexts=(128,),
        )  # fmt: skip
        read = artefact.weights(made)
        for weight in made.graph.weights:
            found, expected = read(weight.name, 0, None), made.weights.read(weight.name)
            if "affine" in scheme and weight.is_matrix:
                assert 0 < np.abs(found - expected).max() < 0.005 * np.abs(expected).max()
            else:
                assert np.abs(found - expected).max() < 1e-6
            assert np.array_equal(read(weight.name, 3, 7), found[3:7])


def test_runs_of_rows_and_columns_are_read_back(tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        '[[rule]]\nmatch = "layers.*.attn.[qo]"\nheads = [1, 3]\nscheme = "float16"\n'
        '[[rule]]\nmatch = "*"\nscheme = "int4-g32-zp"\n'
    )
    source = tiny_llama(tmp_path / "m", hidden_size=100, head_dim=32)
    made = edge.export(source, tmp_path / "x.dsedge", recipe=recipe, targets=("coreml",), contexts=(128,))
    read = artefact.weights(made)
    for name in ("layers.0.attn.q", "layers.0.attn.o"):
        assert np.array_equal(read(name, 5, 70), made.weights.read(name, 5, 70))


def test_swapped_weights_of_one_shape_are_found(bundle: Bundle, tmp_path: Path) -> None:
    """Well-formed in every respect: only the numbers tell."""
    planted = copied(bundle, tmp_path)
    model = model_of(planted)
    for function in model.mlProgram.functions.values():
        by_name = {op.outputs[0].name: op for op in function.block_specializations["CoreML8"].operations}
        gate, up = by_name["weight_layers_0_mlp_gate"], by_name["weight_layers_0_mlp_up"]
        for part in ("data", "scale", "offset"):
            ours, theirs = (op.inputs[part].arguments[0].value.blobFileValue for op in (gate, up))
            ours.offset, theirs.offset = theirs.offset, ours.offset
    (planted.path / MODEL).write_bytes(model.SerializeToString())
    with pytest.raises(BundleError, match=r"layers.0.mlp.gate is not the payload's: \[0, 0\] is"):
        artefact.check(planted)


def test_weights_swapped_in_one_function_are_found(bundle: Bundle, tmp_path: Path) -> None:
    planted = copied(bundle, tmp_path)
    model = model_of(planted)
    name = package_of(bundle).names[-1]
    block = model.mlProgram.functions[name].block_specializations["CoreML8"]
    by_name = {op.outputs[0].name: op for op in block.operations}
    ours, theirs = (
        by_name[f"weight_layers_0_mlp_{part}"].inputs["scale"].arguments[0].value.blobFileValue
        for part in ("gate", "up")
    )
    ours.offset, theirs.offset = theirs.offset, ours.offset
    (planted.path / MODEL).write_bytes(model.SerializeToString())
    with pytest.raises(BundleError, match=rf"layers.0.mlp.(gate|up) is another constant in {name} than in "):
        artefact.check(planted)


@pytest.mark.parametrize("part", ["data", "scale", "offset"])
def test_one_changed_byte_is_found(part: str, bundle: Bundle, tmp_path: Path) -> None:
    planted = copied(bundle, tmp_path)
    model = model_of(planted)
    block = next(iter(model.mlProgram.functions.values())).block_specializations["CoreML8"]
    op = next(op for op in block.operations if op.outputs[0].name == "weight_layers_1_mlp_down")
    offset = op.inputs[part].arguments[0].value.blobFileValue.offset
    data = bytearray((planted.path / BLOBS).read_bytes())
    data[offset + 64 + 5] ^= 0x21
    (planted.path / BLOBS).write_bytes(data)
    with pytest.raises(BundleError, match=r"layers\.1\.mlp\.down is not the payload's"):
        artefact.check(planted)


def test_a_package_of_another_model_is_found(bundle: Bundle) -> None:
    layers = bundle.spec.layers[:1]
    other = Bundle(bundle.path, replace(bundle.manifest, spec=replace(bundle.spec, layers=layers)))
    with pytest.raises(BundleError, match=r"past_k_0 of the Core ML function \w+ is float16 \[2, .* and float16 \[1, "):
        artefact.check(other)


def test_examples_can_be_replayed(bundle: Bundle) -> None:
    """The logits of a prompt's last token, and of the one behind it, are the reference's."""
    arrays = load_file(bundle.path / GOLDEN)
    count = int(arrays["prefill.in.last"][0]) + 1
    prompt = [int(i) for i in arrays["prefill.in.tokens"][:count]]
    reference = Reference(bundle.graph, artefact.weights(bundle), context=64)
    expected = reference.run(prompt)[-1]
    assert np.abs(arrays["prefill.out.logits"][0] - expected).max() < 1e-3
    following = int(expected.argmax())
    assert arrays["decode.in.tokens"].tolist() == [following]
    assert np.abs(arrays["decode.out.logits"][0] - reference.run([following])[0]).max() < 1e-3
    past = {f"past_{part}_0": np.zeros((2, 2, 64, 16), np.float32) for part in "kv"}
    for part in "kv":
        past[f"past_{part}_0"][:, :, :count] = arrays[f"prefill.out.new_{part}_0"][:, :, :count]
    given = {name.removeprefix("decode.in."): array for name, array in arrays.items() if name.startswith("decode.in.")}
    found = Interpreter(package_of(bundle), half=False).run("decode_64", {**given, **past})
    assert np.array_equal(found["logits"], arrays["decode.out.logits"])


def test_verify_checks_a_target(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(bundle.path), "--target", "coreml"]) == 0
    assert "coreml: 6 functions are well-formed; 21 weights are the payload's" in capsys.readouterr().out
    assert main(["verify", str(bundle.path), "--target", "onnx"]) == 2
    assert "holds nothing of the target 'onnx'; it has coreml, payload" in capsys.readouterr().err
    with pytest.raises(
        OptionError, match="there is no check of the target 'onnx' alone; there are: coreml, coreml-ane"
    ):
        artefacts.find("onnx")
    assert bundle.manifest.artefacts["coreml"].files[0] == "coreml/decoder.mlpackage"
