"""Charts as SVG: lines, stacked areas (with one or two vertical axes), and spans of time in rows.
Equal input gives equal bytes. A document is complete by itself, black on white; `inline` makes it a
part of a page, whose style sheet colours it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 78, 78, 48, 62
UNTITLED = 30  # what a chart is less high by, without its title
WIDE_LEFT, NARROW_RIGHT, ROW = 130, 20, 20
LABEL = 18  # characters of a row's label that are shown
# Colours that colour-blind people can tell apart, too (Okabe and Ito's palette).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b5b5b")

NO_CLASSES: Mapping[str, str] = {}
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """One line: (x, y) pairs. `right`: its y values belong to the right axis. `dots`: texts, one
    for each point, which gets a dot."""

    label: str
    points: Points
    right: bool = False
    dots: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a chart. `ticks`: (value, text) instead of round numbers; `log`: decades are
    equally wide; `moments`: its values are seconds since the epoch, which a page's script shows in
    the reader's time zone. `label_of`: returns the text for a value where a pointer shows the
    numbers; None: no numbers are shown. `least`: a value that the axis reaches at least."""

    title: str
    ticks: Sequence[tuple[float, str]] | None = None
    log: bool = False
    from_zero: bool = True
    moments: bool = False
    label_of: Callable[[float], str] | None = None
    least: float | None = None


