"""What Spark hides, by the expressions that are made of the same words as our own masks."""

from __future__ import annotations

import contextlib
import re

import psutil
import pytest
from pyspark.sql import SparkSession

from millrace.runtime.redaction import MASK, kept_groups, redact_text, spark_name_regex, spark_text_regex
from tests.unit.millrace.runtime.secret_cases import HIDDEN, SECRET, SHOWN, WORD

KEPT = "".join(f"${number}" for number in range(1, kept_groups() + 1))
NAMES = (
    "spark.hadoop.fs.azure.account.key.lake",
    "spark.hadoop.fs.azure.sas.c.lake",
    "spark.hadoop.fs.s3a.encryption.key",
    "spark.hadoop.parquet.encryption.key.list",
    "kafka.sasl.jaas.config",
)


def cleaned(spark: SparkSession, text: str) -> str:
    """Return a text as the log shows it."""
    pattern = spark._jvm.java.util.regex.Pattern.compile(spark_text_regex())
    return str(pattern.matcher(text).replaceAll(KEPT + MASK))


def test_java_masks_what_python_masks_and_nothing_else(spark: SparkSession) -> None:
    for text in (*HIDDEN, *SHOWN):
        assert cleaned(spark, text) == redact_text(text), text


def test_a_plan_is_shown_without_secrets(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr(f"'AccountKey={SECRET};x' AS a", f"'https://{WORD}@git.example' AS b")
    plan = frame._jdf.queryExecution().toString()
    assert "redacted" in plan
    assert SECRET not in plan
    assert WORD not in plan


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_with_a_secret_is_hidden_where_spark_shows_settings(spark: SparkSession, name: str) -> None:
    pairs = spark._jvm.java.util.regex.Pattern.compile(spark_name_regex())
    assert pairs.matcher(name).find()
    # Spark asks for the value too: a harmless name may have an address with a key in it.
    assert pairs.matcher(f"https://{WORD}@lake").find()
    assert not pairs.matcher("spark.sql.shuffle.partitions").find()
    assert not pairs.matcher("state.encryption.key_file").find()


def test_the_expression_of_the_log_is_the_same(spark: SparkSession) -> None:
    """Of the session that runs: its log has every secret masked, and all the rest of the lines."""
    context = spark._jvm.org.apache.logging.log4j.LogManager.getContext(False)
    file = context.getConfiguration().getAppender("file").getFileName()
    logger = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("millrace.test")
    for number, text in enumerate((*HIDDEN, *SHOWN)):
        logger.warn(f"case {number} {text} end {number}")
    with open(file, encoding="utf-8") as log:
        said = log.read()
    assert SECRET not in said
    assert WORD not in said
    for number, text in enumerate(HIDDEN):
        if "BEGIN" not in text:
            assert re.search(rf"case {number} .*{re.escape(MASK)}.* end {number}$", said, re.MULTILINE), text
    for number, text in enumerate(SHOWN, len(HIDDEN)):
        assert f"case {number} {text} end {number}" in said


def test_no_setting_of_this_session_is_an_argument_of_its_jvm(spark: SparkSession) -> None:
    """The child processes of this one, as everybody on the machine sees them."""
    shown = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # Spark's Python processes come and go
            shown.append(" ".join(child.cmdline()))
    java = [words for words in shown if "org.apache.spark.deploy.SparkSubmit" in words]
    assert len(java) == 1
    assert "--properties-file" in java[0]
    for name, value in spark.sparkContext.getConf().getAll():
        if "extraJavaOptions" not in name:
            assert f"{name}={value}" not in java[0]
