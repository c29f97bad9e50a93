"""Learners: what an app tells the core about its models, and the workshop of its commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millrace.errors import MillraceError, UserError
from millrace.models.exports import CHALLENGER, CHAMPION, PREVIOUS, Exports
from millrace.models.gates import MEASURES, Gate, Judged, Measure, NotProven, Verdict, judge
from millrace.models.loading import LoadedModel, Reader
from millrace.models.manifest import SHA256_TAG, BrokenModel, Manifest
from millrace.models.places import default_exports, default_uri
from millrace.models.tables import TrainingTables

if TYPE_CHECKING:
    from millrace.models.candidate import Candidate
    from millrace.models.registry import Registry

#: The aliases that workers find.
EXPORTED: Final = (CHAMPION, CHALLENGER, PREVIOUS)
#: Tag of a version: what came of its gates when it was promoted.
PROMOTION_TAG: Final = "promotion"


@dataclass(frozen=True)
class AppModel:
    """One of the models of an app.

    Attributes:
        name: Name under which it is registered.
        reader: How its files are read, by commands and by workers.
        tables: Tables that it is trained on.
        about: What it does, in a sentence, for its card.
    """

    name: str
    reader: Reader
    tables: tuple[str, ...] = ()
    about: str = ""


class Question(NamedTuple):
    """What an app is asked to compare two versions by.

    Attributes:
        workshop: Where tables are.
        champion: The champion.
        challenger: The other.
        as_of: Nothing that became known later counts: a time as it was written; ``None``: now.
        label_delay: How long the truth takes to become known, e.g. ``7d``.
    """

    workshop: Workshop
    champion: LoadedModel
    challenger: LoadedModel
    as_of: str | None
    label_delay: str


@dataclass(frozen=True)
class Learner:
    """An app that learns.

    Attributes:
        app: Its name.
        models: What its commands call a model (``--model``) → the model; the first one is meant unless told.
        judged: Rows that two versions are compared on: those after the training of both whose truth is known.
        gates: What a challenger must show.
        measures: Measures that gates may name.
        columns: Heading → fact or measure: what lists tell beside what all versions have.
        limits: What its models are not good for, for their cards.
    """

    app: str
    models: Mapping[str, AppModel]
    judged: Callable[[Question], Judged]
    gates: tuple[Gate, ...]
    measures: Mapping[str, Measure] = field(default_factory=lambda: MEASURES)
    columns: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[str, ...] = ()

    def model(self, name: str | None) -> AppModel:
        """Return the model of a name, by what commands or the registry call it.

        Args:
            name: The name; with ``:`` and another one behind it where it is registered under that.

        Raises:
            UserError: The app has no such model.
        """
        called, _, registered = (name or next(iter(self.models))).partition(":")
        found = self.models.get(called) or next((m for m in self.models.values() if m.name == called), None)
        if found is None:
            raise UserError(f"{self.app} has no model {called}; there are: {', '.join(self.models)}")
        return replace(found, name=registered) if registered else found


class Workshop:
    """The models of an app in one place: registry, tables, exports.

    Args:
        learner: The app.
        model: Which of its models.
        root: Where the app keeps its tables and models.
        registry: The registry; ``None``: SQLite under the root.
        exports: Folder of the exports; ``None``: beside the registry.
    """

    def __init__(
        self,
        learner: Learner,
        model: str | None,
        root: Path,
        registry: str | None = None,
        exports: Path | None = None,
    ) -> None:
        self.learner, self.model, self.root = learner, learner.model(model), root
        self.uri = registry or default_uri(root / "models")
        folder = exports or default_exports(self.uri, root / "models")
        self.exports = Exports(str(folder.absolute()), self.model.name)
        self._registry: Registry | None = None

    @property
    def registry(self) -> Registry:
        """The registry; MLflow is imported when it is first asked for."""
        if self._registry is None:
            from millrace.models.registry import Registry

            self._registry = Registry(self.uri, self.model.name, self.model.tables)
        return self._registry

    def tables(self, versions: Mapping[str, int] | None = None) -> TrainingTables:
        """Return the app's tables, for training.

        Args:
            versions: Table → version to read; left out: the newest.
        """
        return TrainingTables(self.root / "tables", versions)

    def load(self, version: int) -> LoadedModel:
        """Return a version, read as workers read it.

        Raises:
            NoSuchModel: There is none.
            BrokenModel: It is not one that workers take.
        """
        return self.model.reader.read(*self.registry.files(version))

    def why_broken(self, version: int) -> str:
        """Return why workers would not take a version; empty: they would."""
        try:
            self.load(version)
        except BrokenModel as error:
            return str(error)
        return ""

    def enter(self, candidate: Candidate) -> tuple[int, int | None]:
        """Register a trained model, let it challenge the champion; return its version and the champion's."""
        version = self.registry.register(candidate)
        champion = self.registry.alias(CHAMPION)
        if champion is not None:
            self.registry.set_alias(CHALLENGER, version)
        self.export((CHALLENGER,))
        return version, champion

    def compare(
        self,
        champion: int,
        challenger: int,
        *,
        as_of: str | None,
        label_delay: str,
        gates: Sequence[Gate] | None = None,
    ) -> list[Verdict]:
        """Return what comes of each gate for two versions.

        Raises:
            CannotCompare: There is too little to compare them on.
        """
        two = self.load(champion), self.load(challenger)
        judged = self.learner.judged(Question(self, *two, as_of, label_delay))
        return judge(gates or self.learner.gates, judged, measures=self.learner.measures)

    def promote(self, version: int, verdicts: Sequence[Verdict] = ()) -> int | None:
        """Make a version the champion; return the one before, ``None`` for the first.

        Args:
            version: The version.
            verdicts: What came of its gates; they are kept with it.

        Raises:
            NoSuchModel: There is no such version, or it is the champion already.
            NotProven: A gate is not passed.
            BrokenModel: Workers could not take it; nothing changes.
        """
        from millrace.models.registry import NoSuchModel

        registry, before = self.registry, self.registry.alias(CHAMPION)
        if before == version:
            raise NoSuchModel(f"version {version} is the champion already")
        if failed := [verdict.why for verdict in verdicts if not verdict.passed]:
            said = f"version {version} is not better than {before} beyond doubt"
            raise NotProven(f"{said}: {'; '.join(failed)}: nothing changed")
        self.load(version)
        registry.tag(version, PROMOTION_TAG, json.dumps([verdict.why for verdict in verdicts]))
        if before is not None:
            registry.set_alias(PREVIOUS, before)
        registry.set_alias(CHAMPION, version)
        if registry.alias(CHALLENGER) == version:
            registry.set_alias(CHALLENGER, None)
        self.export((CHAMPION,))
        return before

    def rollback(self) -> tuple[int, int]:
        """Make the champion before the champion again; return the two, the new one first.

        Raises:
            NoSuchModel: There has been none.
            BrokenModel: Workers could not take it; nothing changes.
        """
        from millrace.models.registry import NoSuchModel

        now, before = self.registry.alias(CHAMPION), self.registry.alias(PREVIOUS)
        if now is None or before is None:
            raise NoSuchModel("there is no champion before this one to go back to")
        self.load(before)
        self.registry.set_alias(CHAMPION, before)
        self.registry.set_alias(PREVIOUS, now)
        self.export((CHAMPION,))
        return before, now

    def export(self, needed: Sequence[str] = EXPORTED) -> dict[str, Manifest]:
        """Let the exports say what the registry's aliases say; return alias → manifest of what has changed.

        A version that workers would not take is not exported: they keep what they have.

        Args:
            needed: The aliases of which that is an error.

        Raises:
            BrokenModel: There is such a version; the other aliases are exported all the same.
        """
        changed: dict[str, Manifest] = {}
        broken: list[MillraceError] = []
        for alias in EXPORTED:
            try:
                if manifest := self._export(alias, self.registry.alias(alias)):
                    changed[alias] = manifest
            except MillraceError as error:
                broken += [error] if alias in needed else []
        if broken:
            raise broken[0]
        return changed

    def _export(self, alias: str, version: int | None) -> Manifest | None:
        if version is None:
            self.exports.withdraw(alias)
            return None
        if self._stands(alias, version):
            return None
        manifest, data = self.registry.files(version)
        self.model.reader.read(manifest, data)
        self.exports.publish(alias, manifest, data)
        return manifest

    def _stands(self, alias: str, version: int) -> bool:
        """Return whether workers find a version under an alias, its file being there."""
        found, tags = self.exported(alias), self.registry.entry(version).about
        if found is None or found.version != str(version):
            return False
        return tags.get(SHA256_TAG, found.sha256) == found.sha256 and self.exports.holds(found)

    def exported(self, alias: str) -> Manifest | None:
        """Return the manifest that workers find under an alias; ``None`` for none that can be read."""
        try:
            found = self.exports.find(alias)
        except MillraceError:
            return None
        return None if found is None else found.manifest


def lineage(tables: Mapping[str, Any]) -> str:
    """Return tables with their versions as commands tell them.

    >>> lineage({"transactions": 12, "labels": 3})
    'labels@3, transactions@12'
    """
    return ", ".join(f"{name}@{version}" for name, version in sorted(tables.items()))
