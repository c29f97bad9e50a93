"""Views as data: numbers, time series, bars, tables, points, maps, graphs, notes.

An app's panels return these; how they look is the page's business, and the page puts every text in as
text, so nothing that came with an event can become markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

#: How a number or a row is meant; the page gives it a colour *and* a word or a sign.
Tone = Literal["plain", "good", "warn", "bad"]
#: How a value is written: as it is, with thousands separators, as a share, as a time, …
Kind = Literal["text", "count", "number", "share", "money", "time", "duration", "key"]
Cell = str | int | float | bool | None


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """One figure.

    Attributes:
        label: What it is.
        value: The figure; ``None``: not known.
        kind: How it is written; a duration is in milliseconds, a time in UTC milliseconds.
        unit: What stands behind it.
        note: What else is to be said, in small print.
        tone: How it is meant.
    """

    label: str
    value: Cell
    kind: Kind = "number"
    unit: str = ""
    note: str = ""
    tone: Tone = "plain"


class Numbers(msgspec.Struct, frozen=True, tag="numbers"):
    """Figures side by side."""

    items: tuple[Number, ...]


class Series(msgspec.Struct, frozen=True):
    """One line of a chart.

    Attributes:
        name: What it is.
        points: Time (UTC milliseconds), or what else is along the axis, and value, in order of it; a value
            of ``None`` is a gap.
        look: How it is drawn: as a line, dashed (what is expected), or as a limit.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    look: Literal["line", "dashed", "limit"] = "line"


class Band(msgspec.Struct, frozen=True):
    """What lies between two lines of a chart, e.g. an interval around what is expected.

    Attributes:
        name: What it is.
        points: Time, or what else is along the axis, and lower and upper value, in order of it; ``None`` is a
            gap.
    """

    name: str
    points: Sequence[tuple[float, float | None, float | None]]


class TimeSeries(msgspec.Struct, frozen=True, tag="series", kw_only=True):
    """Lines over time, or over another figure.

    Attributes:
        series: The lines.
        kind: How values are written.
        unit: What stands behind them.
        from_zero: Whether the axis begins at zero.
        clock: Whether the times are those of events or of the wall clock; the page says which.
        x_kind: How what is along the axis is written.
        x_label: What it is, where it is not a time.
        bands: What is filled behind the lines.
    """

    series: tuple[Series, ...]
    kind: Kind = "number"
    unit: str = ""
    from_zero: bool = True
    clock: Literal["wall clock", "event time"] = "wall clock"
    x_kind: Kind = "time"
    x_label: str = ""
    bands: tuple[Band, ...] = ()


class Bar(msgspec.Struct, frozen=True):
    """One bar.

    Attributes:
        label: What it is.
        value: How long it is, from 0 on.
        note: What stands behind it besides the value.
        tone: How it is meant.
    """

    label: str
    value: float
    note: str = ""
    tone: Tone = "plain"


