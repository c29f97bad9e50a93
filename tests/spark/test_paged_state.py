"""Maps in parts on Spark: restarted, rescaled, looked into, exported, as a chain and as a station."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from millrace import Context, KeyedProcess, arrival, map_state, value_state
from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.figures import figures_of
from millrace.checkpoints.reading import view_of
from millrace.checkpoints.rescale import rekey
from millrace.checkpoints.tables import compared, digests_of, entries_of
from millrace.host.spark_input import Plan
from millrace.state.cells import INDEX_PAGES
from tests.spark.conftest import one_partition
from tests.spark.savepoint_jobs import START, Payment, Payments


class Visits(KeyedProcess[Payment, int]):
    """Counts the visits of each shop, of which a user has hundreds."""

    order = arrival(commutes=True)
    shops = map_state(str, int, ttl=3_600_000, paged=True)

    def process(self, event: Payment, ctx: Context) -> None:
        """Count a visit."""
        count = (self.shops.get(event.shop) or 0) + 1
        self.shops.put(event.shop, count)
        ctx.emit(count)


def many(file: int) -> list[Payment]:
    return [Payment(f"u{n % 2}", START + file * 1_000 + n, n, f"shop-{n * 7 % 500}") for n in range(1_000)]


@pytest.mark.parametrize("plan", ["chain", "station"])
def test_a_map_of_hundreds_is_restarted_rescaled_and_looked_into(
    spark: SparkSession, tmp_path: Path, plan: Plan
) -> None:
    payments = Payments(spark, tmp_path / "input")
    root = tmp_path / "state"
    checkpoint = Checkpoint(root, root / "checkpoint")

    def run(groups: int, *files: int) -> None:
        for file in files:
            payments.add(*many(file))
        stream = payments.stream(Visits(), key_groups=groups, plan=plan)
        payments.run(stream, {"main": tmp_path / "counts"}, root, "parquet")

    with one_partition(spark):
        run(4, 0)
        with view_of(spark, checkpoint) as before:
            assert figures_of(before).entries == 2
            kept = digests_of(before).collect()
        rekey(spark, checkpoint, key_groups=16)
        with view_of(spark, checkpoint) as view:
            assert {r.key: r.bytes for r in digests_of(view).collect()} == {r.key: r.bytes for r in kept}
        run(16, 1)
    with view_of(spark, checkpoint) as view:
        found = view.entry(("u1",))
        assert found is not None
        shops = found[0].states["shops"].value
        rows = {row.key: msgspec.json.decode(row.states.shops) for row in entries_of(view).collect()}
        assert rows["u1"] == shops
        assert view.entry(("u2",)) is None
        assert compared(digests_of(view), digests_of(view)).count() == 0
        assert figures_of(view).states == {"shops": 2}
    wanted: dict[str, int] = {}
    for payment in [*many(0), *many(1)]:
        if payment.user == "u1":
            wanted[payment.shop] = wanted.get(payment.shop, 0) + 1
    assert shops == wanted
    counts = [r[0] for r in spark.read.parquet(str(tmp_path / "counts")).select("value").collect()]
    assert sorted(counts) == sorted(2 * [n + 1 for count in wanted.values() for n in range(count)])


class Notes(KeyedProcess[Payment, int]):
    """Keeps seven kilobytes of each user: a page of its own."""

    order = arrival(commutes=True)
    text = value_state(str, default="")

    def process(self, event: Payment, ctx: Context) -> None:
        """Write the note anew."""
        ctx.emit(len(self.text.value))
        self.text.value = f"{event.amount} ".ljust(7_000, "x")


def test_a_group_of_a_thousand_pages_is_restarted_rescaled_and_looked_into(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its header lists index pages."""
    payments = Payments(spark, tmp_path / "input")
    root = tmp_path / "state"
    checkpoint = Checkpoint(root, root / "checkpoint")

    def run(groups: int, *sent: Payment) -> None:
        payments.add(*sent)
        stream = payments.stream(Notes(), key_groups=groups)
        payments.run(stream, {"main": tmp_path / "lengths"}, root, "parquet")

    def amounts() -> dict[str, str]:
        with view_of(spark, checkpoint) as view:
            assert figures_of(view).entries == 1_400
            found = view.entry(("u77",))
            assert found is not None
            assert found[0].states["text"].value.startswith("77777 " if changed else "77 ")
            rows = entries_of(view).collect()
            return {row.key: row.states.text.partition(" ")[0] for row in rows}

    changed = False
    wanted = {f"u{n}": f"{n}" for n in range(1_400)}
    with one_partition(spark):
        run(1, *(Payment(f"u{n}", START + n, n) for n in range(1_400)))
        with view_of(spark, checkpoint) as view:
            assert any(row.number > INDEX_PAGES for row in view.stored().select("number").collect())
            assert figures_of(view).pages > 1_024
        assert amounts() == wanted
        run(1, Payment("u77", START + 2_000, 77777))
        changed, wanted["u77"] = True, "77777"
        assert amounts() == wanted
        rekey(spark, checkpoint, key_groups=4)
        assert amounts() == wanted
        run(4, Payment("u78", START + 3_000, 78))
        assert amounts() == wanted
