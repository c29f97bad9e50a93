"""Sinks and checkpoint of a streaming query, and what of them is refused before Spark starts."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from millrace.errors import UserError

if TYPE_CHECKING:
    from millrace.query.catalog import AppTable
    from millrace.query.topics import AppTopic

#: In the folder of a checkpoint: of which query it is.
QUERY_FILE: Final = "query.json"
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Noted(msgspec.Struct):
    """Of which query a checkpoint is.

    Attributes:
        text: The query.
        out: The folder that its rows go to; empty: none.
        to: The topic.
    """

    text: str
    out: str = ""
    to: str = ""


def check_folder(folder: Path, tables: Iterable[AppTable], *, goes_on: bool) -> None:
    """Refuse a folder that rows cannot go to.

    Args:
        folder: A Parquet folder (``….parquet``) or else a Delta table.
        tables: The apps' tables.
        goes_on: Whether a query goes on that has written there.

    Raises:
        UserError: Says why, and what to do.
    """
    place = Path(os.path.realpath(folder))
    for table in tables:
        own = Path(os.path.realpath(table.folder))
        if place == own or own in place.parents:
            raise UserError(f"{folder} is table {table.full_name}: a query writes into none of an app's")
    if place.exists() and not place.is_dir():
        raise UserError(f"{folder} is a file: a stream of rows goes into a folder, name another")
    there = next(one for one in (place, *place.parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{folder} cannot be made: {there} cannot be written to")
    if goes_on or not place.exists() or not any(place.iterdir()):
        return
    if folder.suffix == ".parquet":
        # Spark leaves batches out whose numbers it finds there: those of another query, too.
        raise UserError(
            f"{folder} has rows already: name another folder, or go on with the --checkpoint of the query "
            "that wrote them"
        )
    if not (place / "_delta_log").is_dir():
        raise UserError(f"{folder} is no Delta table and not empty: name another folder")


def check_topic(topic: str, known: Iterable[AppTopic]) -> None:
    """Refuse a topic that rows cannot go to.

    Args:
        topic: Its name.
        known: The apps' topics.

    Raises:
        UserError: It is none, or one of an app's.
    """
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise UserError(f"{topic!r} is no name of a topic: letters, digits, '.', '_' and '-', 249 at most")
    for one in known:
        if one.topic == topic:
            raise UserError(
                f"{topic} is a topic of {one.app}: rows of a query are none of its events, name another"
            )


def goes_on(folder: Path | None) -> bool:
    """Return whether a query has left in a folder how far it is."""
    return folder is not None and (folder / "offsets").is_dir() and any((folder / "offsets").iterdir())


@contextlib.contextmanager
def kept(folder: Path, query: Noted) -> Iterator[None]:
    """Own a checkpoint while the block runs, and note of which query it is.

    Args:
        folder: The folder; it is made if it is not there.
        query: The query.

    Raises:
        UserError: It is another query's, an app's, in use, or no checkpoint.
    """
    from millrace.runtime.contract import CONTRACT_FILE, OWNER_FILE, CheckpointInUse, owned

    note = folder / QUERY_FILE
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: --checkpoint is a folder")
    if (folder.parent / CONTRACT_FILE).exists() or (folder / CONTRACT_FILE).exists():
        raise UserError(f"{folder} is the checkpoint of an app: a query has one of its own")
    names = {one.name for one in folder.iterdir()} if folder.exists() else set()
    if names - {OWNER_FILE} and not names & {"offsets", "metadata", QUERY_FILE}:
        raise UserError(f"{folder} is not empty and no checkpoint: name another folder")
    try:
        with owned(folder):
            _same(note, query, folder)
            note.write_bytes(msgspec.json.encode(query))
            yield
    except CheckpointInUse as error:
        raise UserError(
            f"another query goes on from {folder} ({error.owner}): one query per checkpoint"
        ) from None
    except OSError as error:
        if error.filename is None or not Path(error.filename).is_relative_to(folder):
            raise
        raise UserError(f"{folder} cannot be a checkpoint: {error.strerror}") from None


def _same(note: Path, query: Noted, folder: Path) -> None:
    if not note.exists() or not goes_on(folder):
        return  # what has no batch yet may have been wrong
    try:
        before = msgspec.json.decode(note.read_bytes(), type=Noted)
    except msgspec.DecodeError:
        return  # cut off while it was written: Spark says what does not fit
    told = {"text": "text", "out": "--out", "to": "--to"}
    for name, what in told.items():
        was, now = getattr(before, name), getattr(query, name)
        if was.split() != now.split():
            raise UserError(
                f"{folder} is of another query, its {what} is {' '.join(was.split()) or 'none'!r}: "
                "give another --checkpoint"
            )
