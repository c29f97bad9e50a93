"""Scoring in the stream: the model under an alias, exchanged while running, the last good one kept.

A worker has one :class:`ModelHolder` per alias. It looks into the folder of exports every half second and
takes what it finds there. Whatever is wrong with a new model, the one before goes on; without any model there
is no score, and an app does what it does without.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, Protocol

import numpy as np

from millrace.models.exports import CHAMPION, POLL_S, PREVIOUS, Exports, Found
from millrace.models.loading import FORESTS, LoadedModel, Reader
from millrace.models.manifest import BrokenModel, Manifest

log = logging.getLogger(__name__)

#: So often a model may be exchanged while it is asked, before nothing is said.
_TRIES: Final = 3


class Scores(NamedTuple):
    """What a model says of some rows.

    Attributes:
        values: A score for each row.
        version: The model's version.
    """

    values: Sequence[float]
    version: str


class ModelSource(Protocol):
    """Where models are."""

    def find(self, alias: str) -> Found | None:
        """Return what stands under an alias, ``None`` for nothing; raises where that cannot be told."""

    def load(self, manifest: Manifest) -> LoadedModel:
        """Load a version; raises what is wrong with it."""


@dataclass(frozen=True)
class Status:
    """How the scoring by an alias stands, for metrics and alarms.

    Attributes:
        alias: Whose model it is.
        version: The version in force, ``None`` for none.
        wanted: The version under the alias, as it was last seen; another one than ``version`` is broken.
        swaps: How often the model was exchanged.
        failures: How often the folder could not be read, a model not be loaded, or did not score.
        error: What was wrong the last time; empty once all is well again.
        trained_until_ms: Event time of the newest row that the model was trained on, UTC ms.
    """

    alias: str
    version: str | None
    wanted: str | None
    swaps: int
    failures: int
    error: str
    trained_until_ms: int


class _InForce(NamedTuple):
    model: LoadedModel
    manifest: Manifest


class ModelHolder:
    """Holds the model of an alias and exchanges it when another version has the alias.

    Args:
        source: Where models are.
        alias: The alias.
        fallback: Alias whose model is taken where there is none yet and that of the alias is broken.
        poll_s: How often to look, seconds.
        clock: Seconds that pass.
    """

    def __init__(
        self,
        source: ModelSource,
        alias: str = CHAMPION,
        *,
        fallback: str | None = None,
        poll_s: float = POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self.alias, self._fallback = source, alias, fallback
        self._poll_s, self._clock = poll_s, clock
        self._now: _InForce | None = None
        self._before: _InForce | None = None
        self._looked_at = -float("inf")
        self._found: Found | None = None
        self._broken: Found | None = None
        self.swaps = self.failures = 0
        self.error = ""
        self._lock = threading.Lock()
        self._changing = threading.RLock()

    @property
    def model(self) -> LoadedModel | None:
        """The model in force."""
        now = self._now
        return None if now is None else now.model

    def poll(self) -> None:
        """Look, if it is time, and take the alias's model; the last good one stays otherwise."""
        if self._clock() - self._looked_at < self._poll_s or not self._lock.acquire(blocking=False):
            return
        try:
            self._looked_at = self._clock()
            self._take()
        finally:
            self._lock.release()

    def _take(self) -> None:
        found = None
        try:
            found = self._found = self._source.find(self.alias)
            if found is None:
                self._put(None)
            elif self._now is not None and self._now.manifest == found.manifest:
                self.error, self._broken = "", None
            elif found != self._broken:  # what was broken stays broken, until its files are written anew
                self._put(_InForce(self._source.load(found.manifest), found.manifest))
        except Exception as error:  # of folders, of files, of whatever reads them
            self._broken = found if isinstance(error, BrokenModel) else None
            self._failed(error)
            if self._now is None and isinstance(error, BrokenModel):
                self._fall_back()

    def _put(self, taken: _InForce | None) -> None:
        with self._changing:
            if taken is None and self._now is None:
                self.error, self._broken = "", None
                return
            self._before, self._now = (None if taken is None else self._now), taken
            self._broken, self.error = None, ""
            self.swaps += 1
        log.info("%s is version %s now", self.alias, taken and taken.model.version)

    def _fall_back(self) -> None:
        """Take the model of the other alias, where there is none yet."""
        if self._fallback is None:
            return
        with contextlib.suppress(Exception):  # of the second, which is then no help either
            found = self._source.find(self._fallback)
            if found is not None:
                self._now = _InForce(self._source.load(found.manifest), found.manifest)
                self.swaps += 1

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        text = f"{type(error).__name__}: {error}"
        if text != self.error:  # the same is said once, however often it is tried
            log.warning("%s stays at version %s: %s", self.alias, self.model and self.model.version, error)
        self.error = text

    def score(self, rows_of: Callable[[tuple[str, ...]], Sequence[Sequence[float]]]) -> Scores | None:
        """Return the scores of some rows by the model in force, all by the same one.

        A model that raises, or whose scores are no numbers, gives way to the one before; where that cannot
        score these rows either, nothing is said of them.

        Args:
            rows_of: Features that a model takes, in order → the rows, one list of numbers each.

        Returns:
            The scores; ``None`` without a model.
        """
        now = self._now
        if now is None:
            return None
        try:
            return _scores(now.model, rows_of(now.model.inputs))
        except Exception as error:  # of whatever a model is made of
            return self._instead(now, rows_of, error)

    def _instead(
        self,
        failed: _InForce,
        rows_of: Callable[[tuple[str, ...]], Sequence[Sequence[float]]],
        error: Exception,
    ) -> Scores | None:
        """Score by the model of before, which is in force again if it can."""
        with self._changing:
            self._failed(error)
            before = self._before if self._now is failed else self._now
            if before is None:
                return None
            try:
                scores = _scores(before.model, rows_of(before.model.inputs))
            except Exception:  # these rows are what is wrong
                return None
            if self._now is failed:
                self._now, self._before = before, None
                self.swaps += 1
                found = self._found
                self._broken = found if found is not None and found.manifest == failed.manifest else None
            return scores

    def status(self) -> Status:
        """Return how things stand."""
        now, found = self._now, self._found
        return Status(
            self.alias,
            None if now is None else now.model.version,
            None if found is None else found.manifest.version,
            self.swaps,
            self.failures,
            self.error,
            0 if now is None else now.model.trained_until_ms,
        )


