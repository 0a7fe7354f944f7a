"""The torch backend on this machine's GPU: one command, at most eight minutes, a table and a line of JSON for a report.

    python -m benchmarks.device [--device cuda|mps|cpu] [--json FILE]

In turn, while time is left: the device's copy bandwidth; the conformance tests of the backend (with pytest, if it is
installed); the KL of the default model's logits against the reference on the CPU; prefill, decode, time to the first
token and memory of the default model and of bundles of 1.5B and 7B shape (random codes, every layer its own); the same
by the native engine, and the default model by llama-cpp-python, mlx-lm and onnxruntime-genai where they are installed
and have a model. What was not measured is named, with the reason.

`--layers`, `--prompt` and `--new` make it small enough for a dry run on a processor.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import device_peers, limits, models, shapes, tables
from edge.bundle import Bundle, open_bundle
from edge.engine import Engine
from edge.errors import EdgeError
from edge.kv import plan_layout
from edge.memory import peak_memory
from edge.options import GenerateOptions, RuntimeOptions
from edge.results import Request
from edge.runtime import Runtime, open_runtime, support
from edge.sampling import Sampler
from edge.session import Session
from edge.tokenizer import open_tokenizer
from exporters.distance import Distance
from exporters.reference import Reference

_RUNS, _CHUNK = 3, 1024
_SAMPLE = 512  # tokens whose logits are compared


@dataclass(frozen=True, slots=True)
class Speed:
    """A model on an engine: medians of some runs.

    share   the bytes of weights that decoding reads a second, over the device's copy bandwidth (which counts bytes read
            and written); None for engines whose bytes are not known
    """

    model: str
    engine: str
    prefill_tok_s: float
    decode_tok_s: float
    ttft_ms: float
    load_s: float
    memory_mb: float | None
    share: float | None = None


@dataclass(slots=True)
class Report:
    """What was measured, and why the rest was not."""

    machine: str
    device: str
    notes: list[str] = field(default_factory=list)
    copy_gb_s: float | None = None
    conformance: str = ""
    kl: dict[str, float] = field(default_factory=dict)
    speeds: list[Speed] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


class Clock:
    """The time that is left of the whole."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()


def main() -> int:
    options = _parser().parse_args()
    devices = support("torch").devices
    if not devices:
        raise SystemExit(support("torch").reason)
    device = options.device or devices[0]
    report = Report(tables.machine(), device)
    clock = Clock(60 * options.minutes)

    def run(what: str, seconds: float, call: Callable[[], None]) -> None:
        """One part, unless the time that it takes at least is not left; what goes wrong is a line of the report."""
        if clock.left < seconds:
            report.skipped.append(f"{what}: {max(0, clock.left):.0f} s are left, and it takes {seconds:.0f} at least")
            return
        print(f"{what} …", file=sys.stderr)
        try:
            call()
        except (EdgeError, RuntimeError, OSError, subprocess.SubprocessError) as error:
            report.skipped.append(f"{what}: {error}")

    run("copy bandwidth", 5, lambda: _copy(report, options.copy_mb << 20))
    run("conformance", 20, lambda: _conformance(report, min(120.0, clock.left / 3)))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        default: Bundle | None = None
        if not options.without_default:
            default = open_bundle(models.default_bundle(models.DEFAULT_RECIPE))
            run("KL", 40, partial(_kl, report, default, options.sample))
            for name in ("torch", "native"):
                run(f"smollm2 on {name}", 10, partial(_speed, report, default, "smollm2", name, options))
        for shape, seconds in (("1.5b", 20), ("7b", 60)):

            def shaped(shape: str = shape) -> None:
                path = Path(folder) / shape
                bundle = shapes.write(path, shapes.spec_of(shape, options.layers))
                for name in ("torch", "native"):
                    _speed(report, bundle, f"{shape} shape", name, options)
                bundle.weights.path.unlink()

            run(f"{shape} shape", seconds, shaped)
    if default is not None:
        for peer in device_peers.PEERS:
            run(peer.name, 20, partial(_peer, report, peer, options))
    _print(report, options)
    return 0


