"""Scoring in the stream: a model by its alias, exchanged while running, the last good one kept.

The seam to the pipeline is :class:`Scorer`: features in, probability and the model's version out; ``None``
where there is no model, and then rules alone decide.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from apps.fraud.model.forest import BrokenModel
from apps.fraud.model.source import LoadedModel, ModelSource, RegistrySource

log = logging.getLogger(__name__)

CHAMPION, CHALLENGER = "champion", "challenger"
#: How often the registry is asked, seconds: a new model is in force after this and its loading.
POLL_S: Final = 0.5


class Score(NamedTuple):
    """What a model says of a payment.

    Attributes:
        probability: That it is a fraud.
        version: The model's version.
    """

    probability: float
    version: str


class Scorer(Protocol):
    """What the pipeline asks for scores."""

    def score(self, features: Any) -> Score | None:
        """Return the score of a payment, ``None`` without a model.

        Args:
            features: An object with the features as attributes.
        """


@dataclass(frozen=True)
class Status:
    """How a scorer stands, for metrics and alarms.

    Attributes:
        alias: Whose model it is.
        version: The version in force, ``None`` for none.
        swaps: How often it was exchanged.
        failures: How often the registry did not answer or a model could not be loaded.
        error: What was wrong the last time; empty once all is well again.
        trained_until_ms: Event time of the newest payment that the model was trained on.
    """

    alias: str
    version: str | None
    swaps: int
    failures: int
    error: str
    trained_until_ms: int


class ModelHolder:
    """Holds the model of an alias and exchanges it when the alias moves.

    Args:
        source: Where models are.
        alias: The alias.
        poll_s: How often to ask, seconds.
        clock: Seconds that pass.
    """

    def __init__(
        self,
        source: ModelSource,
        alias: str = CHAMPION,
        *,
        poll_s: float = POLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self.alias, self._poll_s, self._clock = source, alias, poll_s, clock
        self._model: LoadedModel | None = None
        self._asked_at = -float("inf")
        self._broken: str | None = None
        self.swaps = self.failures = 0
        self.error = ""
        self._lock = threading.Lock()

    @property
    def model(self) -> LoadedModel | None:
        """The model in force."""
        return self._model

    def poll(self) -> None:
        """Ask the registry, if it is time, and take the alias's model; the last good one stays otherwise."""
        if self._clock() - self._asked_at < self._poll_s or not self._lock.acquire(blocking=False):
            return
        try:
            self._asked_at = self._clock()
            self._take()
        finally:
            self._lock.release()

    def _take(self) -> None:
        version = None
        try:
            version = self._source.version(self.alias)
            current = None if self._model is None else self._model.version
            if version == current or (version is not None and version == self._broken):
                # What was broken stays broken: versions do not change. A registry that answers is well.
                if version == current:
                    self.error, self._broken = "", None
                return
            if version is None:
                self._put(None)
                return
            self._put(self._source.load(version))
        except Exception as error:  # of a registry, of files, of whatever reads them
            self._broken = version if isinstance(error, BrokenModel) else None
            self.failures += 1
            text = f"{type(error).__name__}: {error}"
            if text != self.error:  # the same is said once, however often it is tried
                log.warning(
                    "%s stays at version %s: %s", self.alias, self._model and self._model.version, error
                )
            self.error = text

    def _put(self, model: LoadedModel | None) -> None:
        self._model = model
        self._broken, self.error = None, ""
        self.swaps += 1
        log.info("%s is version %s now", self.alias, model and model.version)

    def score(self, features: Any) -> Score | None:
        """Return the score of a payment by the model in force."""
        model = self._model
        if model is None:
            return None
        return Score(model.score([getattr(features, name) for name in model.inputs]), model.version)

    def status(self) -> Status:
        """Return how things stand."""
        model = self._model
        return Status(
            self.alias,
            None if model is None else model.version,
            self.swaps,
            self.failures,
            self.error,
            0 if model is None else model.trained_until_ms,
        )


@dataclass(frozen=True)
class RegistryScorer:
    """A scorer by the registry's alias; it travels to workers, and each has one model of its own.

    Attributes:
        source: The registry.
        alias: Whose model.
        poll_s: How often the registry is asked, seconds.
    """

    source: RegistrySource
    alias: str = CHAMPION
    poll_s: float = POLL_S

    def score(self, features: Any) -> Score | None:
        """Return the score of a payment, ``None`` without a model."""
        return self.holder().score(features)

    def holder(self) -> ModelHolder:
        """Return this worker's holder; the first call loads the model, a thread looks after it then."""
        found = _holders.get(self)
        return found if found is not None else _start(self)

    def status(self) -> Status:
        """Return how this worker's scorer stands."""
        return self.holder().status()


_holders: dict[RegistryScorer, ModelHolder] = {}
_starting = threading.Lock()


def _start(scorer: RegistryScorer) -> ModelHolder:
    with _starting:
        if (found := _holders.get(scorer)) is not None:
            return found
        holder = ModelHolder(scorer.source, scorer.alias, poll_s=scorer.poll_s)
        holder.poll()
        threading.Thread(target=_look_after, args=(holder, scorer.poll_s), daemon=True,
                         name=f"model-{scorer.alias}").start()  # fmt: skip
        _holders[scorer] = holder
        return holder


def _look_after(holder: ModelHolder, poll_s: float) -> None:
    while True:
        time.sleep(poll_s)
        holder.poll()
