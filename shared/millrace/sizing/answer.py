"""The sizing of a workload: cores, memory, disks, network, partitions, and the time of a start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from millrace.errors import UserError
from millrace.sizing.model import Costs, Workload
from millrace.state.pages import PAGE_BYTES

#: Measured by ``millrace bench sizing``; see docs/sizing.md for when and on what.
MEASURED: Final = Costs(per_batch_ms=234.0, per_row_us=37.5, per_page_us=180.0, per_second_ms=38.0)
#: Key groups are this many times the partitions at least, that these stay even when they become more.
_GROUPS_PER_PARTITION: Final = 16
#: What an executor's JVM and Python worker need beside the store's budget, bytes a core.
_MEMORY_PER_CORE: Final = 1.5e9
#: Batches whose files stay (``spark.sql.streaming.minBatchesToRetain``).
_RETAINED: Final = 10
#: Levels and old versions in RocksDB: what it takes beside the data.
_STORE_SPACE: Final = 1.3


@dataclass(frozen=True)
class Machine:
    """An executor node.

    Attributes:
        cores: Its cores.
        disk_bytes_per_s: What its disk writes, bytes a second.
        network_bytes_per_s: What it sends, bytes a second.
        busy: Share of its cores that a job is planned to take: what is left is for peaks and catching up.
    """

    cores: int = 16
    disk_bytes_per_s: float = 1e9
    network_bytes_per_s: float = 1.25e9
    busy: float = 0.6


@dataclass(frozen=True)
class Sizing:
    """What a workload asks for; bytes and seconds.

    Attributes:
        rows: Events of a batch.
        keys_touched: Keys that a batch of a process touches.
        pages_touched: Pages of all processes that a batch reads and writes.
        cpu_s: CPU seconds of a batch.
        cores: Cores.
        nodes: Machines.
        why_nodes: What asks for so many: ``cores``, ``disk`` or ``network``.
        state_bytes: State of all processes, once.
        checkpoint_bytes: The same with the batches that are kept.
        disk_bytes_per_s: What is written to local disks, all nodes together.
        network_bytes_per_s: What is shuffled and uploaded.
        memory_bytes: Memory of all nodes.
        partitions: Shuffle partitions.
        key_groups: Key groups, fixed for the life of a checkpoint.
        topic_partitions: Partitions of the input.
        start_s: How long state is fetched at a start where every node has lost its own.
        write_amplification: Bytes written for each byte of state that an event changes.
    """

    rows: float
    keys_touched: float
    pages_touched: float
    cpu_s: float
    cores: float
    nodes: int
    why_nodes: str
    state_bytes: float
    checkpoint_bytes: float
    disk_bytes_per_s: float
    network_bytes_per_s: float
    memory_bytes: float
    partitions: int
    key_groups: int
    topic_partitions: int
    start_s: float
    write_amplification: float


def size(load: Workload, machine: Machine | None = None, costs: Costs = MEASURED) -> Sizing:
    """Return what a workload asks for.

    Args:
        load: The workload.
        machine: The nodes.
        costs: What was measured.

    Raises:
        UserError: A machine has nothing.

    Example:
        >>> size(Workload(events_per_s=1_000, keys=10_000)).nodes
        1
    """
    node = machine or Machine()
    if min(node.cores, node.disk_bytes_per_s, node.network_bytes_per_s) <= 0 or not 0 < node.busy <= 1:
        raise UserError("a machine has cores, a disk and a network, and is busy between 0 and 1")
    of_a_process = min(load.pages_touched, load.pages)
    pages = of_a_process * load.processes
    cpu_s = costs.batch_ms(load.rows * load.processes, pages, load.batch_s) / 1_000
    cores = cpu_s / load.batch_s / node.busy
    state = load.state_bytes * load.processes
    page_bytes = max(load.state_bytes / load.pages, 1.0)
    written = pages * page_bytes / load.batch_s
    shuffled = load.events_per_s * load.event_bytes * load.processes
    # A batch's pages go to the store's log, and to the checkpoint.
    network = shuffled + written
    wanted = {
        "cores": cores / node.cores,
        "disk": 2 * written / (node.disk_bytes_per_s * node.busy),
        "network": network / (node.network_bytes_per_s * node.busy),
    }
    why = max(wanted, key=lambda name: wanted[name])
    nodes = max(1, math.ceil(wanted[why]))
    partitions = max(1, math.ceil(cores))
    changed = load.rows * load.processes * load.entry_bytes
    return Sizing(
        rows=load.rows,
        keys_touched=load.keys_touched,
        pages_touched=pages,
        cpu_s=cpu_s,
        cores=cores,
        nodes=nodes,
        why_nodes=why,
        state_bytes=state,
        checkpoint_bytes=state + _RETAINED * written * load.batch_s,
        disk_bytes_per_s=2 * written,
        network_bytes_per_s=network,
        memory_bytes=max(cores, nodes * node.cores) * _MEMORY_PER_CORE,
        partitions=partitions,
        key_groups=_power_of_two(max(load.key_groups, _GROUPS_PER_PARTITION * partitions)),
        topic_partitions=max(partitions, 1),
        start_s=state * _STORE_SPACE / (nodes * min(node.network_bytes_per_s, node.disk_bytes_per_s)),
        write_amplification=pages * page_bytes / changed,
    )


def _power_of_two(least: float) -> int:
    return 1 << max(0, math.ceil(math.log2(least)))


def lines(load: Workload, found: Sizing) -> list[tuple[str, str, str]]:
    """Return a sizing as lines: what, how much, and how it comes to that.

    Args:
        load: The workload.
        found: What it asks for.
    """
    of = f"{load.processes} × " if load.processes > 1 else ""
    return [
        ("events of a batch", count(found.rows), f"{count(load.events_per_s)}/s × {load.batch_s:g} s"),
        ("state", size_of(found.state_bytes),
         f"{of}{count(load.keys)} keys × ({load.entry_bytes:g} + 40 bytes)"),
        ("keys touched", count(found.keys_touched), "of a process, by a batch"),
        ("pages rewritten", count(found.pages_touched),
         f"by a batch, of {of}{count(load.pages)} of {PAGE_BYTES // 1024} kB at most"),
        ("write amplification", f"{found.write_amplification:.1f}", "bytes written per byte that changes"),
        ("CPU of a batch", f"{found.cpu_s:,.2f} s", "per batch + per row + per page + per second"),
        ("cores", f"{found.cores:,.1f}", "with room for peaks and catching up"),
        ("nodes", f"{found.nodes:,}", f"asked for by {found.why_nodes}"),
        ("memory", size_of(found.memory_bytes), "1.5 GB a core"),
        ("local disks write", f"{size_of(found.disk_bytes_per_s)}/s", "log and files of the store"),
        ("network", f"{size_of(found.network_bytes_per_s)}/s", "shuffles, and pages to the checkpoint"),
        ("checkpoint", size_of(found.checkpoint_bytes), "state and the pages of ten batches"),
        ("shuffle partitions", f"{found.partitions:,}", "one a core"),
        ("key groups", f"{found.key_groups:,}", "16 a partition; fixed for the life of a checkpoint"),
        ("topic partitions", f"{found.topic_partitions:,}", "one a core, at least"),
        ("start without local state", f"{found.start_s:,.0f} s", "state over all nodes' networks or disks"),
    ]  # fmt: skip


def count(value: float) -> str:
    """Return a count in few letters.

    >>> count(950), count(1_000_000), count(41_666_666_666)
    ('950', '1 M', '41.7 G')
    """
    for unit, of in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= of:
            return f"{value / of:.3g} {unit}"
    return f"{value:.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"


def size_of(value: float) -> str:
    """Return bytes in a unit that fits.

    >>> size_of(10e12), size_of(900.0)
    ('10 TB', '900 B')
    """
    for unit, of in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= of:
            return f"{value / of:.3g} {unit}"
    return f"{value:.0f} B"