def _copy(report: Report, size: int) -> None:
    """Copy memory on the device, and count what is read and written."""
    import torch

    source = torch.ones(size // 4, device=report.device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(6):
        _wait(report.device)
        start = time.perf_counter()
        target.copy_(source)
        _wait(report.device)
        seconds.append(time.perf_counter() - start)
    report.copy_gb_s = 2 * source.nbytes / min(seconds[1:]) / 1e9


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def _conformance(report: Report, seconds: float) -> None:
    if importlib.util.find_spec("pytest") is None or importlib.util.find_spec("transformers") is None:
        report.conformance = "not run: pytest and transformers are needed"
        return
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/runtimes/torch"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=models.ROOT, timeout=seconds, check=False)
    report.conformance = f"exit code {done.returncode}: {(done.stdout.strip().splitlines() or ['no output'])[-1]}"


def _kl(report: Report, bundle: Bundle, count: int) -> None:
    """Against the reference on the bundle's own weights, on the beginning of the WikiText text."""
    text = (Path(__file__).parent / "wikitext2-test.txt").read_text(encoding="utf-8")
    ids = open_tokenizer(bundle).encode(text)[:count]
    reference = Reference(bundle.graph, bundle.weights.read, context=count)
    distance = Distance()
    with closing(_open(bundle, "torch", report.device, context=count, chunk=128)) as runtime:
        session = Session(runtime)
        for start in range(0, count, 128):
            part = ids[start : start + 128]
            distance.add(reference.run(part), session.step(part, "all"), ids, start)
        report.notes += runtime.notes
    report.kl = {"mean": distance.mean_kl, "p99": distance.p99_kl, "top1": distance.top1, "tokens": float(count)}


def _open(bundle: Bundle, name: str, device: str, *, context: int, chunk: int) -> Runtime:
    options = RuntimeOptions(runtime=name, device=device if name == "torch" else "cpu", chunk=chunk)
    return open_runtime(bundle, plan_layout(bundle.spec, context, chunk=chunk), options)


def _speed(report: Report, bundle: Bundle, model: str, name: str, options: argparse.Namespace) -> None:
    """Through the engine, with its bookkeeping, and tokens drawn greedily where the backend draws them."""
    if not support(name).devices:
        report.skipped.append(f"{model} on {name}: {support(name).reason}")
        return
    start = time.perf_counter()
    context = min(bundle.spec.context, options.prompt + options.new)
    before = _forget_peak(report.device)
    with closing(_open(bundle, name, report.device, context=context, chunk=min(_CHUNK, options.prompt))) as runtime:
        load_s = time.perf_counter() - start
        runs = [_answer(runtime, options.prompt, options.new, seed) for seed in range(_RUNS + 1)][1:]
        memory = _peak(report.device) if name == "torch" and before else peak_memory()
    prefill, decode = (float(np.median([run[i] for run in runs])) for i in (0, 1))
    share = None
    if name == "torch" and report.copy_gb_s:
        read = limits.weights_read(bundle.graph, bundle.weights.size)
        share = read * options.new / decode / (report.copy_gb_s * 1e9)
    engine = f"dsedge {name} ({runtime.device})"
    megabytes = None if memory is None else memory / 1e6
    rates = (options.prompt / prefill, options.new / decode, 1000 * prefill)
    report.speeds.append(Speed(model, engine, *rates, load_s, megabytes, share))


def _answer(runtime: Runtime, prompt: int, new: int, seed: int) -> tuple[float, float]:
    """Seconds to the first token, and of `new - 1` more, counted as `new`: of a prompt that no other begins like."""
    vocab = runtime.spec.vocab_size
    ids = np.random.default_rng(seed).integers(0, vocab, prompt).tolist()
    generate = GenerateOptions(max_tokens=new, ignore_eos=True, temperature=0.0)
    engine = Engine(runtime)
    request = Request(tuple(ids), (), vocab, generate, threading.Event(), {})
    start = time.perf_counter()
    answer = engine.add(request, Sampler(generate, vocab, core=runtime.capabilities.sampling))
    while not answer.made:
        engine.step()
        if answer.end is not None and answer.end.error is not None:
            raise answer.end.error
    first = time.perf_counter()
    while engine.step() or engine.answers:
        pass
    engine.forget()
    return first - start, (time.perf_counter() - first) * new / max(1, new - 1)


def _forget_peak(device: str) -> bool:
    """Whether the device tells the most memory that was in use; from now on."""
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    return device in ("cuda", "mps")


def _peak(device: str) -> int:
    import torch

    return torch.cuda.max_memory_allocated() if device == "cuda" else torch.mps.driver_allocated_memory()


def _peer(report: Report, peer: device_peers.Peer, options: argparse.Namespace) -> None:
    if importlib.util.find_spec(peer.module) is None:
        report.skipped.append(f"{peer.name}: not installed")
        return
    model = getattr(options, peer.option) if peer.option else str(models.default_source())
    if not model:
        report.skipped.append(f"{peer.name}: needs a model of its own format: --{peer.option} PATH")
        return
    load_s, prefill, decode = peer.measure(model, options.prompt, options.new)
    rates = (options.prompt / prefill, options.new / decode, 1000 * prefill)
    report.speeds.append(Speed("smollm2", peer.name, *rates, load_s, None))


def _print(report: Report, options: argparse.Namespace) -> None:
    head = ("", "engine", "prefill tok/s", "decode tok/s", "TTFT ms", "load s", "memory MB", "of copy bandwidth")
    rows = tuple(
        (
            item.model, item.engine, f"{item.prefill_tok_s:.1f}", f"{item.decode_tok_s:.1f}", f"{item.ttft_ms:.1f}",
            f"{item.load_s:.1f}", "" if item.memory_mb is None else f"{item.memory_mb:.0f}",
            "" if item.share is None else f"{item.share:.0%}",
        )
        for item in report.speeds
    )  # fmt: skip
    copied = "not measured" if report.copy_gb_s is None else f"{report.copy_gb_s:.1f} GB/s (read and written)"
    kl = ", ".join(f"{name} {value:.5g}" for name, value in report.kl.items()) or "not measured"
    notes = (
        f"{report.machine}; {options.prompt} + {options.new} tokens, the median of {_RUNS} runs",
        f"copy bandwidth: {copied}",
        f"conformance: {report.conformance or 'not run'}",
        f"KL against the reference: {kl}",
        *report.notes,
        *(f"not measured: {item}" for item in report.skipped),
    )
    tables.show([tables.Table(f"torch on {report.device}", head, rows, notes)], markdown=options.markdown)
    line = json.dumps(asdict(report))
    if options.json:
        Path(options.json).write_text(line + "\n", encoding="utf-8")
    else:
        print(line)


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("--device", help="of the torch backend [the first of `dsedge doctor`]")
    parser.add_argument("--json", metavar="FILE", help="write the line of JSON there, not to stdout")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which nothing new begins [8]")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt [512]")
    parser.add_argument("--new", type=int, default=128, help="tokens after it [128]")
    parser.add_argument("--sample", type=int, default=_SAMPLE, help=f"tokens whose logits are compared [{_SAMPLE}]")
    parser.add_argument("--layers", type=int, help="of the shapes [28]")
    parser.add_argument("--copy-mb", type=int, default=1024, help="copied on the device [1024]")
    parser.add_argument("--folder", help="for the shapes' bundles, 6 GB at a time [the system's]")
    parser.add_argument("--without-default", action="store_true", help="leave out the default model, which is fetched")
    parser.add_argument("--mlx", metavar="PATH", help="SmolLM2 in 4 bits for mlx-lm")
    parser.add_argument("--genai", metavar="PATH", help="SmolLM2 in int4 for onnxruntime-genai")
    return parser


if __name__ == "__main__":
    sys.exit(main())