class Bars(msgspec.Struct, frozen=True, tag="bars", kw_only=True):
    """Bars below each other, in the given order."""

    bars: tuple[Bar, ...]
    kind: Kind = "count"
    unit: str = ""


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    Attributes:
        name: Its heading.
        kind: How values are written; ``key`` makes them links to the detail view.
    """

    name: str
    kind: Kind = "text"


class Offer(msgspec.Struct, frozen=True):
    """One of the page's actions, offered for a row.

    Attributes:
        action: Its name.
        values: What its form starts from: field → value.
    """

    action: str
    values: dict[str, str] = {}


class Table(msgspec.Struct, frozen=True, tag="table", kw_only=True):
    """Rows.

    Attributes:
        columns: The columns.
        rows: A value per column.
        tones: How each row is meant; empty: all plain.
        actions: Per row, what can be done with it; empty: nothing with any.
        more: How many rows there are besides.
        page: How many rows are shown at a time, with a way to the others; 0: all.
        choose: Name of a column by whose values rows can be chosen; empty: none.
    """

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    tones: Sequence[Tone] = ()
    actions: Sequence[Sequence[Offer]] = ()
    more: int = 0
    page: int = 0
    choose: str = ""


class Point(msgspec.Struct, frozen=True):
    """A point of a map or a scatter plot.

    Attributes:
        x: To the right; on a map the longitude.
        y: Upwards; on a map the latitude.
        label: What is said of it.
        size: Relative size, 1 the usual.
        tone: How it is meant.
    """

    x: float
    y: float
    label: str = ""
    size: float = 1.0
    tone: Tone = "plain"


class Points(msgspec.Struct, frozen=True, tag="points", kw_only=True):
    """Points on a plane: a map without a background, or one figure against another.

    Attributes:
        points: The points.
        x_label: What the horizontal axis is.
        y_label: What the vertical axis is.
        is_map: Whether both axes have one scale (x shrunk by the cosine of the latitude).
    """

    points: Sequence[Point]
    x_label: str = ""
    y_label: str = ""
    is_map: bool = False


class Layer(msgspec.Struct, frozen=True):
    """Something by which the areas of a map are shaded.

    Attributes:
        name: What it is.
        kind: How values are written: counts, durations in milliseconds, or other numbers; those are shaded
            from the least to the largest.
        about: What it says, in a few words.
    """

    name: str
    kind: Literal["count", "duration", "number"] = "count"
    about: str = ""


class Area(msgspec.Struct, frozen=True):
    """An area of a map.

    Attributes:
        id: Its identity on the map, and what it is called.
        outline: Its corners, longitude and latitude.
        values: A value per layer; ``None``: there is none.
    """

    id: str
    outline: Sequence[tuple[float, float]]
    values: Sequence[float | None]


class MarkKind(msgspec.Struct, frozen=True):
    """A kind of marks on a map.

    Attributes:
        name: What they are.
        shape: How they look: told by more than colour.
        tone: Their colour, by number, or as a tone.
    """

    name: str
    shape: Literal["circle", "ring", "diamond", "up", "down", "square", "cross", "star"]
    tone: Literal["s0", "s1", "s2", "s3", "s4", "ink", "soft", "bad"]


class Mark(msgspec.Struct, frozen=True):
    """Something on a map that may move.

    Attributes:
        id: Its identity: a mark that is elsewhere at the next look has moved there.
        lon: Where, degrees east.
        lat: Where, degrees north.
        kind: Number of its kind.
        label: What is said of it.
        key: The key whose detail it leads to; empty: none.
        text: What is written beside it; empty: nothing.
    """

    id: str
    lon: float
    lat: float
    kind: int
    label: str
    key: str = ""
    text: str = ""


class Outline(msgspec.Struct, frozen=True):
    """The edge of a place on a map, drawn above its areas.

    Attributes:
        id: Its identity on the map.
        kind: How it looks: ``zone``, a broken line, or ``pen``, a full one around a shade.
        rings: Closed lines, longitude and latitude; what is within two is a hole.
        label: What is said of it.
        text: What is written into it; empty: nothing.
    """

    id: str
    kind: Literal["zone", "pen"]
    rings: Sequence[Sequence[tuple[float, float]]]
    label: str
    text: str = ""


class AreaMap(msgspec.Struct, frozen=True, tag="map", kw_only=True):
    """A map without a background: areas shaded by one of several layers, and marks that move.

    Attributes:
        layers: By what areas can be shaded.
        areas: The areas.
        kinds: The kinds of marks.
        marks: The marks.
        box: West, south, east and north of what is shown, degrees.
        at_ms: The moment that is shown, UTC milliseconds.
        since_ms: The oldest moment that can be shown.
        until_ms: The newest one.
        step_ms: Steps between them; 0: no other can be shown.
        outlines: Places with an edge of their own, at the moment that is shown.
    """

    layers: tuple[Layer, ...]
    areas: Sequence[Area]
    kinds: tuple[MarkKind, ...]
    marks: Sequence[Mark]
    box: tuple[float, float, float, float]
    at_ms: int
    since_ms: int = 0
    until_ms: int = 0
    step_ms: int = 0
    outlines: Sequence[Outline] = ()


class Note(msgspec.Struct, frozen=True, tag="note"):
    """A sentence, where there is nothing to show or something to say."""

    text: str
    tone: Tone = "plain"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a graph.

    Attributes:
        id: Its identity in the graph.
        label: What it is called.
        column: Number of the column that it stands in, from 0.
        note: What else is to be said of it, in small print.
        key: The key whose detail it leads to; empty: none.
        tone: How it is meant.
        chosen: Whether it is the one that the graph is about.
    """

    id: str
    label: str
    column: int
    note: str = ""
    key: str = ""
    tone: Tone = "plain"
    chosen: bool = False


class Edge(msgspec.Struct, frozen=True):
    """An edge of a graph.

    Attributes:
        source: Identity of the node at one end.
        target: Of the one at the other.
        weight: How much it stands for: the more, the thicker.
        note: What is said of it.
        tone: How it is meant.
        label: What stands on it.
    """

    source: str
    target: str
    weight: float = 1.0
    note: str = ""
    tone: Tone = "plain"
    label: str = ""


class Graph(msgspec.Struct, frozen=True, tag="graph", kw_only=True):
    """Nodes in columns, those of a column below each other in the given order, and edges between them.

    Attributes:
        columns: What the nodes of each column are.
        nodes: The nodes.
        edges: The edges; both ends are among the nodes.
        unit: What the weights count.
        more: How many nodes there are besides.
        directed: Whether edges lead from source to target, and have a head.
    """

    columns: tuple[str, ...]
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    unit: str = ""
    more: int = 0
    directed: bool = False


View = Numbers | TimeSeries | Bars | Table | Points | Graph | AreaMap | Note


class Titled(msgspec.Struct, frozen=True):
    """A view with a heading, as the detail of a key is made of."""

    title: str
    view: View
