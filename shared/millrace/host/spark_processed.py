"""What processes make of a stream on Spark: their operators, and the outputs as typed DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from millrace.host import spark_structs
from millrace.host.chunks import WATERMARK
from millrace.host.groups import group_labels
from millrace.host.intake import JsonEvents
from millrace.host.packing import CHAINED_SCHEMA, Going, Repacker
from millrace.host.spark_clock import BatchClock
from millrace.host.spark_input import Plan
from millrace.host.spark_partitions import PARTITIONS_CONF, warn_of_partitions
from millrace.host.spark_records import ROWS_SCHEMA, RowReader, TypedReader
from millrace.host.spark_station import run_station
from millrace.host.spark_types import META_FIELDS, struct_type, structs_in
from millrace.host.spark_worker import OUTPUT_SCHEMA, BoundedGroups, KeyGroupProcessor
from millrace.host.station import StationLink, outputs_of_links
from millrace.inputs import mark_of
from millrace.outputs import output_types
from millrace.process import KeyedProcess
from millrace.state.keyring import CIPHER, KeyReference
from millrace.time.clock import ClockSettings
from millrace.topology import KeyedOutputs, Topology
from millrace.topology.contract import STATION, contract_of, key_names, station_contract
from millrace.topology.keys import KeyingError, key_types

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millrace.host.spark_sink import Target


@dataclass(frozen=True)
class StreamFront:
    """What a stream begins with: chunks by key group, and what their clock goes by.

    Attributes:
        rows: The chunks.
        events: How the first process's events are read.
        clock: What the clock goes by.
        key_groups: Number of key groups of the first process.
        keys: Where the keys are that state is encrypted with; ``None``: it is kept in clear.
        plan: How the topology runs.
        stations: How many stations there are.
    """

    rows: DataFrame
    events: JsonEvents
    clock: ClockSettings
    key_groups: int
    keys: KeyReference | None
    plan: Plan = "chain"
    stations: int = 1


@dataclass(frozen=True)
class ProcessedStream:
    """The outputs of a process, or of a chain of them: one typed stream, a DataFrame per output.

    Attributes:
        topology: The processes, and what each takes.
        front: What the first of them reads.
    """

    topology: Topology
    front: StreamFront

    @property
    def process(self) -> KeyedProcess[Any, Any]:
        """The process; the last one of a chain."""
        return self.topology.links[-1].process

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the parts of its key."""
        return key_names(self.topology, self.topology.links[-1])

    @cached_property
    def key_groups(self) -> tuple[int, ...]:
        """Number of key groups of each process."""
        found = [self.front.key_groups]
        for link in self.topology.links[1:]:
            found.append(link.key_groups or found[-1])
        return tuple(found)

    @cached_property
    def raw(self) -> DataFrame:
        """All outputs in one DataFrame of chunks (output, records, chunk).

        So the state is computed once however many are written; :meth:`rows` and :meth:`select` unpack it.
        """
        if self.is_station:
            return self._station()
        if self.front.rows.isStreaming:
            warn_of_partitions(self.front.rows.sparkSession, max(self.key_groups))
        links = self.topology.links
        emitted = self._run(0, self.front.rows, self.front.events)
        for place, link in enumerate(links[1:], 1):
            process = link.process
            events = JsonEvents(process.event_type, process.control_type, inputs=process.inputs)
            rows = emitted.mapInArrow(self._repacker(place), CHAINED_SCHEMA)
            emitted = self._run(place, rows, events)
        return emitted

    @property
    def is_station(self) -> bool:
        """Whether all links run in one operator; a bounded input runs in many tasks at any rate."""
        return self.front.plan == "station" and self.front.rows.isStreaming

    def _station(self) -> DataFrame:
        """Run all links in one operator, in a partition for each station."""
        partitions = self.front.rows.sparkSession.conf.get(PARTITIONS_CONF, None)
        stations = self.front.stations
        if partitions != str(stations):
            what = (
                "a station runs in one partition" if stations == 1 else f"{stations} stations run in as many"
            )
            raise KeyingError(
                f"{what}, and {PARTITIONS_CONF} is {partitions}: set it to {stations} before the query is "
                "made (a checkpoint keeps what it began with)"
            )
        names, onward = outputs_of_links(self.topology)
        links = [
            StationLink(
                link.process,
                JsonEvents(link.process.event_type, link.process.control_type, inputs=link.process.inputs)
                if place
                else self.front.events,
                self.key_groups[place],
                onward[place],
                names[place],
            )
            for place, link in enumerate(self.topology.links)
        ]
        clock = BatchClock(self.front.clock)
        return run_station(self.front.rows, links, self.state_keys, clock, stations)

    def _run(self, place: int, rows: DataFrame, events: JsonEvents) -> DataFrame:
        """Run a process: in the state operator, or all at once where the input is bounded."""
        process = self.topology.links[place].process
        speaker = group_labels(self.key_groups[place])[0]
        forwards = place < len(self.topology.links) - 1
        refuses = all(link.process.control_type is None for link in self.topology.links)
        if not rows.isStreaming:
            groups = BoundedGroups(
                process,
                events,
                speaker=speaker,
                forwards=forwards,
                refuses=refuses,
                bound_ms=self.front.clock.bound_ms,
            )
            # Spark looks at what it is given with `inspect`, which wants a function.
            return rows.groupBy("_group").applyInArrow(lambda key, table: groups(key, table), OUTPUT_SCHEMA)
        return rows.groupBy("_group").transformWithState(
            statefulProcessor=KeyGroupProcessor(
                process,
                events,
                speaker=speaker,
                forwards=forwards,
                refuses=refuses,
                keys=self.state_keys,
                clock=None if place else BatchClock(self.front.clock),
            ),
            outputStructType=OUTPUT_SCHEMA,
            outputMode="Append",
            timeMode="None",
        )

    def _repacker(self, place: int) -> Repacker:
        """Return what brings the outputs of the links before one to it, and past it."""
        links, outputs = self.topology.links, self.topology.outputs
        later = {(t.link, t.output) for link in links[place + 1 :] for t in link.takes}
        names: dict[str, str] = {}
        for before in links[:place]:
            for output in output_types(before.process):
                full = f"{before.name}.{output}"
                if full in outputs or (before.name, output) in later:
                    names[output if before is links[place - 1] else full] = full
        takes = []
        for taken in links[place].takes:
            owner = self.topology.link(taken.link).process
            kinds = key_types(owner.name, output_types(owner)[taken.output], taken.key)
            inputs = list(links[place].process.inputs)
            takes.append(
                Going(
                    taken.output if taken.link == links[place - 1].name else f"{taken.link}.{taken.output}",
                    tuple(kinds.items()),
                    mark_of(inputs.index(taken.input)) if inputs else b"",
                )
            )
        return Repacker(tuple(takes), group_labels(self.key_groups[place]), names)

    @property
    def clock(self) -> ClockSettings:
        """What the clock of the stream goes by."""
        return self.front.clock

    @property
    def state_keys(self) -> KeyReference | None:
        """Where the keys are that the state is encrypted with; ``None``: it is kept in clear.

        They are those of the session when the stream was made: ``spark.millrace.state.keyFile``, or the
        environment it was started in.
        """
        return self.front.keys

    @property
    def sources(self) -> dict[str, tuple[KeyedProcess[Any, Any], str]]:
        """Output → the process that emits it and its name there; see :class:`~millrace.topology.Topology`."""
        return self.topology.outputs

    @property
    def types(self) -> dict[str, Any]:
        """Output → type of its records."""
        return self.topology.types

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs; see :attr:`sources`."""
        return tuple(self.sources)

    def __getitem__(self, output: str) -> DataFrame:
        """Return one output as a typed DataFrame; a query on it alone has a state of its own."""
        return self.select(self.raw, output)

    def select(self, raw: DataFrame, output: str) -> DataFrame:
        """Return the rows of one output in ``raw`` (or a batch of it) with typed columns.

        The record's fields come first, then ``_event_id``, ``_event_time`` (timestamp of its cause)
        and ``_on_time``.
        """
        sources = self.sources
        if output not in sources:
            raise KeyingError(f"{self.process.name} has no output '{output}'; it has {', '.join(sources)}")
        schema = t.StructType([*struct_type(self.types[output]).fields, *META_FIELDS])
        chunks = raw.filter(F.col("output") == output).select("chunk")
        return chunks.mapInArrow(TypedReader(*sources[output]), schema)

    def rows(self, raw: DataFrame) -> DataFrame:
        """Return the records in ``raw`` (or a batch of it), whatever their output.

        Returns:
            Columns output, event_id, key (its text), event_time_ms, on_time and payload (JSON).
        """
        records = raw.filter(F.col("output") != WATERMARK)
        return records.select("output", "chunk").mapInArrow(RowReader(), ROWS_SCHEMA)

    def key_by(
        self,
        by: str | Sequence[str] | Mapping[str, str | Sequence[str]],
        *,
        output: str | Mapping[str, str] = "main",
        key_groups: int | None = None,
    ) -> EmittedStream:
        """Give the records of an output, or of several, new keys, for the next process of a chain.

        All is one query. The records have the time of their cause and are not judged for lateness
        again; what is on time is merged with the next process's timers in order of time. The other
        outputs pass it by, named ``Process.output``. Control events go on to it.

        Args:
            by: Field of the records that is the key, or several; of several outputs also input → its own.
            output: The output whose records go on; of a process before the last one ``Process.output``. For a
                process with several inputs: input → output.
            key_groups: Number of key groups; as before, unless given.

        Raises:
            KeyingError: The output or a field of it does not exist, or cannot be a key.

        Example:
            >>> cards = keyed(transactions, by="card", event_time="at").process(Cards())  # doctest: +SKIP
            >>> cards.key_by("terminal").process(Terminals())["main"]  # doctest: +SKIP
            DataFrame[terminal: string, ...]
        """
        return EmittedStream(self, self.topology.key_by(by, output=output, key_groups=key_groups))

    def write_to(
        self, outputs: Mapping[str, Target], checkpoint: str | Path, **options: Any
    ) -> StreamingQuery:
        """Start a query that writes outputs to tables or functions (:mod:`millrace.host.spark_sink`).

        Args:
            outputs: Output → path of a table, or a function of a DataFrame and the batch id.
            checkpoint: Folder of the checkpoint and its contract.
            options: ``trigger``, ``name`` and ``table_format``.
        """
        from millrace.host.spark_sink import write_to

        return write_to(self, outputs, checkpoint, **options)

    def contract(self) -> dict[str, Any]:
        """Return what a checkpoint of this process depends on, as plain data."""
        keys = self.state_keys
        encryption = {} if keys is None else {"encryption": {"cipher": CIPHER, "keys": list(keys.ids)}}
        plan: dict[str, Any] = {}
        if self.front.plan == "station":
            processes = [link.process for link in self.topology.links]
            kept = [p.stored_as for p in processes if p.keeps_broadcast()]
            plan = {STATION: station_contract(kept, self.front.stations, self.topology.locality)}
        return {**contract_of(self.topology, self.key_groups), **plan, **encryption}


@dataclass(frozen=True)
class EmittedStream:
    """What processes emitted, by new keys; made by :meth:`ProcessedStream.key_by`."""

    stream: ProcessedStream
    outputs: KeyedOutputs

    def process(self, process: KeyedProcess[Any, Any]) -> ProcessedStream:
        """Run the next process of the chain over the records; nothing starts before a query does.

        Raises:
            ProcessDefinitionError: The process class is not complete.
            KeyingError: It is in the chain already, or does not read what it would be given.
        """
        refuse_local_types(process)
        return ProcessedStream(self.outputs.process(process), self.stream.front)


def refuse_local_types(process: KeyedProcess[Any, Any]) -> None:
    """Refuse types that do not come to Spark's workers as they are.

    What is defined in a script or notebook is pickled by value, structs by :mod:`spark_structs`.
    """
    takes_structs = spark_structs.install()
    declared = [*(process.inputs.values() or [process.event_type]), process.output_type, process.control_type]
    declared += [tag.type for tag in process.side_outputs] + [state.type for state in process.states]
    for tp in declared:
        for struct in structs_in(tp):
            if struct.__module__ != "__main__":
                continue
            if takes_structs:
                spark_structs.check_struct(struct)
            else:
                raise KeyingError(
                    f"{struct.__name__} is defined in the script or notebook itself, where Spark's workers "
                    "cannot import it: put it into a module and import that"
                )
