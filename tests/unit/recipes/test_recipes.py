"""Recipes: what each says in memory, its page, its size, and the commands around them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from millrace import minutes
from millrace.cli.recipe import app
from millrace.errors import UserError
from millrace.host.memory_chain import MemoryChain, event_of
from millrace.playback import Playback, at
from millrace.playback.text import clock_text as clock
from millrace.testing.properties import invariant, leaks
from millrace_apps.recipes.catalogue import Recipe, catalogue
from millrace_apps.recipes.catalogue.pages import PAGES, index, output, page

ROOT = Path(__file__).resolve().parents[3]
RECIPES = catalogue()
#: Recipes that tell a result again: the fields that, with the key, say which one it is.
UPSERTS = {"late-data": {"main": ("window_start_ms",)}, "equipment-status": {"main": ("at",)}}
IN_MEMORY = {name: r for name, r in RECIPES.items() if "memory" in r.engines}


def run(name: str) -> Any:
    """Run a recipe in memory, and return what it does."""
    return RECIPES[name].run("memory")


def played(name: str) -> list[Playback]:
    """Run a recipe in memory, and return all that it plays."""
    found = run(name)
    return list(found.values()) if isinstance(found, dict) else [found]


def rows(records: list[Any]) -> list[Any]:
    """Return the values of records, without their names."""
    return [tuple(msgspec.to_builtins(record).values()) for record in records]


def late_events(records: list[Any]) -> list[str]:
    return [late.event.page for late in records]


def check_running_balance(r: Any) -> None:
    assert rows(r.values()) == [("ann", 150), ("bob", 20), ("ann", 250), ("ann", 220)]


def check_filter_and_count(r: Any) -> None:
    assert [(q.page, q.status) for q in r["filter"].values()] == [
        ("cart", 503), ("home", 500), ("cart", 500), ("cart", 502)
    ]  # fmt: skip
    assert rows(r["count"].values()) == [("cart", 1), ("home", 1), ("cart", 2), ("cart", 3)]


def check_temperature_spike(r: Any) -> None:
    assert rows(r.values()) == [("hall", 19.0, 25.5), ("oven", 30.0, 36.0)]
    assert r.values("late") == []


def check_stop_the_print(r: Any) -> None:
    (stop,) = r.values()
    assert stop.printer == "mark"
    # By hand: 66.3 degrees at 10:09, 1.2 more a minute, are 75 in 7 minutes: it was told in time.
    assert stop.earliest < 5 < stop.minutes < 10
    assert r.values("late") == []


def check_trend_anomaly_forecast(r: Any) -> None:
    """The next hours once more from the formula of the series; of its values one was out of it."""
    from millrace_apps.recipes.trend_anomaly_forecast import WAVE

    for outlook, hour in zip(r["ahead"].values(), (12, 18, 24), strict=False):
        true = [50.0 + h + WAVE[h % 4] for h in range(hour + 1, hour + 5)]
        assert outlook.ahead == pytest.approx(true, abs=0.5)
        assert outlook.trend == pytest.approx(1.0, abs=0.05)
    (found,) = r["unusual"].values()
    assert (clock(found.event_time_ms), found.why) == ("day 2 05:00:00", "above the recent level")
    assert found.value == pytest.approx(25.0, abs=0.5)


def check_one_wrong_clock(r: Any) -> None:
    """The hottest of ten minutes once more, from all readings."""
    from millrace_apps.recipes.one_wrong_clock import READINGS

    found: dict[tuple[str, int], float] = {}
    for reading in (reading for batch in READINGS for reading in batch):
        place = reading.sensor, reading.at // minutes(10) * minutes(10)
        found[place] = max(found.get(place, 0.0), reading.celsius)
    told = {(w.sensor, w.window_start_ms): w.hottest for w in r["held"].values()}
    assert told == found
    assert r["held"].values("late") == []
    assert {late.event.sensor for late in r["believed"].values("late")} == {"hall", "oven"}
    assert len(r["believed"].values("late")) == 10


def check_moving_average(r: Any) -> None:
    assert [(w.symbol, w.average, w.close) for w in r.values()] == [
        ("MILL", 102.0, 104.0),
        ("RACE", 10.0, 12.0),
    ]


def check_all_windows(r: Any) -> None:
    letters = {title.partition(":")[0]: ["".join(w.all) for w in out.values()] for title, out in r.items()}
    assert letters == {
        "tumbling": ["abc", "def", "gh"],
        "hopping": ["ab", "abc", "cd", "def", "ef", "gh", "gh"],
        "session": ["abcdef", "gh"],
        "sliding": ["a", "ab", "b", "bc", "c", "cd", "d", "e", "ef", "f", "g", "gh", "h"],
        "look-back": ["a", "ab", "abc", "abcd", "cde", "cdef", "g", "gh"],
        "count": ["abc", "def"],
        "count, hopping": ["abc", "cde", "efg"],
        "global": ["abcd", "abcdefgh", "abcdefgh"],
    }


def check_late_data(r: Any) -> None:
    assert [("".join(w.pages), w.revision, w.pane) for w in r.values()] == [
        ("ac", 0, "on_time"), ("aec", 1, "late"), ("bdf", 0, "on_time")
    ]  # fmt: skip
    assert [(late.event.page, late.lateness_ms) for late in r.values("late")] == [("g", 7_999)]


def check_windowless_join(r: Any) -> None:
    assert rows(r.values()) == [("1", "lamp", 12.5), ("2", "table", 30.0)]
    assert rows(r.values("alone")) == [("3", "chair", None)]


def check_top_products(r: Any) -> None:
    """The ranking once more, by sorting all sales."""
    from millrace_apps.recipes.top_products import SALES

    expected = []
    for batch, hour in zip(SALES, ("10:00", "11:00"), strict=True):
        sums: dict[str, int] = {}
        for sale in batch:
            sums[sale.product] = sums.get(sale.product, 0) + sale.pieces
        best = sorted(sums, key=lambda product: (-sums[product], product))[:10]
        expected += [(at(hour), place + 1, product, sums[product]) for place, product in enumerate(best)]
    assert rows(r.values()) == expected
    assert len(expected) == 20


def check_reminder(r: Any) -> None:
    due = {which: [(m.user, clock(m.due)) for m in out.values()] for which, out in r.items()}
    assert due == {
        "event": [("ann", "10:10:00"), ("bob", "10:39:00"), ("cem", "10:52:00")],
        "ingestion": [("ann", "10:40:00"), ("bob", "10:41:00"), ("cem", "10:53:00")],
        "processing": [("ann", "10:42:00"), ("bob", "10:42:00"), ("cem", "10:52:00")],
    }


def check_changing_rules(r: Any) -> None:
    assert rows(r.values()) == [("large", "c-1", 500.0), ("large", "c-1", 500.0), ("large", "c-2", 80.0)]


def check_order_steps(r: Any) -> None:
    assert [(d.order, round(d.hours, 2)) for d in r.values()] == [("o-1", 47.0), ("o-3", 73.33)]
    assert [(m.order, m.step, clock(m.deadline)) for m in r.values("missed")] == [
        ("o-2", "paid", "10:35:00"), ("o-3", "shipped", "day 2 10:50:00")
    ]  # fmt: skip


def check_network_monitoring(r: Any) -> None:
    """Every minute counted once more from the requests."""
    from millrace_apps.recipes.network_monitoring import REQUESTS

    requests = [request for batch in REQUESTS for request in batch]
    assert len(r.values()) == 9 + 6
    for minute in r.values():
        own = [q for q in requests if q.site == minute.site and q.at < minute.end]
        assert minute.requests == sum(q.at >= minute.end - minutes(1) for q in own)
        assert minute.visitors == len({q.address for q in own if q.at >= minute.end - minutes(5)})
    assert [(m.site, clock(m.end)) for m in r.values("rush")] == [("news", "10:03:00")]


def check_equipment_status(r: Any) -> None:
    assert [(k.machine, clock(k.at), k.status, k.revision) for k in r.values()] == [
        ("press", "10:01:00", "idle", 0),
        ("press", "10:03:00", "idle", 0),
        ("press", "10:03:00", "pressing", 1),
        ("oven", "10:04:00", None, 0),
        ("press", "10:04:00", "pressing", 0),
    ]


def check_failed_logins(r: Any) -> None:
    assert [(g.user, clock(g.first), clock(g.in_at)) for g in r.values()] == [("eve", "10:00:10", "10:00:15")]
    assert [(p.user, len(p.matched["failed"])) for p in r.values("timed_out")] == [("bob", 1)]


def check_bounded_and_unbounded(r: Any) -> None:
    visits = [("ann", 1), ("ann", 3), ("bob", 1), ("bob", 1)]
    for out in r.values():
        assert sorted((v.user, v.clicks) for v in out.values()) == visits
        assert out.values("late") == []


CHECKS: dict[str, Callable[[Any], None]] = {
    name.removeprefix("check_").replace("_", "-"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_a_recipe_gives_what_it_promises(name: str) -> None:
    assert name in CHECKS, "a recipe needs a check of its results that was written by hand"
    CHECKS[name](run(name))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda r: r.name)
def test_the_page_of_a_recipe_shows_what_it_says(recipe: Recipe) -> None:
    """If not: ``python -m millrace_apps.recipes.catalogue.pages``."""
    text = (PAGES / f"{recipe.name}.md").read_text("utf-8")
    assert text.count(f"$ millrace recipe run {recipe.name}\n") == 1
    assert page(recipe, text) == text
    assert f"../../recipes/{recipe.path.name}" in text


def test_the_index_has_every_recipe_and_nothing_else() -> None:
    assert (PAGES / "README.md").read_text("utf-8") == index(RECIPES)
    assert {path.stem for path in PAGES.glob("*.md")} == {*RECIPES, "README"}


def test_the_links_of_the_pages_lead_somewhere() -> None:
    for path in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda r: r.name)
def test_a_recipe_is_short_and_tells_its_story(recipe: Recipe) -> None:
    assert len(recipe.source.splitlines()) <= 110
    assert recipe.about.endswith((".", "?"))
    assert recipe.teaches
    assert len((recipe.module.__doc__ or "").splitlines()) >= 3
    assert callable(recipe.module.main)


@pytest.mark.parametrize("name", IN_MEMORY)
def test_nothing_in_a_recipe_leaks_or_depends_on_how_its_events_come(name: str) -> None:
    for one in played(name):
        plan = one.plan
        process = plan.topology.links[0].process
        events = [event_of(plan.topology, event) for event in plan.events]
        assert leaks(process, events) == []
        if plan.topology.control is None:  # rules and ticks have their place among the batches
            upserts = UPSERTS.get(name)
            invariant(process, events, bound_ms=plan.bound_ms, upsert_by=upserts, ignore=("revision", "pane"))


def test_a_chain_leaves_nothing_behind_in_any_of_its_processes() -> None:
    plan = played("top-products")[0].plan
    chain = MemoryChain(plan.topology)
    chain.run_batch([event_of(plan.topology, event) for event in plan.events])
    assert not chain.is_empty()
    chain.advance_watermark(at("12:00"))
    assert chain.is_empty()


def test_a_recipe_is_a_script_of_ones_own_on_the_core_alone() -> None:
    """What it imports is the core, its dependencies and Python itself: copied, it runs."""
    for path in (ROOT / "recipes").glob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text("utf-8"), re.MULTILINE)
        others = {*imported} - {"millrace", "msgspec", "pyspark"} - sys.stdlib_module_names
        assert others == set(), path.name


def test_list_names_every_recipe_with_its_engines() -> None:
    text = CliRunner().invoke(app, ["list"]).output
    assert "running-balance (memory, spark)\n" in text
    assert "exactly-once (spark)\n" in text
    found = json.loads(CliRunner().invoke(app, ["list", "--format", "json"]).output)
    assert [row["name"] for row in found] == sorted(RECIPES)


@pytest.mark.parametrize("spelling", ["running-balance", "running_balance", "running_balance.py"])
def test_show_prints_the_source(spelling: str) -> None:
    shown = CliRunner().invoke(app, ["show", spelling])
    assert shown.output == (ROOT / "recipes" / "running_balance.py").read_text("utf-8")


def test_run_prints_the_lines_and_memory_is_the_default() -> None:
    default, asked = (
        CliRunner().invoke(app, ["run", "late-data", *more]) for more in ([], ["--engine", "memory"])
    )
    assert default.exit_code == 0
    assert default.output == asked.output == output(RECIPES["late-data"]) + "\n\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "runing-balance"], "there is no recipe 'runing-balance': did you mean running-balance?"),
        (["show", "xyz"], "there is no recipe 'xyz': millrace recipe list names them"),
        (["run", "exactly-once", "--engine", "memory"], "exactly-once runs on spark, not on 'memory'"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(arguments: list[str], message: str) -> None:
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, UserError)
    assert error.exit_code == 2
    assert str(error) == message


def test_a_copy_of_a_recipe_runs_in_any_folder_without_java(tmp_path: Path) -> None:
    file = Path(shutil.copy(ROOT / "recipes" / "running_balance.py", tmp_path / "mine.py"))
    java_free = {name: value for name, value in os.environ.items() if name not in ("PATH", "JAVA_HOME")}
    done = subprocess.run(
        [sys.executable, file],
        cwd=tmp_path,
        env=java_free,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == output(RECIPES["running-balance"]) + "\n\n"
    assert list(tmp_path.iterdir()) == [file]


def test_sigterm_ends_a_run_as_an_exception_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that folders, sessions and children of a recipe go with it."""
    made: list[Path] = []

    def main(engine: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            made.append(Path(folder))
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(RECIPES["running-balance"].module, "main", main)
    assert CliRunner().invoke(app, ["run", "running-balance"]).exit_code == 128 + signal.SIGTERM
    assert len(made) == 1
    assert not made[0].exists()
    assert signal.getsignal(signal.SIGTERM) == before
