"""`millrace fraud cases next|claim|release|contacted|verified|unblock`: what is done beside deciding."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millrace.cli.options import By
from millrace_apps.fraud.cases.options import At, Bootstrap, CaseId, Note, Overrides, Queue, Root, open_data

if TYPE_CHECKING:
    from millrace.dashboard.data import AppData
    from millrace_apps.fraud.cases.app import FraudCasesSettings
    from millrace_apps.fraud.cases.events import ActKind

_ABOUT: Final[dict[ActKind, str]] = {
    "claim": "Look at a case, so that nobody else need; the claim ends by itself (cases.claim_for).",
    "release": "Give a claimed case back.",
    "contacted": "Note that the holder was spoken with.",
    "verified": "The holder stands by the payments: let the card pass for a while (cases.verified_for).",
    "unblock": "Take the case's card off the list of blocked ones; of a ring all its cards, or --card.",
}
_Card = Annotated[str, typer.Option("--card", help="Of a ring: the card that is meant.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to those over cases."""
    for what, about in _ABOUT.items():
        example = f"Example: millrace fraud cases {what} case-231d --by ann"
        app.command(what, help=f"{about}\n\n{example}")(_command(what))
    app.command("next")(next_)


def next_(
    by: By = None,
    queue: Queue = None,
    root: Root = None,
    bootstrap: Bootstrap = None,
    overrides: Overrides = None,
) -> None:
    """Claim the queued case with most to be saved that nobody else looks at.

    Example: millrace fraud cases next --by ann --queue abroad
    """
    from millrace.operations.sending import who
    from millrace_apps.fraud.cases.store import NoCase, case_view, present

    data, settings = open_data(root, bootstrap, overrides)
    name = who(by, settings)
    view = case_view(data, settings)
    if view is None:
        raise NoCase(f"there are no alerts in {data.root}, so there is no case")
    chosen = view.next(name, present(data, view), queue)
    _do(data, settings, chosen.case.case_id, "claim", name, "", None)


def _command(what: ActKind) -> Callable[..., None]:
    def command(
        case_id: CaseId,
        by: By = None,
        note: Note = "",
        card: _Card = "",
        at: At = None,
        root: Root = None,
        bootstrap: Bootstrap = None,
        overrides: Overrides = None,
    ) -> None:
        from millrace.operations.sending import who

        data, settings = open_data(root, bootstrap, overrides)
        _do(data, settings, case_id, what, who(by, settings), note, at, card)

    return command


def _do(
    data: AppData,
    settings: FraudCasesSettings,
    case_id: str,
    what: ActKind,
    by: str,
    note: str,
    at: int | None,
    card: str = "",
) -> None:
    from millrace.time.moments import show_time
    from millrace_apps.fraud.cases.store import act

    done = act(data, settings, case_id, what, by=by, note=note, at_ms=at, about=card)
    of = f" of {done.about}" if done.about else ""
    typer.echo(f"{done.case_id}: {done.what}{of}, by {done.by}, at {show_time(done.at_ms)}")
    if what in ("verified", "unblock"):
        if data.broker is None:
            typer.echo("no broker is named, so no list is changed: give one with --bootstrap", err=True)
        else:
            typer.echo("where two persons are needed it waits: millrace fraud changes list")
