"""Recipes: what each says in memory, its page, its size, and the commands around them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from typer.testing import CliRunner

from millrace import minutes
from millrace.cli.recipe import app
from millrace.errors import UserError
from millrace.host.memory_chain import MemoryChain
from millrace.testing.properties import invariant, leaks
from millrace_apps.recipes.kit.catalogue import Recipe, catalogue
from millrace_apps.recipes.kit.killing import ChildFailed, hang, killed_child
from millrace_apps.recipes.kit.pages import PAGES, index, page
from millrace_apps.recipes.kit.run import Run
from millrace_apps.recipes.kit.text import at, clock, told

ROOT = Path(__file__).resolve().parents[3]
RECIPES = catalogue()
#: Recipes that tell a result again: the fields that, with the key, say which one it is.
UPSERTS = {"late-data": {"main": ("window_start_ms",)}, "equipment-status": {"main": ("at",)}}
IN_MEMORY = {name: r for name, r in RECIPES.items() if "memory" in r.engines}


def run(name: str) -> tuple[Any, Run, list[str]]:
    """Run a recipe in memory: what it returns, the run and its lines."""
    lines: list[str] = []
    with Run("memory", lines.append) as playing:
        return RECIPES[name].module.main(playing), playing, lines


def rows(records: list[Any]) -> list[Any]:
    """Return the values of records, without their names."""
    return [tuple(msgspec.to_builtins(record).values()) for record in records]


def late_events(records: list[Any]) -> list[str]:
    return [late.event.page for late in records]


def check_running_balance(r: Any) -> None:
    assert rows(r["main"]) == [("ann", 150), ("bob", 20), ("ann", 250), ("ann", 220)]


def check_filter_and_count(r: Any) -> None:
    assert [(q.page, q.status) for q in r["filter"]["main"]] == [
        ("cart", 503), ("home", 500), ("cart", 500), ("cart", 502)
    ]  # fmt: skip
    assert rows(r["count"]["main"]) == [("cart", 1), ("home", 1), ("cart", 2), ("cart", 3)]


def check_temperature_spike(r: Any) -> None:
    assert rows(r["main"]) == [("hall", 19.0, 25.5), ("oven", 30.0, 36.0)]
    assert r["late"] == []


def check_stop_the_print(r: Any) -> None:
    (stop,) = r["main"]
    assert stop.printer == "mark"
    # By hand: 66.3 degrees at 10:09, 1.2 more a minute, are 75 in 7 minutes: it was told in time.
    assert stop.earliest < 5 < stop.minutes < 10
    assert r["late"] == []


def check_trend_anomaly_forecast(r: Any) -> None:
    """The next hours once more from the formula of the series; of its values one was out of it."""
    from millrace_apps.recipes.trend_anomaly_forecast import WAVE

    for outlook, hour in zip(r["ahead"]["main"], (12, 18, 24), strict=False):
        true = [50.0 + h + WAVE[h % 4] for h in range(hour + 1, hour + 5)]
        assert outlook.ahead == pytest.approx(true, abs=0.5)
        assert outlook.trend == pytest.approx(1.0, abs=0.05)
    (found,) = r["unusual"]["main"]
    assert (clock(found.event_time_ms), found.why) == ("day 2 05:00:00", "above the recent level")
    assert found.value == pytest.approx(25.0, abs=0.5)


def check_one_wrong_clock(r: Any) -> None:
    """The hottest of ten minutes once more, from all readings."""
    from millrace_apps.recipes.one_wrong_clock import READINGS

    found: dict[tuple[str, int], float] = {}
    for reading in (reading for batch in READINGS for reading in batch):
        place = reading.sensor, reading.at // minutes(10) * minutes(10)
        found[place] = max(found.get(place, 0.0), reading.celsius)
    told = {(w.sensor, w.window_start_ms): w.hottest for w in r["held"]["main"]}
    assert told == found
    assert r["held"]["late"] == []
    assert {late.event.sensor for late in r["believed"]["late"]} == {"hall", "oven"}
    assert len(r["believed"]["late"]) == 10


def check_moving_average(r: Any) -> None:
    assert [(w.symbol, w.average, w.close) for w in r["main"]] == [
        ("MILL", 102.0, 104.0),
        ("RACE", 10.0, 12.0),
    ]


def check_all_windows(r: Any) -> None:
    letters = {title.partition(":")[0]: ["".join(w.all) for w in out["main"]] for title, out in r.items()}
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
    assert [("".join(w.pages), w.revision, w.pane) for w in r["main"]] == [
        ("ac", 0, "on_time"), ("aec", 1, "late"), ("bdf", 0, "on_time")
    ]  # fmt: skip
    assert [(late.event.page, late.lateness_ms) for late in r["late"]] == [("g", 7_999)]


def check_windowless_join(r: Any) -> None:
    assert rows(r["main"]) == [("1", "lamp", 12.5), ("2", "table", 30.0)]
    assert rows(r["alone"]) == [("3", "chair", None)]


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
    assert rows(r["main"]) == expected
    assert len(expected) == 20


def check_reminder(r: Any) -> None:
    due = {which: [(m.user, clock(m.due)) for m in out["main"]] for which, out in r.items()}
    assert due == {
        "event": [("ann", "10:10:00"), ("bob", "10:39:00"), ("cem", "10:52:00")],
        "ingestion": [("ann", "10:40:00"), ("bob", "10:41:00"), ("cem", "10:53:00")],
        "processing": [("ann", "10:42:00"), ("bob", "10:42:00"), ("cem", "10:52:00")],
    }


def check_changing_rules(r: Any) -> None:
    assert rows(r["main"]) == [("large", "c-1", 500.0), ("large", "c-1", 500.0), ("large", "c-2", 80.0)]


def check_order_steps(r: Any) -> None:
    assert [(d.order, round(d.hours, 2)) for d in r["main"]] == [("o-1", 47.0), ("o-3", 73.33)]
    assert [(m.order, m.step, clock(m.deadline)) for m in r["missed"]] == [
        ("o-2", "paid", "10:35:00"), ("o-3", "shipped", "day 2 10:50:00")
    ]  # fmt: skip


def check_network_monitoring(r: Any) -> None:
    """Every minute counted once more from the requests."""
    from millrace_apps.recipes.network_monitoring import REQUESTS

    requests = [request for batch in REQUESTS for request in batch]
    assert len(r["main"]) == 9 + 6
    for minute in r["main"]:
        own = [q for q in requests if q.site == minute.site and q.at < minute.end]
        assert minute.requests == sum(q.at >= minute.end - minutes(1) for q in own)
        assert minute.visitors == len({q.address for q in own if q.at >= minute.end - minutes(5)})
    assert [(m.site, clock(m.end)) for m in r["rush"]] == [("news", "10:03:00")]


def check_equipment_status(r: Any) -> None:
    assert [(k.machine, clock(k.at), k.status, k.revision) for k in r["main"]] == [
        ("press", "10:01:00", "idle", 0),
        ("press", "10:03:00", "idle", 0),
        ("press", "10:03:00", "pressing", 1),
        ("oven", "10:04:00", None, 0),
        ("press", "10:04:00", "pressing", 0),
    ]


def check_failed_logins(r: Any) -> None:
    assert [(g.user, clock(g.first), clock(g.in_at)) for g in r["main"]] == [("eve", "10:00:10", "10:00:15")]
    assert [(p.user, len(p.matched["failed"])) for p in r["timed_out"]] == [("bob", 1)]


def check_bounded_and_unbounded(r: Any) -> None:
    visits = [("ann", 1), ("ann", 3), ("bob", 1), ("bob", 1)]
    for out in r.values():
        assert sorted((v.user, v.clicks) for v in out["main"]) == visits
        assert out["late"] == []


CHECKS: dict[str, Callable[[Any], None]] = {
    name.removeprefix("check_").replace("_", "-"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_a_recipe_gives_what_it_promises(name: str) -> None:
    assert name in CHECKS, "a recipe needs a check of its results that was written by hand"
    CHECKS[name](run(name)[0])


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda r: r.name)
def test_the_page_of_a_recipe_shows_what_it_says(recipe: Recipe) -> None:
    """If not: ``python -m millrace_apps.recipes.kit.pages``."""
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
    assert len(recipe.source.splitlines()) <= 80
    assert recipe.about.endswith((".", "?"))
    assert recipe.teaches
    assert len((recipe.module.__doc__ or "").splitlines()) >= 3
    assert callable(recipe.module.main)


@pytest.mark.parametrize("name", IN_MEMORY)
def test_nothing_in_a_recipe_leaks_or_depends_on_how_its_events_come(name: str) -> None:
    _, playing, _ = run(name)
    for plan in playing.plans:
        process = plan.links[0][1]
        events = [(plan.key(event), plan.time(event), event) for event in plan.whole]
        assert leaks(process, events) == []
        if not plan.has_controls:  # rules and ticks have their place among the batches
            upserts = UPSERTS.get(name)
            invariant(process, events, bound_ms=plan.bound_ms, upsert_by=upserts, ignore=("revision", "pane"))


def test_a_chain_leaves_nothing_behind_in_any_of_its_processes() -> None:
    plan = run("top-products")[1].plans[0]
    (_, first), *links = plan.links
    chain = MemoryChain(first, *links)
    chain.run_batch([(plan.key(event), plan.time(event), event) for event in plan.whole])
    assert not chain.is_empty()
    chain.advance_watermark(at("12:00"))
    assert chain.is_empty()


def test_the_recipes_stand_on_the_core_alone() -> None:
    allowed, forbidden = "millrace_apps.recipes", {"tests", "dashboard"}
    for path in (ROOT / "recipes").rglob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text("utf-8"), re.MULTILINE)
        assert not forbidden & {name.partition(".")[0] for name in imported}, path.name
        others = [name for name in imported if name.startswith("millrace_apps") and allowed not in name]
        assert others in ([], ["millrace_apps"]), path.name  # from millrace_apps import recipes


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
    assert default.output == asked.output == "\n".join(run("late-data")[2]) + "\n"


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


def test_a_recipe_runs_from_its_own_file_in_any_folder_without_java(tmp_path: Path) -> None:
    file = ROOT / "recipes" / "running_balance.py"
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
    assert done.stdout == "\n".join(run("running-balance")[2]) + "\n"
    assert list(tmp_path.iterdir()) == []


def test_times_are_read_and_written_as_a_clock_shows_them() -> None:
    for text in ("00:00:00", "10:05:07", "10:05:07.250", "day 4 23:59:59.999"):
        assert clock(at(text)) == text
    assert clock(at("09:00") - 36_000_000) == "day 0 23:00:00"


def test_records_of_all_shapes_are_told_in_one_line() -> None:
    class Part(msgspec.Struct):
        x: float

    class Whole(msgspec.Struct):
        at: int
        parts: list[Part]
        names: dict[str, int]
        none: None = None

    record = Whole(at("10:00"), [Part(0.1 + 0.2)], {"a": 1})
    assert told(record) == "Whole at=10:00:00 parts=[(Part x=0.3)] names={a: 1} none=None"
    assert told("text") == "text"


def test_a_child_is_killed_when_the_moment_has_come(tmp_path: Path) -> None:
    waiting = iter([False, False, True])
    killed_child(hang, tmp_path, when=lambda: (tmp_path / "child.log").exists() and next(waiting))
    assert next(waiting, None) is None
    here = str(tmp_path)
    assert [p for p in psutil.process_iter(["cmdline"]) if here in " ".join(p.info["cmdline"] or ())] == []


def test_a_child_that_ends_before_it_is_killed_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match=r"ended or hangs before it was killed: .*Error"):
        killed_child(clock, tmp_path, when=lambda: False)  # type: ignore[arg-type]  # a time, no folder


def test_sigterm_ends_a_run_as_an_exception_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that folders, sessions and children of a recipe go with it."""
    made: list[Path] = []

    def main(run: Run) -> None:
        made.append(run.folder())
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(RECIPES["running-balance"].module, "main", main)
    assert CliRunner().invoke(app, ["run", "running-balance"]).exit_code == 128 + signal.SIGTERM
    assert len(made) == 1
    assert not made[0].exists()
    assert signal.getsignal(signal.SIGTERM) == before
