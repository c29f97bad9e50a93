"""Questions of a server: of any app by process and key, and those that an app adds."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.checkpoints.committed import CommittedState
from millrace.errors import UserError
from millrace.runtime.apps import App

if TYPE_CHECKING:
    from millrace.runtime.settings import AppSettings


class NotFound(UserError):
    """There is nothing of that name."""


class Refused(UserError):
    """A question cannot be answered as it was asked."""


@dataclass(frozen=True)
class Question:
    """A question of an app's own, asked as ``GET /v1/ask/<name>?…``.

    Attributes:
        summary: What it tells, in one line.
        answer: State and parameters → the answer, as plain data. It raises :class:`NotFound` or
            :class:`Refused`.
        parameters: Names of the parameters that it must be given.
        optional: Names of those that it may be given.
    """

    summary: str
    answer: Callable[[CommittedState, Mapping[str, str]], Any]
    parameters: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def ask(self, state: CommittedState, told: Mapping[str, str]) -> Any:
        """Return the answer.

        Raises:
            Refused: Parameters are missing, or not known.
        """
        missing = [name for name in self.parameters if not told.get(name)]
        unknown = sorted(set(told) - {*self.parameters, *self.optional})
        if missing or unknown:
            known = ", ".join([*self.parameters, *(f"[{name}]" for name in self.optional)]) or "none"
            wrong = f"without {', '.join(missing)}" if missing else f"with {', '.join(unknown)[:100]}"
            raise Refused(f"asked {wrong}; its parameters are {known}")
        return self.answer(state, told)


def questions_of(app: App, settings: AppSettings) -> dict[str, Question]:
    """Return the questions that an app adds.

    Args:
        app: The app.
        settings: Its settings: questions may be made of them.

    Raises:
        UserError: They cannot be loaded.
    """
    if app.serve is None:
        return {}
    import importlib

    module, _, attribute = app.serve.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the questions of {app.name} ({app.serve}) cannot be loaded: {error}") from error
    return dict(found(settings) if callable(found) else found)


def about(
    state: CommittedState, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
) -> dict[str, Any]:
    """Return which batch an answer is from: its number, when it was committed, its age and watermark, ms."""
    batch = state.batch
    try:
        committed = (state.checkpoint.folder / "commits" / str(batch)).stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:  # the query has gone far ahead of it
        committed = None
    return {
        "batch": batch,
        "committed_at_ms": committed,
        "age_ms": None if committed is None else max(0, now_ms() - committed),
        "watermark_ms": state.watermark,
    }


def of_key(state: CommittedState, process: str, key: Sequence[str]) -> dict[str, Any]:
    """Return all that is kept for a key.

    Args:
        state: The state.
        process: Name of the process.
        key: The parts of the key.

    Raises:
        NotFound: There is no such process, or nothing is kept for the key.
        Refused: The key has another number of parts.
    """
    with state.held():
        names = [stage.process for stage in state.stages]
        if process not in names:
            near = difflib.get_close_matches(process, names, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise NotFound(f"there is no process {process[:100]}; {hint}")
        stage = state.stage(process)
        if len(key) != len(stage.key) or not all(key):
            raise Refused(f"{process} has keys of {len(stage.key)} parts ({'/'.join(stage.key)})")
        found = state.entry(process, tuple(key))
        told = about(state)
    if found is None:
        raise NotFound(f"{process} keeps nothing for this key (batch {told['batch']})")
    entry, size = found
    return {"process": process, "key": list(key), **told, "bytes": size, **entry.as_data()}


def processes(state: CommittedState) -> dict[str, Any]:
    """Return the processes of a query, each with the fields of its key."""
    with state.held():
        return {
            **about(state),
            "processes": [
                {"name": s.process, "key": list(s.key), "key_groups": s.key_groups} for s in state.stages
            ],
        }
