"""An app's declarations as pages ask for them: its topology, and the roles of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millrace.errors import UserError

if TYPE_CHECKING:
    from millrace.dashboard.data import AppData
    from millrace.topology import Topology

#: What outputs are called that every process has.
DEAD_LETTERS: Final = "dead_letters"
LATE: Final = "late"


def topology_of(data: AppData) -> Topology:
    """Return an app's topology as its settings and its checkpoint have it, made anew only where these change.

    Args:
        data: The app's data.

    Raises:
        UserError: It cannot be made of these settings.
    """
    from millrace.runtime.plans import kept_links, settled

    def make() -> Any:
        return data.app.topology(settled(data.app, data.settings, root=data.root))

    links = kept_links(data.root)
    found: Topology = data.once("topology", (tuple(links or ()), id(data.settings)), make)
    return found


def tables_of(data: AppData, output: str) -> list[str]:
    """Return the tables of one output of all processes, whatever they are called; of those that exist.

    Args:
        data: The app's data.
        output: The output, e.g. ``dead_letters``. Where the topology cannot be made, the table of that name.
    """
    from millrace.topology.sinks import each_table, table_name

    there = data.table_names()
    try:
        topology = topology_of(data)
    except UserError:
        return [name for name in there if name == output]
    declared = {
        table_name(table)
        for full, tables in topology.tables.items()
        if full.rpartition(".")[2] == output
        for table in each_table(tables)
    }
    return [name for name in there if name in declared]
