"""Recipes on Spark say what they say in memory, line by line."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millrace_apps.recipes.catalogue import Recipe, catalogue

RECIPES = catalogue()
#: Among them two inputs, a chain, timers, the end of the input.
EVERY_DAY = ("windowless-join", "top-products")


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a recipe make its folders in one of their own (with a short path), and see that they are gone."""
    with tempfile.TemporaryDirectory(prefix="r-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
        monkeypatch.undo()
        assert list(Path(folder).iterdir()) == []


def said(recipe: Recipe, engine: str) -> tuple[list[str], Any]:
    """Run a recipe, on Spark on the session that runs."""
    with contextlib.redirect_stdout(io.StringIO()) as lines:
        result = recipe.run(engine)
    return lines.getvalue().splitlines(), result


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in EVERY_DAY else pytest.mark.matrix)
        for name, recipe in RECIPES.items()
        if "memory" in recipe.engines
    ],
)
def test_both_engines_say_the_same_lines(spark: SparkSession, name: str) -> None:
    assert said(RECIPES[name], "spark")[0] == said(RECIPES[name], "memory")[0]


@pytest.mark.matrix
def test_a_running_query_that_is_killed_leaves_every_row_once(spark: SparkSession) -> None:
    lines, found = said(RECIPES["exactly-once"], "spark")
    assert found["committed"] == [0, 1]
    assert [row.amount for row in found["before"]] == [10, 30, 330]
    assert [row.amount for row in found["after"]] == [10, 30, 330, 370, 420, 480]
    assert found["told"] == [2]
    assert_page_shows("exactly-once", lines)


@pytest.mark.matrix
def test_a_savepoint_moving_into_another_shape_keeps_the_balances(spark: SparkSession) -> None:
    lines, found = said(RECIPES["savepoint-and-rescale"], "spark")
    balances = [(row.user, row.total) for row in found["undisturbed"]]
    assert sorted(balances) == [
        ("ann", 0.0), ("ann", 10.0), ("ann", 30.0), ("ann", 60.0), ("ann", 100.0),
        ("bob", 1.0), ("bob", 2.0), ("bob", 3.0), ("bob", 4.0), ("bob", 5.0),
    ]  # fmt: skip
    again = [(row.user, row.total, row.payments) for row in found["again"]]
    assert again == [("ann", 60.0, 1), ("bob", 4.0, 1), ("ann", 100.0, 2), ("bob", 5.0, 2)]
    assert (found["shape"].partitions, found["shape"].key_groups) == (3, {"RunningBalance": 16})
    assert_page_shows("savepoint-and-rescale", lines)


def test_messages_change_and_the_sums_go_on(spark: SparkSession) -> None:
    lines, found = said(RECIPES["schema-change"], "spark")
    assert [(row.user, row.total, row.vouchers) for row in found["rows"]] == [
        ("ann", 20.0, None), ("ann", 30.0, None), ("ann", 31.0, 1), ("bob", 5.0, None), ("bob", 7.0, 0)
    ]  # fmt: skip
    assert [(letter.reason, letter.key) for letter in found["dead"]] == [("schema", "3:bob")]
    assert_page_shows("schema-change", lines)


def test_a_map_in_parts_writes_the_part_that_an_event_changes(spark: SparkSession) -> None:
    found = said(RECIPES["state-from-inside"], "spark")[1]
    whole, parts = found["InOneEntry"], found["InParts"]
    stock, same = (one["entry"][0].states["stock"].value for one in (whole, parts))
    assert len(stock) == 4_000
    assert stock["a-00007"] == 7 + 10 - 1
    assert stock == same
    assert min(whole["written"]) > 0.9 * max(whole["written"])
    assert max(parts["written"][1:]) < min(whole["written"]) / 3
    assert parts["pages"] > 8 > whole["pages"]


def assert_page_shows(name: str, lines: list[str]) -> None:
    """These pages are not made from a run in memory."""
    from millrace_apps.recipes.catalogue.pages import PAGES

    block = "\n".join([f"```text\n$ millrace recipe run {name}", *lines, "```"])
    assert block in (PAGES / f"{name}.md").read_text("utf-8")
