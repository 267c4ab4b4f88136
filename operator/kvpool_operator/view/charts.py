"""Charts of the page, as SVG inside it: spans of seconds on a common logarithmic scale, and sums over time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvpool_operator.view.figures import seconds
from kvpool_operator.view.markup import Markup, joined, tag

WIDTH, ROW, LEFT, BOTTOM = 720, 26, 90, 18
HEIGHT = 160


@dataclass(frozen=True)
class Span:
    """A row: from the lowest to the highest of what was measured, with marks between, all in seconds."""

    name: str
    low: float
    high: float
    marks: Sequence[float]


@dataclass(frozen=True)
class Line:
    """One value for each point of time."""

    name: str
    values: Sequence[float]


def spans(rows: Sequence[Span]) -> Markup:
    """Spans below each other. Each has a low above 0."""
    first = math.floor(math.log10(min(row.low for row in rows)))
    last = max(first + 1, math.ceil(math.log10(max(row.high for row in rows))))

    def at(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - 20) * (math.log10(value) - first) / (last - first), 1)

    height = ROW * len(rows) + BOTTOM
    parts = []
    for power in range(first, last + 1):
        x = str(at(10.0**power))
        parts.append(tag("line", x1=x, x2=x, y1=0, y2=height - BOTTOM, class_="grid"))
        parts.append(tag("text", seconds(10.0**power), x=x, y=height - 4, class_="axis"))
    for number, row in enumerate(rows):
        y = ROW * number + 5
        low, high = at(row.low), at(row.high)
        parts.append(tag("text", row.name, x=0, y=y + 12))
        parts.append(
            tag("rect", x=str(low), y=y, width=str(max(1.0, round(high - low, 1))), height=ROW - 10, class_="span")
        )
        for mark in row.marks:
            x = str(at(mark))
            parts.append(tag("line", x1=x, x2=x, y1=y - 2, y2=y + ROW - 8, class_="mark"))
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {height}", role="img")


def over_time(lines: Sequence[Line], began: str, ended: str) -> Markup:
    """Lines over the same points of time, with a line at 0 and the highest and lowest value written beside it."""
    values = [value for line in lines for value in line.values]
    low, high = min(0.0, *values), max(0.0, *values)
    reach = high - low or 1.0

    def y(value: float) -> float:
        return round(10 + (HEIGHT - 20) * (high - value) / reach, 1)

    zero = str(y(0.0))
    parts = [tag("line", x1=LEFT, x2=WIDTH, y1=zero, y2=zero, class_="grid")]
    for value in dict.fromkeys((high, 0.0, low)):
        parts.append(tag("text", f"{value:.3g} s", x=0, y=str(y(value) + 4)))
    for number, line in enumerate(lines):
        step = (WIDTH - LEFT) / max(1, len(line.values) - 1)
        points = " ".join(f"{LEFT + step * n:.1f},{y(value)}" for n, value in enumerate(line.values))
        parts.append(tag("polyline", points=points, class_=f"line{number}"))
    parts.append(tag("text", began, x=LEFT, y=HEIGHT + BOTTOM - 4))
    parts.append(tag("text", ended, x=WIDTH, y=HEIGHT + BOTTOM - 4, class_="end"))
    names = [tag("span", f"▬ {line.name} ", class_=f"name{number}") for number, line in enumerate(lines)]
    drawn = tag("svg", *parts, viewBox=f"0 0 {WIDTH} {HEIGHT + BOTTOM}", role="img")
    return joined([tag("p", *names), drawn])
