"""The payload file: read with the safetensors package, its order, and numbers that cannot be stored."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

from edge.errors import CheckpointError, StorageError
from edge.graph import Graph, build
from edge.payload import Scheme
from edge.safetensors import read_header
from exporters import payload_writer
from exporters.payload_writer import Plan, write_weights
from exporters.quant import rtn
from exporters.quant.recipe import Choice
from tests.specs import small_spec

SYM = Scheme(4, 32, "sym")


@dataclass
class Source:
    """A source tensor in memory; `scheme` makes it one that holds codes."""

    name: str
    values: npt.NDArray[np.float32]
    scheme: Scheme | None = None
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        return self.values[start:stop]

    @property
    def note(self) -> str:
        return ""

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        assert self.scheme is not None
        return rtn.encode(self.scheme, self.values[start:stop])


def make_graph(*, tied: bool = False) -> Graph:
    attention = {"head_dim": 32, "qkv_bias": True}
    return build(small_spec(attention=attention, mlp={"size": 64}, vocab_size=40, hidden_size=48, tied_head=tied))


def make_sources(graph: Graph) -> dict[str, Source]:
    rng = np.random.default_rng(0)
    return {w.name: Source(f"source.{w.name}", rng.normal(size=w.shape).astype(np.float32)) for w in graph.weights}


def make_choices(graph: Graph, scheme: str = "int4-g32-sym") -> dict[str, Choice]:
    return {w.name: Choice.of(scheme if len(w.shape) == 2 else "float32") for w in graph.weights}


def write(path: Path, graph: Graph, sources: Any, choices: dict[str, Choice]) -> list[float]:
    shares: list[float] = []
    write_weights(path, graph, {name: Plan(sources[name], choices[name]) for name in choices}, shares.append)
    return shares


def test_the_package_reads_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of a few rows, so that every weight is written in pieces."""
    monkeypatch.setattr(payload_writer, "_ENCODED_NUMBERS", 100)
    graph = make_graph()
    sources, choices = make_sources(graph), make_choices(graph)
    choices["embed"] = Choice.of("float16")
    sources["head"].scheme = Scheme(4, 64, "affine")
    choices["head"] = Choice.of("int4-g64-affine", "carry")
    shares = write(tmp_path / "w", graph, sources, choices)
    found = safetensors.numpy.load_file(tmp_path / "w")
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    for weight in graph.weights:
        values, choice = sources[weight.name].values, choices[weight.name]
        stored = str(choice.layout)
        if stored == "float32":
            np.testing.assert_array_equal(found[weight.name], values)
        elif stored == "float16":
            np.testing.assert_array_equal(found[weight.name], values.astype(np.float16))
        else:
            scheme = sources["head"].scheme if choice.methods == ("carry",) else SYM
            assert scheme is not None
            for part, expected in rtn.encode(scheme, values).items():
                np.testing.assert_array_equal(found[f"{weight.name}.{part}"], expected)
    padding = [values for name, values in found.items() if name.startswith("__pad.")]
    assert padding
    assert not any(values.any() for values in padding)


def test_siblings_lie_side_by_side_without_a_gap(tmp_path: Path) -> None:
    graph = make_graph()
    write(tmp_path / "w", graph, make_sources(graph), make_choices(graph))
    header = read_header(tmp_path / "w")
    assert all(info.start % 64 == 0 for name, info in header.items() if not name.startswith("__pad."))
    names = [name for name in header if not name.startswith("__pad.")]
    first = names.index("layers.0.attn.q.codes")
    assert names[first : first + 9] == [
        *(f"layers.0.attn.{part}.{kind}" for kind in ("codes", "scales") for part in "qkv"),
        *(f"layers.0.attn.{part}.bias" for part in "qkv"),
    ]
    # One matrix over the very same bytes: q, k and v together, 64 + 32 + 32 rows of 64 padded columns.
    assert header["layers.0.attn.v.codes"].stop - header["layers.0.attn.q.codes"].start == 128 * 32


def test_a_tied_head_is_written_once(tmp_path: Path) -> None:
    graph = make_graph(tied=True)
    write(tmp_path / "w", graph, make_sources(graph), make_choices(graph))
    names = list(read_header(tmp_path / "w"))
    assert sum("embed" in name for name in names) == 2  # codes and scales
    assert not any("head" in name for name in names)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight", ["embed", "layers.0.mlp.down", "norm", "layers.0.attn.q.bias"])
def test_numbers_that_are_not_finite_are_refused_by_name(weight: str, value: float, tmp_path: Path) -> None:
    graph = make_graph()
    sources = make_sources(graph)
    sources[weight].values[(-1,) * sources[weight].values.ndim] = value
    with pytest.raises(CheckpointError, match=f"tensor 'source.{weight}' holds numbers from"):
        write(tmp_path / "w", graph, sources, make_choices(graph))


@pytest.mark.parametrize("scheme", ["float16", "int4-g32-sym", "int4-g32-affine", "int8-g32-sym"])
def test_numbers_beyond_float16_are_refused_where_it_is_needed(scheme: str, tmp_path: Path) -> None:
    graph = make_graph()
    sources = make_sources(graph)
    sources["norm"].values[0] = 1e6  # stored as float32: no harm
    sources["layers.0.mlp.up"].values[1, 1] = 65504.0
    write(tmp_path / "w", graph, sources, make_choices(graph, scheme))
    sources["layers.0.mlp.up"].values[1, 1] = 66000.0
    with pytest.raises(CheckpointError, match=r"'source\.layers\.0\.mlp\.up' .* to 66000; .* up to 65504"):
        write(tmp_path / "w", graph, sources, make_choices(graph, scheme))
    write(tmp_path / "w", graph, sources, make_choices(graph, "float32"))


@pytest.mark.parametrize(("part", "kind"), [("scales", "sym"), ("scales", "affine"), ("offsets", "affine")])
def test_carried_scales_must_be_finite_too(part: str, kind: Any, tmp_path: Path) -> None:
    graph = make_graph()
    sources: dict[str, Any] = dict(make_sources(graph))
    scheme = Scheme(4, 32, kind)

    class Damaged(Source):
        def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
            parts = super().codes(start, stop)
            parts[part][0, 0] = np.inf
            return parts

    sources["head"] = Damaged("output.weight", sources["head"].values, scheme)
    choices = {**make_choices(graph), "head": Choice.of(scheme.name, "carry")}
    with pytest.raises(CheckpointError, match=r"'output\.weight' holds numbers from .* to inf"):
        write(tmp_path / "w", graph, sources, choices)


def test_u7_lacking_space_is_known_before_the_first_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph()

    def refuse(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, os.strerror(28))

    def unread(*_: Any) -> Any:
        raise AssertionError("no block may be read")

    size = sum(info.stop - info.start for info in read_header(_written(tmp_path, graph)).values())
    monkeypatch.setattr("os.posix_fallocate", refuse)
    monkeypatch.setattr(Source, "read", unread)
    with pytest.raises(StorageError, match=r"full: .* no room for it; at least \d+ bytes") as caught:
        write(tmp_path / "full", graph, make_sources(graph), make_choices(graph))
    needed = int(str(caught.value).split("at least ")[1].split()[0])
    assert size < needed < size + 20_000  # the tensors and their header


def _written(folder: Path, graph: Graph) -> Path:
    write(folder / "good", graph, make_sources(graph), make_choices(graph))
    return folder / "good"