def _scores(model: LoadedModel, rows: Sequence[Sequence[float]]) -> Scores:
    values: list[float] = []
    if len(rows) == 1:  # for one row NumPy's calls cost more than all trees
        values = [float(model.score(rows[0]))]
    elif rows:
        values = model.score_many(np.array(rows, dtype=np.float32)).tolist()
    if len(values) != len(rows) or not all(map(math.isfinite, values)):
        raise BrokenModel(f"version {model.version} does not give a number for each row")
    return Scores(values, model.version)


@dataclass(frozen=True)
class ExportedModels:
    """The exports of a model as a :class:`ModelSource`.

    Attributes:
        exports: Where they are.
        reader: How they are read.
    """

    exports: Exports
    reader: Reader = FORESTS

    def find(self, alias: str) -> Found | None:
        """Return what stands under an alias (see :meth:`~millrace.models.exports.Exports.find`)."""
        return self.exports.find(alias)

    def load(self, manifest: Manifest) -> LoadedModel:
        """Load a version.

        Raises:
            BrokenModel: It is not what its manifest says, or not one that the reader takes.
        """
        return self.reader.read(manifest, self.exports.data(manifest))


@dataclass(frozen=True)
class ServedModel:
    """The model under an alias, as a pipeline holds it; travels to workers, and each has one of its own.

    Attributes:
        exports: Where it is.
        alias: Whose model.
        reader: How it is read.
        poll_s: How often the folder is looked into, seconds.
    """

    exports: Exports
    alias: str = CHAMPION
    reader: Reader = FORESTS
    poll_s: float = POLL_S

    def score(self, rows_of: Callable[[tuple[str, ...]], Sequence[Sequence[float]]]) -> Scores | None:
        """Return the scores of some rows (see :meth:`ModelHolder.score`)."""
        return self.holder().score(rows_of)

    def scored(
        self, rows_of: Callable[[tuple[str, ...]], Sequence[Sequence[float]]]
    ) -> tuple[Scores, LoadedModel] | None:
        """Return scores and the model that gave them, which may be exchanged between the two."""
        for _ in range(_TRIES):
            scores, model = self.score(rows_of), self.holder().model
            if scores is None:
                return None
            if model is not None and model.version == scores.version:
                return scores, model
        return None

    def trained_until_ms(self) -> int:
        """Return the event time of the newest row that the model was trained on, UTC ms; 0 without one."""
        model = self.holder().model
        return 0 if model is None else model.trained_until_ms

    def status(self) -> Status:
        """Return how this worker's scoring stands."""
        return self.holder().status()

    def holder(self) -> ModelHolder:
        """Return this worker's holder; the first call loads the model, a thread looks after it then."""
        found = _holders.get(self)
        return found if found is not None else _start(self)


@dataclass(frozen=True)
class Champion:
    """Where a process's champion is, as the process holds it; travels to workers.

    A subclass names its reader, and asks in the process's own words.

    Attributes:
        folder: Folder of the exports.
        name: Name of the registered model.
        poll_s: How often the folder is looked into, seconds.
    """

    folder: str
    name: str
    poll_s: float = POLL_S
    reader: ClassVar[Reader] = FORESTS

    @property
    def served(self) -> ServedModel:
        """The model, as all who ask for it in a worker share it."""
        return ServedModel(Exports(self.folder, self.name), CHAMPION, self.reader, self.poll_s)


_holders: dict[ServedModel, ModelHolder] = {}
_starting = threading.Lock()


def _start(served: ServedModel) -> ModelHolder:
    with _starting:
        if (found := _holders.get(served)) is not None:
            return found
        source = ExportedModels(served.exports, served.reader)
        fallback = PREVIOUS if served.alias == CHAMPION else None
        holder = ModelHolder(source, served.alias, fallback=fallback, poll_s=served.poll_s)
        holder.poll()
        threading.Thread(target=_look_after, args=(holder, served.poll_s), daemon=True,
                         name=f"model-{served.alias}").start()  # fmt: skip
        _holders[served] = holder
        return holder


def _look_after(holder: ModelHolder, poll_s: float) -> None:
    while True:
        time.sleep(poll_s)
        holder.poll()
