"""Much trouble at once: what a worker makes of a disturbed stream is what the ledger says must come of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa

from millrace import Context, KeyedProcess, arrival, map_state
from millrace.dead_letters import VERSION_HEADER, DeadLetter
from millrace.host.chunks import decode_output
from millrace.host.groups import group_labels
from millrace.host.intake import JsonEvents
from millrace.host.key_times import KeyFields
from millrace.host.packing import Packer
from millrace.host.spark_worker import BoundedGroups
from millrace.testing.world_ledger import WorldRun
from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.generators.engine.disturb import Disturbances
from millrace_apps.generators.engine.message import Generated
from millrace_apps.generators.engine.world import deliver_domain
from millrace_apps.generators.fraud import DOMAIN, FraudProfile
from millrace_apps.generators.ledger_check import Outputs, compare, read_truths
from millrace_apps.generators.options import PRESETS, Preset
from millrace_apps.generators.world_ledger import WorldLedger

CHAOS = PRESETS[Preset.chaos]
PROFILE = FraudProfile(
    seed=11,
    transactions=14_000,
    cards=400,
    terminals=100,
    late=CHAOS["late"],
    lateness_ms=15_000,
    duplicates=CHAOS["duplicates"],
    malformed=CHAOS["malformed"],
)
WRONG = Disturbances(
    **{name: CHAOS[name] for name in ("loss", "drift", "unknown_version", "clock_skew", "delay")}
)
LABELS = group_labels(4)
KAFKA_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Once(KeyedProcess[Transaction, str]):
    """Takes every transaction once."""

    order = arrival(commutes=True)
    seen = map_state(str, bool)

    def process(self, event: Transaction, ctx: Context) -> None:
        if event.transaction_id in self.seen:
            ctx.dead_letter("duplicate", event.transaction_id)
            return
        self.seen.put(event.transaction_id, True)
        ctx.emit(event.transaction_id)


def chunks(messages: list[Generated]) -> pa.Table:
    """Return messages by key group, as they stand behind the shuffle."""
    packer = Packer((KeyFields((("card_id", str),), ("event_time_ms", int)),), labels=LABELS)
    headers = [[{"key": name, "value": value} for name, value in m.headers] for m in messages]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([m.value for m in messages], pa.binary()),
            pa.array([f"payments:0:{number}" for number in range(len(messages))]),
            pa.array(headers, KAFKA_HEADERS),
            pa.array([dict(m.headers)[VERSION_HEADER] != b"1" for m in messages]),
        ],
        names=["_value", "_source_id", "_headers", "_unknown_version"],
    )
    return pa.Table.from_batches(packer(iter([batch]))).select(["_group", "_chunk"])


def run(messages: list[Generated]) -> dict[str, list[bytes]]:
    """Run messages on workers, group by group; return the records of every output."""
    rows, found = chunks(messages), dict[str, list[bytes]]()
    for label in LABELS:
        groups = BoundedGroups(Once(), JsonEvents(Transaction, None), speaker=LABELS[0], bound_ms=0)
        mine = rows.filter(pa.compute.equal(rows["_group"], label))
        for row in groups((pa.scalar(label),), mine).to_pylist():
            found.setdefault(row["output"], []).extend(decode_output(row["chunk"]).payloads)
    return found


def test_every_injected_fault_is_found_where_the_ledger_says(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    stream = [m for m in deliver_domain(DOMAIN, PROFILE, WRONG) if m.stream == "transactions" or m.dropped]
    ledger = WorldLedger(path, WorldRun("payments", 11, {"transactions": "t", "labels": "l"}, {}, {}))
    for message in stream:
        ledger.add(message)
    ledger.finish()
    sent = [m for m in stream if not m.dropped]
    found = run(sent)
    letters = [msgspec.json.decode(letter, type=DeadLetter) for letter in found["dead_letters"]]
    outputs = Outputs(
        events={"transactions": [msgspec.json.decode(one) for one in found["main"]]},
        dead_letters=[(msgspec.json.decode(one.headers or "{}").get("ce_id"), one.reason) for one in letters],
    )
    truths = read_truths(path)
    assert [check for check in compare(truths, outputs) if not check.ok] == []
    # No fault is missing from this stream, and none of its reasons from the dead letters.
    kinds = Counter(fault.kind for fault in truths.faults)
    assert kinds.keys() == {
        "late", "lost", "wrong_clock", "drifted", "unknown_version", "duplicate", "malformed",
    }  # fmt: skip
    reasons = Counter(one.reason for one in letters)
    assert reasons.keys() == {"malformed", "schema", "range", "unknown_version", "duplicate"}
    assert min(reasons.values()) > 10
    assert reasons["duplicate"] == kinds["duplicate"]
    assert len(sent) == len(found["main"]) + len(letters)
