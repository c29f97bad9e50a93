"""The live view on terminals of any size, in pipes, and when something goes wrong under it."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from rich.console import Console

from millrace.console.live import LiveView, is_interactive
from millrace.console.live_panels import AlertLine, ViewModel, render, sparkline, status_line
from millrace.console.report import Check, print_checks, print_table
from millrace.runtime.monitor import QueryMonitor
from millrace.time.clock import ClockStatus

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def text_console(encoding: str = "utf-8") -> tuple[Console, Callable[[], str]]:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    return Console(file=file, width=400), lambda: raw.getvalue().decode(encoding)


def terminal(width: int = 100, height: int = 30) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=True, width=width, height=height, color_system="standard"), file


def alerts(*keys: str) -> list[AlertLine]:
    return [
        AlertLine(at="10:00:01", key=key, reasons="velocity", score=4.25, amount="12.00 EUR") for key in keys
    ]


def full_model() -> ViewModel:
    return ViewModel(
        elapsed_s=12,
        remaining_s=48,
        phase="streaming",
        sent=12_000,
        sent_rate=1_000,
        processed=11_800,
        processed_rate=990,
        lag=200,
        lag_max=120,
        watermark="10:00:05",
        watermark_gap_s=6.2,
        batches=21,
        batch_ms=310,
        batch_ms_p50=300,
        batch_ms_p95=510,
        state_rows=42,
        state_bytes=34 * 1024**2,
        outputs={"transactions": 11_800, "alerts": 17},
        alerts=alerts("card-1", "card-2"),
        alerts_total=17,
        logs="logs/fraud.log",
    )


def drawn(model: ViewModel, width: int = 120, height: int = 40, *, ascii_only: bool = False) -> list[str]:
    console = Console(record=True, force_terminal=True, width=width, height=height, file=io.StringIO())
    console.print(render("fraud", model, [1, 2, 3], width=width, height=height, ascii_only=ascii_only))
    return console.export_text().splitlines()


class TestPicture:
    def test_everything_that_matters_is_on_it(self) -> None:
        text = "\n".join(drawn(full_model()))
        for part in (
            "fraud", "12 s", "48 s left", "streaming", "12,000  1,000/s", "11,800  990/s",
            "200 (largest partition 120)", "10:00:05 (6.2 s behind the newest event)",
            "310 ms (p50 300, p95 510)", "42 rows, 34.0 MB", "transactions", "card-1", "velocity",
            "4.25", "12.00 EUR", "alerts: 17", "logs: logs/fraud.log",
        ):  # fmt: skip
            assert part in text

    @pytest.mark.parametrize("width", [20, 60, 89, 90, 200])
    @pytest.mark.parametrize("height", [10, 16, 24, 25, 60])
    @pytest.mark.parametrize("error", [None, "the broker went away"])
    def test_it_never_outgrows_the_terminal(self, width: int, height: int, error: str | None) -> None:
        model = full_model()
        model.outputs = {f"table_{n}": n for n in range(30)}
        model.alerts, model.error = alerts(*(f"card-{n}" for n in range(100))), error
        lines = drawn(model, width, height)
        assert max(map(len, lines)) <= width
        # Below 14 lines the panel of the stream alone does not fit; the terminal crops that.
        assert len(lines) < max(height, 14)

    def test_the_newest_alerts_are_shown(self) -> None:
        model = full_model()
        model.alerts = alerts(*(f"card-{n:03}" for n in range(100)))
        text = "\n".join(drawn(model, 120, 24))
        assert "card-099" in text
        assert "card-000" not in text

    def test_an_error_is_shown(self) -> None:
        model = full_model()
        model.error = "the broker went away"
        assert "the broker went away" in "\n".join(drawn(model))

    def test_before_the_first_batch_there_are_dashes_and_no_nonsense(self) -> None:
        text = "\n".join(drawn(ViewModel()))
        assert "None" not in text
        assert "nothing written yet" in text

    def test_many_outputs_are_summed_up(self) -> None:
        model = ViewModel(outputs={f"t{n}": 10 for n in range(12)})
        text = "\n".join(drawn(model))
        assert "5 more" in text
        assert "50" in text

    def test_data_cannot_steer_the_terminal(self) -> None:
        model = ViewModel(alerts=alerts("\x1b[2J[bold]x\r\n"), alerts_total=1, outputs={"\x1b]0;t\x07": 1})
        console, file = terminal()
        console.print(render("fraud", model, [], width=100, height=30))
        assert "\x1b[2J" not in file.getvalue()
        assert "\x1b]0" not in file.getvalue()
        assert "?[2J[bold]x??" in "\n".join(drawn(model))

    def test_a_terminal_without_unicode_gets_plain_characters(self) -> None:
        model = full_model()
        model.alerts = alerts("Zürich")
        assert "\n".join(drawn(model, ascii_only=True)).isascii()

    def test_the_line_of_rates_is_scaled_to_its_largest(self) -> None:
        assert sparkline([0, 1, 2, 4, 8]) == "▁▂▃▅█"
        assert sparkline([0, 0]) == "▁▁"
        assert sparkline([]) == ""

    def test_a_query_fills_it(self) -> None:
        monitor = QueryMonitor()
        monitor.progressed(
            {
                "name": "fraud",
                "runId": "r",
                "batchId": 0,
                "numInputRows": 50,
                "timestamp": "2026-01-01T00:00:10.000Z",
                "durationMs": {"addBatch": 400, "triggerExecution": 500},
            }
        )
        second = round(datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC).timestamp() * 1_000)
        monitor.on_clock("fraud", ClockStatus(second - 1_000, second, second + 2_500))
        model = ViewModel.of(monitor.snapshot(), elapsed_s=3.0, sent=60)
        assert (model.processed, model.processed_rate, model.batch_ms) == (50, 100.0, 500)
        assert (model.watermark, model.watermark_gap_s) == ("00:00:01", 2.5)
        assert (model.elapsed_s, model.sent) == (3.0, 60)


class TestTerminal:
    def test_the_cursor_comes_back_and_the_last_picture_stays(self, clock: Clock) -> None:
        console, file = terminal()
        with LiveView("fraud", console, env={}, clock=clock) as view:
            view.update(full_model())
        out = file.getvalue()
        assert HIDE_CURSOR in out
        assert out.rindex(SHOW_CURSOR) > out.rindex(HIDE_CURSOR)
        assert "card-2" in out[: out.rindex(SHOW_CURSOR)]

    @pytest.mark.parametrize("error", [RuntimeError("x"), KeyboardInterrupt(), SystemExit(3)])
    def test_the_cursor_comes_back_whatever_ends_it(self, error: BaseException, clock: Clock) -> None:
        console, file = terminal()
        view = LiveView("fraud", console, env={}, clock=clock)
        view.update(full_model())
        with pytest.raises(type(error)), view:
            raise error
        out = file.getvalue()
        assert out.rindex(SHOW_CURSOR) > out.rindex(HIDE_CURSOR)

    def test_the_cursor_comes_back_from_a_phase_that_fails(self, clock: Clock) -> None:
        console, file = terminal()
        view = LiveView("fraud", console, env={}, clock=clock)
        with pytest.raises(KeyboardInterrupt), view, view.phase("Starting the broker"):
            raise KeyboardInterrupt
        out = file.getvalue()
        assert out.rindex(SHOW_CURSOR) > out.rindex(HIDE_CURSOR)
        assert "✗ Starting the broker" in out

    def test_phases_show_their_seconds_also_inside_each_other_and_above_the_picture(
        self, clock: Clock
    ) -> None:
        console, file = terminal()
        with LiveView("fraud", console, env={}, clock=clock) as view:
            with view.phase("Outer"):
                clock.now += 1.5
                with view.phase("Inner"):
                    clock.now += 1.0
            view.update(full_model())
            with view.phase("Draining"):
                clock.now += 0.5
        out = file.getvalue()
        for line in ("✓ Inner  1.0 s", "✓ Outer  2.5 s", "✓ Draining  0.5 s"):
            assert line in out

    def test_closing_twice_is_harmless_and_a_view_can_be_shown_again(self, clock: Clock) -> None:
        console, file = terminal()
        view = LiveView("fraud", console, env={}, clock=clock)
        view.update(full_model())
        view.close()
        view.close()
        with view:
            view.update(full_model())
        assert file.getvalue().count(SHOW_CURSOR) == 2

    @pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"CI": "true"}, {"TERM": "dumb"}])
    def test_where_no_picture_is_wanted_there_are_lines(self, env: dict[str, str], clock: Clock) -> None:
        console, file = terminal()
        assert not is_interactive(console, env)
        with LiveView("fraud", console, env=env, clock=clock) as view:
            view.update(full_model())
        assert "\x1b" not in file.getvalue()


class TestLines:
    def test_one_line_every_few_seconds(self, clock: Clock) -> None:
        console, output = text_console()
        with LiveView("fraud", console, clock=clock, every_s=5) as view:
            for second in range(11):
                clock.now = float(second)
                view.update(ViewModel(elapsed_s=second, processed=second * 10))
        assert [line.split("]")[0] for line in output().splitlines()] == ["[   0 s", "[   5 s", "[  10 s"]

    def test_a_line_says_what_the_picture_says(self) -> None:
        line = status_line(full_model())
        for part in ("[  12 s]", "sent 12,000 (1,000/s)", "processed 11,800 (990/s)", "lag 200", "alerts 17"):
            assert part in line
        assert "\n" not in line

    def test_each_alert_is_shown_once(self, clock: Clock) -> None:
        console, output = text_console()
        with LiveView("fraud", console, clock=clock) as view:
            view.update(ViewModel(alerts=alerts("a"), alerts_total=1))
            view.update(ViewModel(alerts=alerts("a"), alerts_total=1))
            clock.now = 2.0
            view.update(ViewModel(alerts=alerts("a", "b"), alerts_total=2))
        assert [line.split()[2] for line in output().splitlines() if "ALERT" in line] == ["a", "b"]

    def test_a_flood_of_alerts_is_thinned_and_the_rest_counted(self, clock: Clock) -> None:
        console, output = text_console()
        with LiveView("fraud", console, clock=clock, alerts_per_s=3, every_s=1) as view:
            view.update(ViewModel(alerts=alerts(*"abcdefgh"), alerts_total=1_000))
            view.update(ViewModel(alerts=alerts(*"abcdefgi"), alerts_total=1_001))
            clock.now = 1.0
            view.update(ViewModel(alerts=alerts(*"abcdefgj"), alerts_total=1_002))
        lines = output().splitlines()
        assert [line.split()[2] for line in lines if "ALERT" in line] == ["a", "b", "c", "j"]
        assert "(997 more alerts not shown)" in lines[3]
        assert "(1 more alerts not shown)" in lines[-1]

    def test_phases_say_when_they_start_and_end(self, clock: Clock) -> None:
        console, output = text_console()
        with LiveView("fraud", console, clock=clock) as view, view.phase("Starting the broker"):
            clock.now = 2.84
        assert output().splitlines() == ["Starting the broker …", "✓ Starting the broker  2.8 s"]

    def test_a_stream_that_knows_ascii_only_is_no_crash(self, clock: Clock) -> None:
        console, output = text_console("ascii")
        with LiveView("fraud", console, clock=clock) as view:
            with view.phase("Zürich …"):
                pass
            view.message("→ done")
            view.update(ViewModel(alerts=alerts("Zürich"), alerts_total=1))
        assert "ok Z?rich" in output()

    def test_data_cannot_steer_a_log(self, clock: Clock) -> None:
        console, output = text_console()
        with LiveView("fraud", console, clock=clock) as view:
            view.update(ViewModel(alerts=alerts("x\n[  99 s]  processed 1\x1b[2J"), alerts_total=1))
        assert len(output().splitlines()) == 2
        assert "\x1b" not in output()


class TestReport:
    def test_checks_hold_only_if_all_of_them_do(self) -> None:
        console, output = text_console()
        good = Check("rows", 1200, 1200, True, compared=1200)
        bad = Check("late", 3, 4, False, "see the log", compared=3)
        assert print_checks("demo", [good], console) is True
        assert print_checks("demo", [good, bad], console) is False
        assert print_checks("demo", [], console) is False
        assert "1,200" in output()
        assert ["late", "3", "4", "NO", "see the log"] in [
            line.split(maxsplit=4) for line in output().splitlines()
        ]

    def test_a_check_that_has_nothing_to_compare_does_not_hold_and_says_so(self) -> None:
        console, output = text_console()
        good = Check("rows", 1200, 1200, True, compared=1200)
        empty = Check("refunds", 0, 0, True, "of orders", compared=0)
        assert print_checks("demo", [good, empty], console) is False
        assert ["refunds", "0", "0", "-", "nothing to compare; of orders"] in [
            line.split(maxsplit=4) for line in output().splitlines()
        ]
        wrong = Check("refunds", 0, 1, False, compared=0)
        assert not wrong.is_empty
        assert not wrong.holds

    def test_a_table_takes_cells_as_they_are(self) -> None:
        console, output = text_console()
        print_table(
            "t", ["name", "value"], [["[red]x", 1234.5], ["y", None], ["z", 0.25], ["w", True]], console
        )
        cells = [line.split() for line in output().splitlines()[2:]]
        assert cells == [["[red]x", "1,234"], ["y", "-"], ["z", "0.25"], ["w", "yes"]]
