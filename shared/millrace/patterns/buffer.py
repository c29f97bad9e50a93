"""The buffer of one key's partial matches: each event once, and a tree over them.

A *node* is one way to have taken events: an event and the node before it. Ways that begin alike share
their nodes, so a partial match costs one node more than the one that it goes on from, however long it is.
Nodes and events are counted and go with their last use.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from millrace.patterns.automaton import Position

#: No event has come since the node's own.
FRESH: Final = 1
#: The node has been a match.
MATCHED: Final = 2


class Node(msgspec.Struct, array_like=True, gc=False):
    """One way to have taken events up to one of them.

    Attributes:
        parent: The node before, 0 for none.
        event: Its event.
        position: Where in the pattern the event was taken.
        alive: The edges that it still has.
        flags: ``FRESH``, ``MATCHED``.
        start: Its first event.
        uses: How often it is used: by nodes after it, as a partial match, as a match that waits.
    """

    parent: int
    event: int
    position: int
    alive: int
    flags: int
    start: int
    uses: int


def kept_type(event_type: Any) -> Any:
    """Return the type of what is kept of a key whose events are of ``event_type``."""
    stored = msgspec.defstruct("Stored", [("at", int), ("uses", int), ("event", event_type)], array_like=True)
    return msgspec.defstruct(
        "Partials",
        [
            ("next_event", int, 1),
            ("next_node", int, 1),
            ("events", dict[int, stored], msgspec.field(default_factory=dict)),  # type: ignore[valid-type]
            ("nodes", dict[int, Node], msgspec.field(default_factory=dict)),
            # Partial matches, then matches that wait for an earlier one, both by their first event.
            ("live", list[int], msgspec.field(default_factory=list)),
            ("held", list[int], msgspec.field(default_factory=list)),
        ],
        array_like=True,
        namespace={"stored": stored},
    )


def store(kept: Any, at: int, event: Any) -> int:
    """Keep an event; return its number. Numbers go up with time."""
    number: int = kept.next_event
    kept.next_event = number + 1
    kept.events[number] = kept.stored(at, 0, event)
    return number


def grow(kept: Any, parent: int, event: int, place: int, position: Position) -> int:
    """Make the node that takes an event after ``parent`` (0: as the first); return its number.

    It is used by nobody yet.
    """
    number: int = kept.next_node
    kept.next_node = number + 1
    start = event
    if parent:
        before = kept.nodes[parent]
        before.uses += 1
        start = before.start
    kept.events[event].uses += 1
    kept.nodes[number] = Node(parent, event, place, position.mask, FRESH, start, 0)
    return number


def release(kept: Any, number: int) -> None:
    """Take back one use of a node; what nobody uses any more goes."""
    nodes, events = kept.nodes, kept.events
    while number:
        node = nodes[number]
        node.uses -= 1
        if node.uses > 0:
            return
        del nodes[number]
        event = events[node.event]
        event.uses -= 1
        if not event.uses:
            del events[node.event]
        number = node.parent


def chain(kept: Any, number: int) -> list[Node]:
    """Return the nodes of one way, from its first event to its last."""
    found = []
    nodes = kept.nodes
    while number:
        node = nodes[number]
        found.append(node)
        number = node.parent
    found.reverse()
    return found
