"""What each context policy keeps of a long text, and what that costs.

    python -m benchmarks.policies --text FILE [BUNDLE]

Needles: a sentence with a number is put at some share of a text of so many tokens, which a question follows;
two such numbers, and how many of them come back. Perplexity, rates and memory: of the text's tokens that lie behind the
context. `spill` has the model's own context, so it is what the model can do; the others have `--context`. Each is
measured in a process of its own, on one thread, in processor time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import models, tables, wikitext
from edge.kv.policies import POLICIES

PLACES = (0.1, 0.5, 0.9)


def main() -> int:
    options = _parser().parse_args()
    machine = tables.machine()
    bundle = options.bundle or models.default_bundle(models.DEFAULT_RECIPE)
    lengths = options.length or [400, 1024, 2048]
    asked = {
        "runtime": options.runtime, "context": options.context, "tokens": options.tokens, "new": options.new,
        "text": wikitext.read(options.text)[: 8 * options.tokens + 20_000], "lengths": lengths, "places": PLACES,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "asked.json"
        path.write_text(json.dumps(asked), encoding="utf-8")
        found = {
            name: json.loads(
                models.output_of([sys.executable, "-m", "benchmarks.workers.policy", str(bundle), name, str(path)])
            )
            for name in options.policy or POLICIES
        }
    title = f"{bundle.stem}, {options.runtime}: policies with a context of {options.context}"
    notes = (f"Of {options.tokens} tokens, those behind the context; {options.new} of them more were decoded.", machine)
    shown = [needle_table(found, lengths, title), cost_table(found, title, notes)]
    tables.show(shown, markdown=options.markdown)
    return 0


def needle_table(found: Mapping[str, Mapping[str, Any]], lengths: list[int], title: str) -> tables.Table:
    head = ("policy", *(f"{length} at {place:.0%}" for length in lengths for place in PLACES))
    rows = tuple(
        (name, *(_count(of["needles"][f"{length} {place}"]) for length in lengths for place in PLACES))
        for name, of in found.items()
    )
    return tables.Table(f"{title}: needles found of 2", head, rows)


def cost_table(found: Mapping[str, Mapping[str, Any]], title: str, notes: tuple[str, ...]) -> tables.Table:
    head = (
        "policy",
        "tokens",
        "dropped",
        "perplexity",
        "prefill tok/s",
        "decode tok/s",
        "KV MB",
        "own MB",
        "mapped MB",
    )
    rows = tuple(
        (
            name, str(of["tokens"]), str(of["dropped"]), _figure(of["perplexity"], 2), _figure(of["prefill"], 0),
            _figure(of["decode"], 0), f"{of['held'] / 1e6:.1f}", f"{of['own'] / 1e6:.0f}", f"{of['file'] / 1e6:.0f}",
        )
        for name, of in found.items()
    )  # fmt: skip
    return tables.Table(f"{title}: behind the context", head, rows, notes)


def _count(found: int | None) -> str:
    return "refused" if found is None else str(found)


def _figure(value: float | None, digits: int) -> str:
    return "refused" if value is None else f"{value:.{digits}f}"


def _parser() -> argparse.ArgumentParser:
    parser = tables.parser(__doc__)
    parser.add_argument("bundle", metavar="BUNDLE", nargs="?", type=Path, help="a bundle's folder [the default model]")
    parser.add_argument("--text", type=Path, required=True, help="a long text, such as WikiText-2's test set")
    parser.add_argument("--policy", action="append", choices=[*POLICIES], help="repeatable [all]")
    parser.add_argument("--runtime", default="auto", help="a backend of dsedge [auto]")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--length", type=int, action="append", help="tokens of a text with a needle [400 1024 2048]")
    parser.add_argument("--tokens", type=int, default=4096, help="of the text that is read, up to 16384 [4096]")
    parser.add_argument("--new", type=int, default=64, help="tokens that are decoded behind it [64]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
