"""``millrace evaluate clickstream recommend``: next items predicted on other people's sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millrace.errors import UserError
from millrace.operations.report import write

_File: dict[str, Any] = {"exists": True, "dir_okay": False, "readable": True}
_SESSIONS = "--train-sessions and --test-prefixes"


def recommend(
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="The report, JSON.")],
    train: Annotated[
        list[Path] | None,
        typer.Option(
            "--train",
            **_File,
            help="Clicks whose sessions are known: Parquet, or OTTO's .jsonl; may be repeated.",
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option("--test", **_File, help="Clicks that are predicted: Parquet, or OTTO's .jsonl."),
    ] = None,
    train_sessions: Annotated[
        Path | None,
        typer.Option("--train-sessions", **_File, help="Parquet: a session a row (a list), oldest first."),
    ] = None,
    test_prefixes: Annotated[
        Path | None,
        typer.Option("--test-prefixes", **_File, help="Parquet: a visit up to now (a list) and its target."),
    ] = None,
    recs: Annotated[Path | None, typer.Option("--recs", dir_okay=False, help="The lists, Parquet.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Let test sessions in as they end.")] = False,
    ends_after: Annotated[
        str, typer.Option("--ends-after", help="With --update: a longer pause ends a session.")
    ] = "30m",
    m: Annotated[int, typer.Option("--newest", min=1, help="Newest sessions that an item keeps.")] = 1000,
    compare: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="Predict by the simple ways, too.")
    ] = True,
    learn: Annotated[
        bool,
        typer.Option("--learn", help="Learn an order of candidates from training; predict by it, too."),
    ] = False,
    session_column: Annotated[str, typer.Option(help="Column of the session.")] = "session_id",
    item_column: Annotated[str, typer.Option(help="Column of the item.")] = "item_id",
    time_column: Annotated[str, typer.Option(help="Column of the click's time.")] = "event_time",
    items_column: Annotated[str, typer.Option(help="Column of a session's list of items.")] = "items",
    prefix_column: Annotated[str, typer.Option(help="Column of a visit's items up to now.")] = "prefix",
    target_column: Annotated[str, typer.Option(help="Column of what came next.")] = "target",
) -> None:
    """Predict the next item after every click of test sessions but the last, and say how often it was right.

    Either --train and --test (clicks with times) or --train-sessions and --test-prefixes (lists).
    """
    from millrace_apps.clickstream.processes.offer_rules import duration_ms
    from millrace_apps.clickstream.recommend.evaluate import evaluate_clicks, evaluate_lists
    from millrace_apps.clickstream.recommend.files import Columns

    clicks, lists = (bool(train), test is not None), (train_sessions is not None, test_prefixes is not None)
    if clicks == (True, True) and lists == (False, False):
        assert train is not None  # noqa: S101 - as was just seen
        assert test is not None  # noqa: S101 - as was just seen
        report = evaluate_clicks(
            train, test, columns=Columns(session_column, item_column, time_column), update=update,
            ends_after_ms=duration_ms(ends_after), m=m, recs=recs, compare=compare, learn=learn, say=_say,
        )  # fmt: skip
    elif lists == (True, True) and clicks == (False, False):
        assert train_sessions is not None  # noqa: S101 - as was just seen
        assert test_prefixes is not None  # noqa: S101 - as was just seen
        if update:
            raise UserError("--update needs times: it goes with --train and --test")
        report = evaluate_lists(
            train_sessions, test_prefixes, items=items_column, prefix=prefix_column, target=target_column,
            m=m, recs=recs, compare=compare, learn=learn, say=_say,
        )  # fmt: skip
    else:
        raise UserError(f"give --train and --test, or {_SESSIONS}, and not some of both")
    write(out, report)
    _show(report)


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Next items, {report['queries']:,} queries")
    for column in ("policy", "way", "HR@20", "MRR@20", "NDCG@20"):
        table.add_column(column, justify="left" if column in ("policy", "way") else "right")
    for policy in report["parameters"]:
        learned = {"learned": report["learned"][policy]} if "learned" in report else {}
        ways = {"millrace": report[policy]} | learned | {n: r[policy] for n, r in report["baselines"].items()}
        for way, found in ways.items():
            table.add_row(policy, way, *(f"{found[name]:.4f}" for name in ("hr20", "mrr20", "ndcg20")))
    Console().print(table)
    ms = report["scoring_ms"]
    typer.echo(
        f"coverage {report['coverage']:.3f}; a list takes p50 {ms['p50']} ms, p90 {ms['p90']} ms, "
        f"p99 {ms['p99']} ms, CPU {report['scoring_cpu_ms']} ms"
    )
