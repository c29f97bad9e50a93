"""A job that `spark-submit` takes to a cluster whose Python has nothing installed, with what was packed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from millrace.runtime.cluster import StandaloneCluster
from millrace.runtime.packaging import package

JOB = '''
import json, os, sys
import msgspec
from pyspark.sql import SparkSession
from millrace import KeyedProcess, arrival, value_state
from millrace.host.spark import keyed


class Amount(msgspec.Struct):
    user: str
    amount: float
    at: int


class Sum(msgspec.Struct):
    user: str
    total: float


class Totals(KeyedProcess[Amount, Sum]):
    """The sum of a user's amounts so far."""

    order = arrival(in_order_per_key=True)
    total = value_state(float, default=0.0)

    def process(self, event, ctx):
        self.total.value += event.amount
        ctx.emit(Sum(ctx.key, self.total.value))


def where(_):
    import h3, millrace, pandas
    return [sys.executable, *(os.path.realpath(m.__file__) for m in (h3, millrace, pandas))]


spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
told = {"where": spark.sparkContext.parallelize(range(2), 2).map(where).collect()}
rows = [(f"u{n % 3}", float(n), 1_800_000_000_000 + n) for n in range(300)]
df = spark.createDataFrame(rows, "user string, amount double, at long")
sums = keyed(df, by="user", event_time="at").process(Totals())["main"]
told["most"] = {r["user"]: r["most"] for r in sums.groupBy("user").agg({"total": "max"})
                .withColumnRenamed("max(total)", "most").collect()}
print("TOLD", json.dumps(told))
spark.stop()
'''


@pytest.mark.matrix
def test_a_job_runs_by_spark_submit_with_the_archives(tmp_path: Path) -> None:
    packed = package(tmp_path / "dist")
    (packed.code.parent / "job.py").write_text(JOB)
    bare = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    assert subprocess.run([bare, "-c", "import msgspec"], check=False, capture_output=True).returncode != 0
    spark = Path(pyspark.__file__).parent
    with StandaloneCluster(1, log_dir=tmp_path / "logs") as cluster:
        words = [
            spark / "bin" / "spark-submit",
            *packed.arguments[1:],
            "--conf",
            "spark.executor.memory=600m",
            "job.py",
        ]
        done = subprocess.run(
            [str(cluster.url if word == "spark://HOST:7077" else word) for word in words],
            cwd=packed.code.parent,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(spark)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("TOLD ")]
    told = json.loads(line.removeprefix("TOLD "))
    assert told["most"] == {f"u{k}": float(sum(range(k, 300, 3))) for k in range(3)}
    for python, *modules in told["where"]:
        assert Path(python).resolve() == bare, "the node's own Python"
        venv = str(Path(sys.prefix).resolve())
        assert not any(module.startswith(venv) for module in modules), modules
        assert "environment" in modules[0]
