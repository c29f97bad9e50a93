"""`millrace fraud serve`: a decision while the customer waits; `fraud served`: beside the stream's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from millrace.cli.options import ConfigFile, Overrides, Root
from millrace.cli.serve_options import Host, KeyFile, Limit, Port, TokenFile

app = typer.Typer()
served = typer.Typer(no_args_is_help=True, help="What was answered, beside what the stream decided.")

Ack = Annotated[
    float,
    typer.Option(min=0.01, max=60, help="How long an answer waits for its payment to be safe, and how long "
                 "the broker may take nothing before it counts as away, s."),
]  # fmt: skip
WhenDown = Annotated[
    Literal["refuse", "answer"],
    typer.Option(help="Where the broker is away: answer 503, or answer and go on trying."),
]  # fmt: skip
SafeIn = Annotated[
    Literal["outbox", "broker"],
    typer.Option(help="When a payment is safe, so that it is answered: once it stands in the outbox on this "
                 "disk, or once the broker has it."),
]  # fmt: skip


@app.command()
def serve(
    root: Root = None,
    host: Host = "127.0.0.1",
    port: Port = 8701,
    token_file: TokenFile = None,
    rate_limit: Limit = 1_000,
    ack_timeout: Ack = 1.0,
    when_broker_is_down: WhenDown = "refuse",
    safe_in: SafeIn = "outbox",
    key_file: KeyFile = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Decide on payments that are posted, from the newest committed batch and what was seen since.

    Beside it answers what `millrace serve fraud` does. Give it the settings that the app runs with.

    Example: millrace fraud serve --token-file token -s kafka.bootstrap=localhost:9092; then
    curl -H "Authorization: Bearer $(cat token)" -H "Content-Type: application/json" -d @payment.json
    localhost:8701/v1/decide
    """
    from millrace.serving.following import keeping_up
    from millrace.serving.gate import RateLimit
    from millrace.serving.questions import questions_of
    from millrace.serving.running import log_to_stderr, run, settings_of, token_of
    from millrace.serving.server import Server
    from millrace_apps.fraud.app import app as fraud
    from millrace_apps.fraud.operations.serving_app import decider_of

    settings = settings_of(fraud, config, overrides or (), root)
    token = token_of(token_file)
    with decider_of(
        settings, key_file=key_file, ack_s=ack_timeout, when_down=when_broker_is_down, safe=safe_in
    ) as (decider, ahead):
        log_to_stderr()
        # Between two batches it knows what it has itself seen; to begin at one costs a tenth of a second.
        with keeping_up(ahead.follow, every_s=1.0):
            server = Server(
                lambda: ahead.state,
                token=token,
                questions=questions_of(fraud, settings),
                actions={"v1/decide": decider.decide},
                limit=RateLimit(rate_limit),
                health=decider.health,
            )
            run(server, token, host, port, typer.echo)


@served.command("send")
def send_on(
    root: Root = None,
    patience: Annotated[float, typer.Option(min=1, max=3_600, help="How long it may take, s.")] = 60.0,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Send what a server that has ended left in its outbox. Exit code 1 if something is left.

    The next server does so by itself; this is for when there is none.

    Example: millrace fraud served send --root out/fraud -s kafka.bootstrap=localhost:9092
    """
    from millrace.errors import UserError
    from millrace.local.waiting import wait_until
    from millrace.serving.outbox import Outbox
    from millrace.serving.running import settings_of
    from millrace_apps.fraud.app import app as fraud
    from millrace_apps.fraud.operations.served import JOURNAL
    from millrace_apps.fraud.operations.serving_app import to_broker

    settings = settings_of(fraud, config, overrides or (), root)
    folder = settings.storage.local_root
    if folder is None or not (folder / JOURNAL).is_dir():
        raise UserError(f"nothing was served under {settings.storage.root}: run millrace fraud serve")
    outbox = Outbox(folder / JOURNAL, settings.topics.transactions, lambda: to_broker(settings))
    wait_until(lambda: not outbox.waiting, patience, every_s=0.05)
    left = outbox.close()
    typer.echo(f"{outbox.to_send - left:,} sent, {left:,} left")
    raise typer.Exit(1 if left else 0)


@served.command()
def compare(
    root: Root = None,
    days: Annotated[int, typer.Option(min=1, help="Answers of so many of the last days.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the counts as JSON, too.")] = None,
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Count where answers and decisions differ; each difference is a row of the table served_differences.

    Example: millrace fraud served compare --root out/fraud
    """
    import json

    from millrace.errors import UserError
    from millrace.serving.journal import read_journal
    from millrace.serving.running import settings_of
    from millrace_apps.fraud.app import app as fraud
    from millrace_apps.fraud.operations.served import (
        JOURNAL,
        TABLE,
        compared,
        decisions_of,
        write_differences,
    )

    settings = settings_of(fraud, config, overrides or (), root)
    folder = settings.storage.local_root
    if folder is None or not (folder / JOURNAL).is_dir():
        raise UserError(f"nothing was served under {settings.storage.root}: run millrace fraud serve")
    answers = list(read_journal(folder / JOURNAL, days=days))
    table = folder / "tables" / "transactions"
    if not table.is_dir():
        raise UserError(f"there is no table {table} yet: run the app")
    found = compared(answers, decisions_of(str(table), (one["transaction_id"] for one in answers)))
    write_differences(folder / "tables" / TABLE, found)
    told = found.as_data()
    if out is not None:
        out.write_text(json.dumps(told, indent=2) + "\n")
    typer.echo(
        f"{told['answered']:,} answered, {told['decided']:,} of them decided by the stream: "
        f"{told['alike']:,} alike, {told['differ']:,} differ"
    )
    for name, count in {**told["fields"], **told["actions"]}.items():
        typer.echo(f"  {name:<24} {count:,}")