def lines(title: str, drawn: Sequence[Line], x: Axis, y: Axis, y_right: Axis | None = None) -> str:
    """Return a chart of lines."""
    across = _Scale(x, [p[0] for line in drawn for p in line.points], LEFT, WIDTH - RIGHT)
    ups = [
        _Scale(
            axis,
            [p[1] for line in drawn if line.right == right for p in line.points],
            HEIGHT - BOTTOM,
            TOP,
        )
        for axis, right in ((y, False), (y_right or y, True))
    ]
    parts = [*_frame(title, across, ups[0], ups[1] if y_right else None)]
    for number, line in enumerate(drawn):
        up, colour = ups[line.right], COLOURS[number % len(COLOURS)]
        way = " ".join(f"{across(px):.1f},{up(py):.1f}" for px, py in line.points)
        dash = ' stroke-dasharray="7 4"' if line.right else ""
        parts.append(
            f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        for (px, py), text in zip(line.points, line.dots or (), strict=False):
            parts.append(f'<circle cx="{across(px):.1f}" cy="{up(py):.1f}" r="4" fill="{colour}"/>')
            parts.append(_text(across(px) + 7, up(py) - 7, text, "start"))
    series = [(line.label, line.points) for line in drawn]
    parts += _numbers(across, series, y, stacked=False)
    return _document([*parts, *_legend([line.label for line in drawn])])


def areas(
    title: str,
    stacked: Sequence[tuple[str, Points]],
    x: Axis,
    y: Axis,
    classes: Mapping[str, str] = NO_CLASSES,
) -> str:
    """Return a chart of areas on top of each other; all have the same x values. `classes`: CSS
    classes by label, by which a page's style sheet colours the areas."""
    where = [px for px, _ in stacked[0][1]]
    sums = [0.0] * len(where)
    levels = [list(sums)]
    for _, points in stacked:
        sums = [below + py for below, (_, py) in zip(sums, points, strict=True)]
        levels.append(list(sums))
    across, up = _Scale(x, where, LEFT, WIDTH - RIGHT), _Scale(y, levels[-1], HEIGHT - BOTTOM, TOP)
    parts = list(_frame(title, across, up, None))
    for number, ((label, _), (low, high)) in enumerate(
        zip(stacked, itertools.pairwise(levels), strict=True)
    ):
        rim = [*zip(where, high, strict=True), *reversed(list(zip(where, low, strict=True)))]
        way = " ".join(f"{across(px):.1f},{up(py):.1f}" for px, py in rim)
        parts.append(
            f'<polygon points="{way}" {_paint(number, label, classes)} fill-opacity="0.8">'
            f"<title>{escape(label)}</title></polygon>"
        )
    parts += _numbers(across, stacked, y, stacked=True)
    return _document([*parts, *_legend([label for label, _ in stacked], classes=classes)])


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time, of a sort (which decides its colour), and a text about it. `text`: a few
    characters in the bar; `link`: the target of a click."""

    start: float
    end: float
    sort: str
    about: str
    text: str = ""
    link: str = ""


def spans(
    title: str,
    rows: Sequence[tuple[str, Sequence[Span] | None]],
    x: Axis,
    *,
    window: tuple[float, float] | None = None,
    mark: tuple[float, str] | None = None,
    sorts: Sequence[str] = (),
    classes: Mapping[str, str] = NO_CLASSES,
) -> str:
    """Return a chart with a row of spans for each label. A row with None is a heading of the rows
    below it.

    window  the time that is shown: longer spans end in a point, or begin at its edge; None: all
    mark    a line across all rows, with its text
    sorts   all sorts, in the order of their colours; empty: in the order in which they come
    classes by sort, as of `areas`
    """
    every = [span for _, row in rows for span in row or ()]
    sorts = list(sorts or dict.fromkeys(span.sort for span in every))
    moments = window or [at for span in every for at in (span.start, span.end)]
    across = _Scale(x, moments, WIDE_LEFT, WIDTH - NARROW_RIGHT)
    floor = TOP + ROW * len(rows)
    parts = [_text(WIDTH / 2, 22, title, "middle", 15), *_below(across, floor)]
    parts += [
        f'<line x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{floor}" stroke="#dddddd"/>'
        for at in (across(value) for value, _ in across.ticks() if window)
    ]
    for place, (label, row) in enumerate(rows):
        y = TOP + ROW * place
        short = label if len(label) <= LABEL else label[: LABEL - 1] + "…"
        parts.append(
            _text(WIDE_LEFT - 8, y + ROW - 6, short, "end")
            if row is not None
            else f'<g font-weight="bold">{_text(8, y + ROW - 6, label, "start")}</g>'
        )
        for span in row or ():
            bar = _span(span, across, y, _paint(sorts.index(span.sort), span.sort, classes))
            parts.append(f'<a href="{escape(span.link)}">{bar}</a>' if span.link else bar)
    if mark:
        at = across(mark[0])
        parts += [
            (
                f'<line x1="{at:.1f}" y1="{TOP - 4}" x2="{at:.1f}" y2="{floor}" stroke="#333"'
                ' stroke-width="1.5"/>'
            ),
            _text(at, TOP - 7, mark[1], "middle"),
        ]
    return _document([*parts, *_legend(sorts, floor + BOTTOM, classes)], floor + BOTTOM)


def _paint(number: int, label: str, classes: Mapping[str, str]) -> str:
    """Return the attributes that colour the elements with that label, the `number`th."""
    colour = f'fill="{COLOURS[number % len(COLOURS)]}"'
    return f'{colour} class="{escape(classes[label])}"' if label in classes else colour


def _span(span: Span, across: _Scale, y: float, paint: str) -> str:
    start, end = across(max(span.start, across.low)), across(min(span.end, across.high))
    tip = f"<title>{escape(span.about)}</title>"
    if span.end > across.high:
        bar = (
            f'<path d="M{start:.1f} {y + 2}H{end:.1f}l6 {ROW / 2 - 2}l-6'
            f' {ROW / 2 - 2}H{start:.1f}z" {paint}>{tip}</path>'
        )
    else:
        bar = (
            f'<rect x="{start:.1f}" y="{y + 2}"'
            f' width="{max(end - start, 3 if span.start == span.end else 1):.1f}"'
            f' height="{ROW - 4}" {paint}>{tip}</rect>'
        )
    if not span.text:
        return bar
    # The text has its own background, because no single text colour is legible on all bars.
    wide = 6.6 * len(span.text) + 8
    if end - start < wide + 4:
        return bar
    return (
        f'{bar}<rect x="{start + 3:.1f}" y="{y + 4}" width="{wide:.1f}" height="{ROW - 8}" rx="3"'
        ' fill="#ffffff"'
        f' class="ground"/>{_text(start + 3 + wide / 2, y + ROW - 6, span.text, "middle", 11)}'
    )


def inline(document: str, about: str) -> str:
    """Return the drawing as an element of a page: without a background and a title of its own, as
    wide as there is room. `about`: the text for screen readers."""
    head, _ground, _title, rest = document.split("\n", 3)
    role = "group" if "<a href" in rest else "img"  # a picture's links would not be read out
    height = int(head.partition(' height="')[2].partition('"')[0]) - UNTITLED
    return (
        f'<svg class="chart" role="{role}" aria-label="{escape(about)}" '
        f'viewBox="0 {UNTITLED} {WIDTH} {height}">\n{rest}'
    )


# ---------------------------------------------------------------- parts


class _Scale:
    """Converts values to positions on the page."""

    def __init__(self, axis: Axis, values: Iterable[float], start: float, end: float) -> None:
        self.axis, self._start, self._end = axis, start, end
        self._f: Callable[[float], float] = (
            (lambda v: math.log10(max(v, 1e-9))) if axis.log else float
        )
        known = [*values, *(at for at, _ in axis.ticks or ())] or [0.0]
        low, high = min(known), max(known if axis.least is None else [*known, axis.least])
        if axis.log:
            low = 10 ** math.floor(self._f(max(low, 1e-3)))
            high = 10 ** math.ceil(self._f(max(high, 1e-3)))
        elif axis.ticks is None:
            low = min(low, 0.0) if axis.from_zero else low
            step = _step(high - low)
            low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        self.low, self.high = low, high if high > low else low + 1.0

    def __call__(self, value: float) -> float:
        part = (self._f(value) - self._f(self.low)) / (self._f(self.high) - self._f(self.low))
        return self._start + part * (self._end - self._start)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the (value, text) pairs of the axis's numbers."""
        if self.axis.ticks is not None:
            return list(self.axis.ticks)
        if self.axis.log:
            first, last = round(self._f(self.low)), round(self._f(self.high))
            return [(10.0**power, f"{10.0**power:g}") for power in range(first, last + 1)]
        step = _step(self.high - self.low)
        count = round((self.high - self.low) / step)
        return [
            (self.low + n * step, f"{round(self.low + n * step, 9):g}") for n in range(count + 1)
        ]


def _step(span: float) -> float:
    """Return a round number that goes four to ten times into `span`."""
    if span <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    return next(power * n for n in (1, 2, 5, 10) if span / (power * n) <= 10)


def _frame(title: str, across: _Scale, up: _Scale, right: _Scale | None) -> Iterable[str]:
    yield _text(WIDTH / 2, 22, title, "middle", 15)
    for value, text in up.ticks():
        place = up(value)
        yield (
            f'<line x1="{LEFT}" y1="{place:.1f}" x2="{WIDTH - RIGHT}" y2="{place:.1f}"'
            ' stroke="#dddddd"/>'
        )
        yield _text(LEFT - 8, place + 4, text, "end")
    yield from _below(across, HEIGHT - BOTTOM)
    if right is not None:
        for value, text in right.ticks():
            yield _text(WIDTH - RIGHT + 8, right(value) + 4, text, "start")
        yield _upright(WIDTH - 14, right.axis.title)
    yield f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#333"/>'
    zone = " data-zone" if across.axis.moments else ""
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield _text(middle, HEIGHT - BOTTOM + 38, across.axis.title, "middle", more=zone)
    yield _upright(18, up.axis.title)


def _below(across: _Scale, floor: float) -> Iterable[str]:
    for value, text in across.ticks():
        place = across(value)
        yield (
            f'<line x1="{place:.1f}" y1="{floor}" x2="{place:.1f}" y2="{floor + 5}" stroke="#333"/>'
        )
        at = f' data-at="{value:.0f}"' if across.axis.moments else ""
        yield _text(place, floor + 19, text, "middle", more=at)


def _numbers(
    across: _Scale, drawn: Iterable[tuple[str, Points]], y: Axis, *, stacked: bool
) -> Iterable[str]:
    """Yield invisible columns, each reaching halfway to the next, which show the numbers under a
    pointer. A page's script draws them anew, from the numbers in their data attribute."""
    if across.axis.label_of is None:
        return
    drawn = list(drawn)
    found: dict[float, list[str]] = {}
    for label, points in drawn:
        for at, value in points:
            found.setdefault(at, []).append(f"{label}: {round(value, 2):g}")
    places = sorted(found)
    by_place = [(label, {at: round(value, 3) for at, value in points}) for label, points in drawn]
    numbers = {
        "x": places,
        "series": [[label, [known.get(at) for at in places]] for label, known in by_place],
        "unit": y.title,
        "least": y.least,
        "stacked": stacked,
        "moments": across.axis.moments,
    }
    yield f'<g data-plot="{escape(json.dumps(numbers, separators=(",", ":")))}">'
    middles = [(across(low) + across(high)) / 2 for low, high in itertools.pairwise(places)]
    edges = [across(places[0]), *middles, across(places[-1])] if places else []
    for at, (start, end) in zip(places, itertools.pairwise(edges), strict=True):
        words = escape("\n".join([across.axis.label_of(at), *found[at]]))
        yield (
            f'<rect class="numbers" x="{start:.1f}" y="{TOP}" width="{end - start:.1f}"'
            f' height="{HEIGHT - BOTTOM - TOP}" fill="none" pointer-events="all">'
            f"<title>{words}</title></rect>"
        )
    yield "</g>"


def _legend(
    labels: Sequence[str], height: float = HEIGHT, classes: Mapping[str, str] = NO_CLASSES
) -> Iterable[str]:
    """Yield a square for each colour, with all labels of that colour."""
    coloured: dict[str, list[int]] = {}
    for number, label in enumerate(labels):
        coloured.setdefault(classes.get(label, f"number {number}"), []).append(number)
    place = float(LEFT)
    for first, *others in coloured.values():
        paint = _paint(first, labels[first], classes)
        text = ", ".join(labels[number] for number in (first, *others))
        yield f'<rect x="{place:.1f}" y="{height - 18}" width="12" height="10" {paint}/>'
        yield _text(place + 17, height - 9, text, "start")
        place += 34 + 6.6 * len(text)


def _text(x: float, y: float, text: str, anchor: str, size: int = 12, more: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"'
        f' text-anchor="{anchor}"{more}>{escape(text)}</text>'
    )


def _upright(x: float, text: str) -> str:
    y = (TOP + HEIGHT - BOTTOM) / 2
    return (
        f'<text x="{x}" y="{y}" font-size="12" text-anchor="middle" transform="rotate(-90 {x}'
        f' {y})">{escape(text)}</text>'
    )


def _document(parts: Iterable[str], height: int = HEIGHT) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" fill="#222">'
    )
    return "\n".join(
        [head, f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', *parts, "</svg>", ""]
    )
