"""An app's flow as a picture: topics → processes → tables and topics, with rates on the arrows.

What is read per topic and written per output are the job's own figures; between two processes nothing is
counted, unless what goes on there is written, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from millrace.dashboard.views import Edge, Graph, Node, Tone
from millrace.topology.sinks import table_name

if TYPE_CHECKING:
    from millrace.observing.figures import Figures
    from millrace.topology import Link, Topology

#: Most places that outputs go to which are drawn; those with most records.
_MOST_PLACES: Final = 14
#: Columns of the picture.
COLUMNS: Final = ("topics", "processes", "tables and topics")


def flow_of(
    topology: Topology,
    figures: Figures | None,
    rows: Mapping[str, int],
    *,
    live: bool,
    suffix: str = "",
    waits: Mapping[str, int] | None = None,
) -> Graph:
    """Return the flow of an app.

    Args:
        topology: Its topology.
        figures: What its job says; ``None``: there is none.
        rows: Table → its rows, by the table's own log.
        live: Whether the job runs: then arrows have rates, else what they came to.
        suffix: What names of topics of outputs end with.
        waits: Table → batches of which rows are not in it yet.
    """
    nodes, edges = [], []
    first = topology.links[0].name
    topics = dict.fromkeys(one.topic or name for name, one in topology.inputs.items())
    if topology.control is not None:
        topics[topology.control] = None
    read = {} if figures is None else figures.read
    waiting = _waiting(figures)
    for topic in topics:
        tone: Tone = "warn" if live and waiting.get(topic, 0) > 0 else "plain"
        left = f", {waiting[topic]:,} wait" if waiting.get(topic) else ""
        nodes.append(Node(id=f"in:{topic}", label=topic, column=0, tone=tone,
                          note=f"read up to {read.get(topic, 0):,}{left}"))  # fmt: skip
        rate = None if figures is None else figures.read_rates.get(topic)
        edges.append(_edge(f"in:{topic}", f"link:{first}", rate, read.get(topic), live))
    for link in topology.links:
        nodes.append(Node(id=f"link:{link.name}", label=link.name, column=1, note=_state_of(figures, link)))
        for taken in link.takes:
            full = topology.full_name(taken.link, taken.output)
            rate, total = _written(figures, full)
            if full not in topology.outputs:
                rate = total = None  # it goes on, and nobody counts it
            edge = _edge(f"link:{taken.link}", f"link:{link.name}", rate, total, live, name=full)
            edges.append(edge)
    places, more = _places(topology, figures, rows, waits or {}, live=live, suffix=suffix)
    for node, edge in places:
        nodes.append(node)
        edges.append(edge)
    return Graph(columns=COLUMNS, nodes=nodes, edges=edges, unit="a second" if live else "records",
                 more=more, directed=True)  # fmt: skip


def _places(
    topology: Topology,
    figures: Figures | None,
    rows: Mapping[str, int],
    waits: Mapping[str, int],
    *,
    live: bool,
    suffix: str,
) -> tuple[list[tuple[Node, Edge]], int]:
    """Return where outputs go, by process, and how many of these places are not drawn."""
    found: list[tuple[int, bool, int, Node, Edge]] = []
    order = {link.name: number for number, link in enumerate(topology.links)}
    for full, (process, name) in topology.outputs.items():
        rate, total = _written(figures, full)
        dead = name == "dead_letters"
        link = f"link:{process.name}"
        tone: Tone = "warn" if dead and total else "plain"
        here = [(f"table:{table_name(t)}", table_name(t)) for t in topology.tables.get(full, ())]
        if full in topology.topics:
            here.append((f"topic:{topology.topics[full]}", f"→ {topology.topics[full]}{suffix}"))
        for identity, label in here:
            count = rows.get(label) if identity.startswith("table:") else total
            behind = waits.get(label, 0) if identity.startswith("table:") else 0
            if dead and not count and not behind:
                continue  # nothing ever failed there: no place that anybody looks for
            said = "" if count is None else f"{count:,} {'rows' if identity.startswith('table:') else 'sent'}"
            if behind:
                said += f"{', ' if said else ''}{behind:,} {'batch waits' if behind == 1 else 'batches wait'}"
            node = Node(id=identity, label=label, column=2, tone=tone, note=said)
            edge = _edge(link, identity, rate, total, live, name=full, tone=tone)
            found.append((order[process.name], identity.startswith("topic:"), -(count or 0), node, edge))
    kept = sorted(found, key=lambda one: one[2])[:_MOST_PLACES]
    return [(one[3], one[4]) for one in sorted(kept, key=lambda one: one[:3])], len(found) - len(kept)


def _written(figures: Figures | None, output: str) -> tuple[float | None, int | None]:
    """Return how fast an output is written, and how much of it since the job began."""
    if figures is None:
        return None, None
    return figures.written_rates.get(output, 0.0), figures.outputs.get(output, 0)


def _waiting(figures: Figures | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for place, source in ({} if figures is None else figures.sources).items():
        topic = place.rpartition(":")[0]
        found[topic] = found.get(topic, 0) + source.lag
    return found


def _state_of(figures: Figures | None, link: Link) -> str:
    state = None if figures is None else figures.state.get(link.name)
    if state is None:
        return ""
    return f"{'' if state.share == 1.0 else 'about '}{state.entries:,} keys, {state.bytes:,} bytes"


def _edge(
    source: str,
    target: str,
    rate: float | None,
    total: int | None,
    live: bool,
    *,
    name: str = "",
    tone: Tone = "plain",
) -> Edge:
    said = ", ".join(filter(None, [name, "" if total is None else f"{total:,} in all"]))
    if live:
        label = f"{short(rate)}/s" if rate else ""
        return Edge(source, target, rate or 0.0, said, tone, label)
    return Edge(source, target, float(total or 0), said, tone, f"{total:,}" if total else "")


def short(rate: float) -> str:
    """Return a rate in few letters.

    >>> short(0), short(0.26), short(7.04), short(812.3), short(18_260)
    ('0', '0.3', '7', '812', '18.3k')
    """
    if rate >= 10_000:
        return f"{rate / 1_000:.1f}".removesuffix(".0") + "k"
    if rate >= 10 or rate == round(rate):
        return f"{rate:,.0f}"
    return f"{rate:.1f}".removesuffix(".0")
