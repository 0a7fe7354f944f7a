"""The quality report as one HTML page that needs nothing else: no script, no font, no file, no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from edge import texts
from edge.measured import Costs, Measured, Measurement
from edge.quality import Comparison, QualityReport
from exporters.report.charts import Column, bars, figure, heat_map, lines

_STYLE = Path(__file__).parent / "page.css"
_HEAD = (
    "text", "tokens", "keys and values", "perplexity", "other's", "mean KL", "99% KL", "top 1", "top 5", "copied",
    "greedy agrees",
)  # fmt: skip
_ROLES = {"embed": "embedding", "key_up": "key up", "value_up": "value up"}


def render(report: QualityReport, name: str) -> str:
    """The page of a report on the model `name`; the same report gives the same text."""
    body = "\n".join(_sections(report, name))
    style = texts.read(_STYLE)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)}: quality</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _sections(report: QualityReport, name: str) -> Iterator[str]:
    measured = report.measured
    yield f"<h1>{escape(name)}</h1>"
    if measured is not None:
        against = f" Everything is set against {_called(measured.other)}." if measured.other else ""
        yield f"<p>Measured as the runtime <b>{escape(measured.runtime)}</b> runs it.{against}</p>"
    yield _tiles(report)
    if measured is not None:
        yield from _measured(measured)
    if report.costs is not None:
        yield from _costs(report.costs)
    yield from _stored(report)
    yield from _compared(report)
    if measured is not None:
        yield from _texts(measured)
    if report.notes:
        yield "<h2>Notes</h2>" + "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in report.notes) + "</ul>"


def _called(other: str) -> str:
    return "the source's float32 weights" if other == "source" else f"the bundle {escape(other)}"


def _tiles(report: QualityReport) -> str:
    told: dict[str, str] = {}
    rows = [(row, row.against) for row in report.measured.short() if row.against] if report.measured else []
    if rows:
        told["mean KL, nats a token"] = f"{sum(found.mean_kl for _, found in rows) / len(rows):.4f}"
        told["same most likely token"] = f"{sum(found.top1 for _, found in rows) / len(rows):.1%}"
        ratios = [row.perplexity / found.perplexity for row, found in rows]
        told["perplexity over the other's"] = f"{sum(ratios) / len(ratios) - 1:+.1%}"
    if report.schemes:
        told["bits a weight"] = f"{report.bits:.2f}"
        told["weights"] = f"{report.size / 1e6:.1f} MB"
    tiles = "".join(f"<div><b>{value}</b><span>{title}</span></div>" for title, value in told.items())
    return f'<div class="tiles">{tiles}</div>' if tiles else ""


def _label(row: Measurement) -> str:
    return f"{row.text}, {row.length} tokens" + ("" if row.kv == "auto" else f", {row.kv} KV")


def _measured(measured: Measured) -> Iterator[str]:
    yield "<h2>On texts</h2>"
    yield _table(_HEAD, [_row(row) for row in measured.rows], left=3)
    for name, reason in measured.refused.items():
        yield f"<p>{escape(name)} was not measured: {escape(reason)}</p>"
    yield (
        "<p class='small'>KL, top 1 and top 5 count from position 64 of a sample on. <i>copied</i>: numbers and "
        "identifiers that stood in the sample before and are predicted again token by token: this model's share, then "
        "the other's. <i>greedy agrees</i>: tokens of a greedy answer of 64 before the first one that the other model "
        "would not have taken. Behind a type of keys and values is the number of its layers.</p>"
    )
    compared = {_label(row): row.against for row in measured.rows if row.against is not None}
    if compared:
        yield "<h3>Mean KL, nats a token</h3>" + bars({name: found.mean_kl for name, found in compared.items()})
        series = {
            _label(row): {float(end): kl for end, kl in row.against.kl_by_position.items()}
            for row in measured.rows
            if row.against is not None and row.kv == "auto"
        }
        yield "<h3>Mean KL by position in the sample</h3>" + lines(series, "up to this position")


def _row(row: Measurement) -> tuple[str, ...]:
    several = len(row.kept) > 1
    kept = ", ".join(f"{dtype} ({layers})" if several else dtype for dtype, layers in row.kept.items())
    own = (row.text, f"{row.tokens // row.length} × {row.length}", kept, f"{row.perplexity:.2f}")
    found = row.against
    if found is None:
        return (*own, *[""] * (len(_HEAD) - len(own)))
    copies, greedy = found.copies, found.greedy
    return (
        *own, f"{found.perplexity:.2f}", f"{found.mean_kl:.4f}", f"{found.p99_kl:.2f}", f"{found.top1:.1%}",
        f"{found.top5:.1%}", f"{copies.own:.1%}, {copies.other:.1%}" if copies else "",
        f"{greedy.agreed:.1f}" if greedy else "",
    )  # fmt: skip


def _costs(costs: Costs) -> Iterator[str]:
    yield "<h2>What costs what</h2>"
    yield (
        f"<p class='small'>Mean KL in nats a token over {costs.tokens} tokens, where only this part of the weights is "
        "the bundle's and everything else the source's.</p>"
    )
    kinds = {_ROLES.get(kind, kind.replace("_", " ")): cost for kind, cost in costs.kinds.items()}
    yield "<h3>Kinds of matrices</h3>" + bars(dict(sorted(kinds.items(), key=lambda item: -item[1])))
    if costs.layers:
        columns = [
            Column("attn", tuple(layer.attention for layer in costs.layers)),
            Column("mlp", tuple(layer.mlp for layer in costs.layers)),
        ]
        for stem, each in (("q", [layer.heads for layer in costs.layers]), ("kv", [x.kv_heads for x in costs.layers])):
            for index in range(max(map(len, each))):
                values = tuple(heads[index] if index < len(heads) else 0.0 for heads in each)
                columns.append(Column(f"{stem}{index}", values, gap=index == 0))
        yield "<h3>Layers and heads</h3>" + heat_map(columns, "layer")
        yield (
            "<p class='small'>A row is a layer. <i>attn</i> and <i>mlp</i> are its branches, <i>q</i> the query heads "
            "with their columns of the output matrix, <i>kv</i> the heads of keys and values; strong colours cost more,"
            " each group of columns in its own scale.</p>"
        )


def _stored(report: QualityReport) -> Iterator[str]:
    if report.schemes:
        yield "<h2>How weights are stored</h2>"
        rows = [
            (name, str(use.tensors), str(use.carried), f"{use.parameters / 1e6:.2f} M", f"{use.bytes / 1e6:.2f} MB",
             f"{8 * use.bytes / use.parameters:.2f}" if use.parameters else "")
            for name, use in report.schemes.items()
        ]  # fmt: skip
        yield _table(("scheme", "tensors", "codes carried over", "weights", "size", "bits a weight"), rows)


def _compared(report: QualityReport) -> Iterator[str]:
    parity = report.parity
    if parity is None:
        return
    yield f"<h2>Runtimes, on {parity.tokens} tokens</h2>"
    rows: list[tuple[str, Comparison | None]] = [("weights against the source's", parity.source)]
    for name, found in parity.runtimes.items():
        rows += [
            (f"{name}, exact activations, against the reference", found.exact),
            (f"{name} against the reference", found.used),
            (f"{name} against the source's weights", found.total),
        ]
    cells = [(name, figure(x.mean_kl), f"{x.top1:.1%}", figure(x.max_diff)) for name, x in rows if x is not None]
    yield _table(("logits of", "mean KL", "top 1", "largest difference"), cells)
    for name, reason in parity.refused.items():
        yield f"<p>{escape(name)} was not compared: {escape(reason)}</p>"


def _texts(measured: Measured) -> Iterator[str]:
    yield "<h2>The texts</h2>"
    rows = [(name, text.source, text.license, text.sha256[:16]) for name, text in measured.texts.items()]
    yield _table(("text", "source", "license", "SHA-256"), rows, left=4)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """The first `left` columns are words, the others figures."""
    titles = "".join(f"<th{_side(index, left)}>{escape(title)}</th>" for index, title in enumerate(head))
    lines = "".join(
        "<tr>" + "".join(f"<td{_side(index, left)}>{escape(cell)}</td>" for index, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>'


def _side(index: int, left: int) -> str:
    return ' class="words"' if index < left else ""
