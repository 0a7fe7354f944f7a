"""Charts as inline SVG: bars, lines and a heat map. Colours are CSS variables of the page, which has two themes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 560, 260
_PLOT = (56, 12, 44, 16)  # left, top, bottom, right of a plot of lines
_HEIGHT = 260


def figure(value: float) -> str:
    """Four digits at most, without needless zeros."""
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def bars(values: Mapping[str, float]) -> str:
    """A bar a name, as long as its value."""
    most = max(values.values(), default=0.0) or 1.0
    rows = "".join(
        f'<dt>{escape(name)}</dt><dd><i style="width:{80 * max(value, 0.0) / most:.2f}%"></i>{figure(value)}</dd>'
        for name, value in values.items()
    )
    return f'<dl class="bars">{rows}</dl>'


def lines(series: Mapping[str, Mapping[float, float]], x_title: str) -> str:
    """Lines over a doubling x axis, from 0 up, with a legend."""
    left, top, bottom, right = _PLOT
    xs = sorted({x for points in series.values() for x in points})
    step = _step(max((y for points in series.values() for y in points.values()), default=0.0))
    most = 4 * step
    low, span = math.log2(xs[0]), max(math.log2(xs[-1]) - math.log2(xs[0]), 1e-9)

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + (_WIDTH - left - right) * (math.log2(x) - low) / span
        return across, top + (_HEIGHT - top - bottom) * (1 - y / most)

    parts = []
    for tick in range(5):
        _, y = place(xs[0], tick * step)
        parts.append(f'<line class="grid" x1="{left}" x2="{_WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="name" x="{left - 8}" y="{y + 4:.1f}">{figure(tick * step)}</text>')
    for x in xs:
        parts.append(f'<text class="tick" x="{place(x, 0)[0]:.1f}" y="{_HEIGHT - bottom + 16}">{x:g}</text>')
    parts.append(f'<text class="tick" x="{(left + _WIDTH - right) / 2}" y="{_HEIGHT - 6}">{escape(x_title)}</text>')
    for number, (name, points) in enumerate(series.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in sorted(points.items())))
        dots = "".join(
            f'<circle cx="{place(x, y)[0]:.1f}" cy="{place(x, y)[1]:.1f}" r="3"><title>{escape(name)}, {x:g}: '
            f"{figure(y)}</title></circle>"
            for x, y in points.items()
        )
        parts.append(f'<g class="line s{number % 6}"><polyline points="{path}"/>{dots}</g>')
    return _svg(_WIDTH, _HEIGHT, "".join(parts)) + _legend(list(series))


def _step(most: float) -> float:
    """The least of 1, 2, 2.5, 5 and their tenfolds of which four reach `most`."""
    if not most > 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(most / 4))
    return min(factor * power for factor in (1, 2, 2.5, 5, 10) if 4 * factor * power >= most * (1 - 1e-9))


def _legend(names: Sequence[str]) -> str:
    items = "".join(f'<li class="s{number % 6}">{escape(name)}</li>' for number, name in enumerate(names))
    return f'<ul class="legend">{items}</ul>'


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a heat map, the widths of which are equal; `gap` leaves room before it."""

    title: str
    values: tuple[float, ...]
    gap: bool = False


def heat_map(columns: Sequence[Column], row_title: str) -> str:
    """A row for each number of the columns. Shades go by the square root of a value, in one scale for the columns that
    follow without a gap."""
    cell, tall, left, top, gap = 34, 18, 44, 22, 16
    scales: list[float] = []
    for column in columns:
        most = max(column.values, default=0.0)
        if column.gap or not scales:
            scales.append(0.0)
        scales[-1] = max(scales[-1], most)
    parts, x, group = [], float(left), 0
    rows = max((len(column.values) for column in columns), default=0)
    for number, column in enumerate(columns):
        if column.gap and number:
            x, group = x + gap, group + 1
        parts.append(f'<text class="tick" x="{x + cell / 2}" y="{top - 8}">{escape(column.title)}</text>')
        for row, value in enumerate(column.values):
            shade = math.sqrt(max(value, 0.0) / scales[group]) if scales[group] else 0.0
            parts.append(
                f'<rect class="cell" x="{x}" y="{top + row * tall}" width="{cell - 1}" height="{tall - 1}" '
                f'fill-opacity="{0.04 + 0.96 * shade:.3f}"><title>{escape(row_title)} {row}, {escape(column.title)}: '
                f"{figure(value)}</title></rect>"
            )
        x += cell
    parts += [f'<text class="name" x="{left - 8}" y="{top + row * tall + 13}">{row}</text>' for row in range(rows)]
    return _svg(x + 4, top + rows * tall + 4, "".join(parts))


def _svg(width: float, height: float, inner: str) -> str:
    return (
        f'<div class="chart"><svg viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px;'
        f'min-width:{min(width, 360):g}px" role="img">{inner}</svg></div>'
    )
