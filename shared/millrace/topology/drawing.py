"""Topologies as text and as Mermaid diagrams, with what each link waits for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from millrace.outputs import output_types
from millrace.process import order_of
from millrace.state.specs import type_name
from millrace.topology.definition import Link, Topology
from millrace.topology.sinks import Upsert, table_name

#: Between these lines of a page stands a diagram that a command writes.
BEGIN: Final = "<!-- topology: millrace topology {app} --write PAGE -->"
END: Final = "<!-- /topology -->"


class Delay(NamedTuple):
    """How long what comes to a link waits for event time before it is handled.

    Attributes:
        ms: The longest, if all goes well: no backlog, no silence.
        why: What it waits for; empty: nothing.
    """

    ms: int
    why: str


def delay_of(topology: Topology, link: Link, bound_ms: int) -> Delay:
    """Return what comes to a link waits for; micro-batches come on top of it.

    Args:
        topology: The topology.
        link: A link of it.
        bound_ms: How far the watermark stays behind the newest event, ms.

    Example:
        >>> from millrace import KeyedProcess, arrival
        >>> from millrace.topology import Input, read
        >>> class Double(KeyedProcess[int, int]):
        ...     order = "event_time"
        ...     def process(self, event, ctx):
        ...         ctx.emit(2 * event)
        >>> delay_of(Topology({}, (link := Link(Double()),)), link, 500)
        Delay(ms=500, why='the watermark')
    """
    order = order_of(link.process)
    if order.mode == "arrival":
        return Delay(0, "")
    if order.by_key:
        return Delay(order.patience_ms, f"its key's next events, at most {_time(order.patience_ms)}")
    patience = order_of(topology.links[0].process).patience_ms
    if link.takes and patience:
        return Delay(patience, "the watermark, less the patience of the first link")
    before = [order_of(topology.link(taken.link).process).mode for taken in link.takes]
    if before and all(mode != "arrival" for mode in before):
        return Delay(0, "")  # what comes is behind the watermark already
    return Delay(bound_ms, "the watermark")


def as_text(topology: Topology, bound_ms: int) -> str:
    """Return a topology as lines of text.

    Args:
        topology: The topology.
        bound_ms: How far the watermark stays behind the newest event, ms.
    """
    return "\n".join(
        itertools.chain(_inputs(topology), *(_link(topology, link, bound_ms) for link in topology.links))
    )


def as_mermaid(topology: Topology, bound_ms: int) -> str:
    """Return a topology as a Mermaid flow chart.

    Args:
        topology: The topology.
        bound_ms: How far the watermark stays behind the newest event, ms.
    """
    first = topology.links[0].name
    lines = ["flowchart LR"]
    by_key: dict[str, list[str]] = {}
    for name, one in topology.inputs.items():
        by_key.setdefault(_key(one.parts), []).append(one.topic or name or "events")
    for number, (key, names) in enumerate(by_key.items()):
        lines.append(f"    in{number}([{_quoted(names)}]) -->|{_quoted([key])}| {first}")
    if topology.control is not None:
        lines.append(f"    control([{_quoted([topology.control])}]) -.-> {first}")
    for number, link in enumerate(topology.links):
        delay = delay_of(topology, link, bound_ms)
        waits = f"<br/>waits {_time(delay.ms)}" if delay.ms else ""
        lines.append(f'    {link.name}["{link.name}{waits}"]')
        for taken in link.takes:
            said = f"{taken.output} by {', '.join(taken.key)}"
            lines.append(f"    {taken.link} -->|{_quoted([said])}| {link.name}")
        own = [full for full, (process, _) in topology.outputs.items() if process is link.process]
        tables = [table_name(table) for full in own for table in topology.tables.get(full, ())]
        if tables:
            lines.append(f"    {link.name} --> tables{number}[({_quoted(tables)})]")
        topics = [topology.topics[full] for full in own if full in topology.topics]
        if topics:
            lines.append(f"    {link.name} --> topics{number}([{_quoted(topics)}])")
    return "\n".join(lines)


def page_with(page: str, app: str, topology: Topology, bound_ms: int) -> str:
    """Return a page with an app's diagram between its marks.

    Args:
        page: The page, with the lines that begin and end the place.
        app: The app's name.
        topology: Its topology.
        bound_ms: How far the watermark stays behind the newest event, ms.

    Raises:
        ValueError: The page has no such place.
    """
    begin = BEGIN.format(app=app)
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"the page has no place for it: put {begin} and {END} where it is to stand")
    body = f"```mermaid\n{as_mermaid(topology, bound_ms)}\n```\n\n```text\n{as_text(topology, bound_ms)}\n```"
    return f"{before}{begin}\n\n{body}\n\n{END}{after}"


def _inputs(topology: Topology) -> Iterator[str]:
    types = topology.links[0].process.inputs or {"": topology.links[0].process.event_type}
    rows = [
        (
            name or "events",
            one.topic,
            type_name(types[name]),
            f"by {_key(one.parts)}",
            f"time {one.event_time}",
            "" if one.clock else "no clock",
        )
        for name, one in topology.inputs.items()
    ]
    yield "in"
    yield from _table(rows)
    if topology.control is not None:
        yield f"  control, ticks and the end of the input: {topology.control}"
    if topology.locality is not None:
        yield f"  all keys begin with the locality {topology.locality}: several stations can share the work"


def _link(topology: Topology, link: Link, bound_ms: int) -> Iterator[str]:
    delay = delay_of(topology, link, bound_ms)
    order = order_of(link.process)
    said = "in order of arrival" if order.mode == "arrival" else "in event-time order"
    if order.by_key:
        said += " by the clocks of its keys"
    if delay.ms:
        said += f", waits for {delay.why}" + ("" if order.by_key else f" ({_time(delay.ms)})")
    yield f"{link.name}: {said}"
    for taken in link.takes:
        by = f" as {taken.input}" if taken.input else ""
        yield f"  takes {taken.link}.{taken.output}{by} by {', '.join(taken.key)}"
    rows = []
    for output, tp in output_types(link.process).items():
        goes = list(_goes_to(topology, link, output))
        if goes:
            rows.append((f"→ {output}", type_name(tp), "; ".join(goes)))
    yield from _table(rows)


def _goes_to(topology: Topology, link: Link, output: str) -> Iterator[str]:
    """Say where an output of a link goes."""
    full = topology.full_name(link.name, output)
    for table in topology.tables.get(full, ()):
        if isinstance(table, Upsert):
            yield f"table {table.table} (one row per {', '.join(table.key)})"
        else:
            yield f"table {table}"
    if full in topology.topics:
        yield f"topic {topology.topics[full]}"
    for later in topology.links:
        if any((t.link, t.output) == (link.name, output) for t in later.takes):
            yield later.name


def _key(parts: Iterable[object]) -> str:
    return ", ".join(map(str, parts))


def _time(ms: int) -> str:
    """Return a time as people write it.

    >>> _time(500), _time(1_000), _time(600_000), _time(5_400_000)
    ('500 ms', '1 s', '10 min', '1.5 h')
    """
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= size:
            return f"{round(ms / size, 1):g} {unit}"
    return f"{ms} ms"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows with their columns below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield ("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))).rstrip()


def _quoted(names: Iterable[str]) -> str:
    """Return lines of a label that Mermaid takes as text."""
    return '"' + "<br/>".join(names) + '"'
