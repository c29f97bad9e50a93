"""A process and its types as a script or notebook has them, which no worker can import: they run on Spark."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millrace import keyed
from millrace.playback import write_batches

CELL = """
import dataclasses, enum
from typing import Annotated, NamedTuple, NewType
import msgspec
from millrace import KeyedProcess, arrival, days, side_output, value_state

class Paid(enum.Enum):
    CARD = "card"
    CASH = "cash"

@dataclasses.dataclass
class Sent:
    to: str = "home"
    parts: list[int] = dataclasses.field(default_factory=list)

class Place(NamedTuple):
    x: int
    y: int = 0

Rank = NewType("Rank", int)

class Line(msgspec.Struct):
    article: str
    pieces: int = 1

class Order(msgspec.Struct):
    user: str
    at: int
    amount: Annotated[float, msgspec.Meta(ge=0)]
    lines: list[Line] = []

class Kept(msgspec.Struct):
    total: float = 0.0
    pieces: int = 0
    paid: Paid = Paid.CARD
    sent: Sent = msgspec.field(default_factory=Sent)
    place: Place = Place(1)
    rank: Rank = Rank(0)

class Spent(msgspec.Struct):
    user: str
    total: float
    pieces: int

def pieces_of(order):
    return sum(line.pieces for line in order.lines)

class Spending(KeyedProcess[Order, Spent]):
    order = arrival(commutes=True)
    kept = value_state(Kept, default_factory=Kept, ttl=days(3))
    large = side_output(Order)

    def process(self, event, ctx):
        kept = self.kept.value
        self.kept.value = Kept(total=kept.total + event.amount, pieces=kept.pieces + pieces_of(event))
        ctx.emit(Spent(ctx.key, self.kept.value.total, self.kept.value.pieces))
        if event.amount > 5:
            ctx.output(self.large, event)
"""

#: The cell is run again with a field more before the query goes on.
KEPT_BY_THEN = (
    "class Kept(msgspec.Struct):\n",
    "class Kept(msgspec.Struct, kw_only=True):\n    more: str = ''\n",
)


@pytest.mark.parametrize("plan", ["chain", "station"])
def test_what_a_notebook_defines_runs_and_goes_on(spark: SparkSession, plan: Any) -> None:
    kept = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        with tempfile.TemporaryDirectory(prefix="n-") as name:
            folder = Path(name)
            ann = {
                "user": "ann",
                "at": 1,
                "amount": 3,
                "lines": [{"article": "pen"}, {"article": "ink", "pieces": 2}],
            }
            batches = [
                [ann],
                [{"user": "ann", "at": 2, "amount": 30}, {"user": "bob", "at": 2, "amount": -1}],
            ]
            for number, batch in enumerate((batches, [[{"user": "ann", "at": 3, "amount": 1}]])):
                cell: dict[str, Any] = {"__name__": "__main__"}
                text = CELL.replace("class Kept(msgspec.Struct):\n", KEPT_BY_THEN[number])
                exec(compile(text, "cell", "exec", dont_inherit=True), cell)  # noqa: S102 - as a notebook does
                write_batches(folder / "in", batch, start=10 * number)
                lines = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{folder}/in")
                orders = keyed(lines, by="user", event_time="at", value="value", plan=plan)
                outputs = {output: folder / output for output in ("main", "large", "dead_letters")}
                spent = orders.process(cell["Spending"]())
                spent.write_to(outputs, folder / "state", trigger={"availableNow": True}).awaitTermination()
            tables = {output: spark.read.format("delta").load(str(path)) for output, path in outputs.items()}
            rows = tables["main"].orderBy("total").collect()
            assert [(row.user, row.total, row.pieces) for row in rows] == [
                ("ann", 3.0, 3), ("ann", 33.0, 3), ("ann", 34.0, 3)
            ]  # fmt: skip
            assert [row.amount for row in tables["large"].collect()] == [30.0]
            assert [row.reason for row in tables["dead_letters"].collect()] == ["range"]
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", kept or "200")
