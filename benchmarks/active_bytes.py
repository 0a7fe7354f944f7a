"""How much of a mixture of experts' weights decoding a token touches, beside what it has to read.

    python -m benchmarks.active_bytes [--layers 3]

A bundle of DeepSeek-V2-Lite's shape (16B parameters at 27 layers, 2.4B of them active) with few layers and random
codes is opened on the native engine. The system then says which pages of the weights one decoded token has touched
(Linux, pages of 4 KiB, /proc/self/clear_refs): every byte that was read lies in one of them.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import limits
from edge import bundle as bundles
from edge.bundle import Bundle, Manifest, TokenizerInfo
from edge.decoder import DecoderSpec, RopeSpec
from edge.graph import build
from edge.kv import plan_layout
from edge.layers import Dense, LayerSpec, Mla, Moe
from edge.ops import Weight
from edge.options import RuntimeOptions
from edge.payload import Scheme, parse_scheme
from edge.runtime import open_runtime
from edge.session import Session
from exporters.payload_writer import Plan, write_weights
from exporters.quant.recipe import load

_NO_HUGE_PAGES = 41  # prctl's PR_SET_THP_DISABLE
_REFERENCED = re.compile(r"^Size: +(\d+) kB$.*?^Referenced: +(\d+) kB$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Random:
    """A source of random codes, or of random numbers for what is not quantized."""

    name: str
    shape: tuple[int, ...]
    scheme: Scheme | None
    dtype: str = "random"
    note: str = ""

    def read(self, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        rows = (self.shape[0] if stop is None else stop) - start
        return np.random.default_rng(start).normal(0, 0.02, (rows, *self.shape[1:])).astype(np.float32)

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, npt.NDArray[Any]]:
        assert self.scheme is not None
        rows, random = (self.shape[0] if stop is None else stop) - start, np.random.default_rng(start)
        return {
            part: random.integers(0, 256, shape, np.uint8) if dtype == "U8" else np.full(shape, 0.003, np.float16)
            for part, (dtype, shape) in self.scheme.parts(rows, self.shape[1]).items()
        }


def lite(layers: int) -> DecoderSpec:
    """DeepSeek-V2-Lite's config.json with fewer layers, the first of them dense."""
    attention = Mla(16, None, 512, 128, 64, 128, 192**-0.5)
    moe = Moe(64, 6, 1408, shared_size=2816)
    kinds = (LayerSpec(attention, Dense(10944) if index == 0 else moe) for index in range(layers))
    return DecoderSpec("deepseek_v2", 102400, 2048, tuple(kinds), (RopeSpec(64, 1e4),), 4096, 1e-6)


def make(folder: Path, spec: DecoderSpec) -> Bundle:
    graph, recipe = build(spec), load("sub1b")
    plans = {}
    for weight in graph.weights:
        plain = Random(weight.name, weight.stored, None)
        chosen = str(recipe.choose(weight, plain).layout)
        source = Random(weight.name, weight.stored, parse_scheme(chosen))
        plans[weight.name] = Plan(source, recipe.choose(weight, source))
    write_weights(folder / bundles.WEIGHTS, graph, plans, lambda share: None)
    schemes = {name: str(plan.choice.layout) for name, plan in plans.items()}
    manifest = Manifest(
        name="lite", spec=spec, schemes={name: scheme for name, scheme in schemes.items() if scheme != "float32"},
        recipe={}, tokenizer=TokenizerInfo(None, (0,), {}, False, {}), graphs={}, kv={}, toolchain={},
    )  # fmt: skip
    return Bundle(folder, manifest)


def touched() -> int:
    """Bytes of the largest map of this process, its weights, that were touched since `forget`."""
    maps = [(int(size), int(kib)) for size, kib in _REFERENCED.findall(Path("/proc/self/smaps").read_text())]
    return max(maps)[1] * 1024


def forget() -> None:
    Path("/proc/self/clear_refs").write_text("1")


def active(bundle: Bundle) -> int:
    """Bytes that a token has to read: every weight but the embedding and the experts that were not chosen."""
    embedding: Weight = bundle.graph.weights[0]
    row = bundle.weights.size(embedding.name) // embedding.shape[0]
    return limits.weights_read(bundle.graph, bundle.weights.size) + row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3)
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(_NO_HUGE_PAGES, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        bundle = make(Path(folder), lite(args.layers))
        runtime = open_runtime(bundle, plan_layout(bundle.spec, 64, chunk=16), RuntimeOptions(runtime="native"))
        session = Session(runtime)
        session.feed(list(range(3, 19)))
        shares = []
        for token in range(8):
            forget()
            session.feed([100 + token])
            shares.append(touched() / active(bundle))
        whole = sum(bundle.weights.size(weight.name) for weight in bundle.graph.weights)
        print(f"{args.layers} layers: payload {whole / 1e6:.0f} MB, active {active(bundle) / 1e6:.1f} MB a token")
        print(f"touched, of the active bytes: {min(shares):.3f} to {max(shares):.3f}, median {np.median(shares):.3f}")
        runtime.close()


if __name__ == "__main__":
    main()
