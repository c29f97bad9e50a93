"""A registry in memory, for commands: MLflow takes ten seconds to be imported."""

from __future__ import annotations

from typing import Any, ClassVar

import skops.io

from millrace.models.candidate import Candidate
from millrace.models.files import sha256_of
from millrace.models.manifest import SHA256_TAG, BrokenModel, Curve, Manifest
from millrace.models.registry import Entry, NoSuchModel


class Shelf:
    """What :class:`millrace.models.registry.Registry` does, as far as commands ask it."""

    kept: ClassVar[dict[tuple[str, str], Shelf]] = {}

    def __new__(cls, uri: str, name: str, tables: tuple[str, ...] = ()) -> Any:
        found = cls.kept.get((uri, name))
        if found is None:
            found = cls.kept[uri, name] = super().__new__(cls)
            found.name, found.aliases, found.versions = name, {}, []
        return found

    name: str
    aliases: dict[str, int]
    versions: list[tuple[Manifest, bytes, dict[str, str]]]

    def register(self, candidate: Candidate) -> int:
        content, number = skops.io.dumps(candidate.estimator), len(self.versions) + 1
        curve = candidate.calibration
        manifest = Manifest(
            name=self.name, version=str(number), size=len(content), sha256=sha256_of(content),
            inputs=candidate.inputs, kind=candidate.kind, tables=candidate.tables, metrics=candidate.metrics,
            calibration=None if curve is None else Curve(curve.slope, curve.intercept),
            trained_since_ms=candidate.since_ms, trained_until_ms=candidate.until_ms,
            about=dict(candidate.about),
        )  # fmt: skip
        facts = {**candidate.facts, **candidate.metrics, "rows": candidate.rows}
        tags = {k: str(v) for k, v in facts.items()} | {SHA256_TAG: manifest.sha256}
        self.versions.append((manifest, content, tags))
        return number

    def tag(self, version: int, key: str, value: str) -> None:
        self.versions[version - 1][2][key] = value

    def alias(self, alias: str) -> int | None:
        return self.aliases.get(alias)

    def set_alias(self, alias: str, version: int | None) -> None:
        if version is None:
            self.aliases.pop(alias, None)
        else:
            self.aliases[alias] = version

    def entries(self) -> list[Entry]:
        return [self.entry(number) for number in range(len(self.versions), 0, -1)]

    def entry(self, version: int) -> Entry:
        if not 0 < version <= len(self.versions):
            raise NoSuchModel(f"there is no version {version}")
        manifest, _, tags = self.versions[version - 1]
        names = tuple(sorted(alias for alias, of in self.aliases.items() if of == version))
        told = {"tables": "{" + ", ".join(f'"{k}": {v}' for k, v in manifest.tables.items()) + "}"}
        return Entry(version, names, 86_400_000 * version, tags | told)

    def files(self, version: int) -> tuple[Manifest, bytes]:
        self.entry(version)
        manifest, content, _ = self.versions[version - 1]
        if content == b"gone":
            raise BrokenModel(f"version {version} cannot be read")
        return manifest, content

    def spoil(self, version: int, content: bytes) -> None:
        """Let a version be another file."""
        manifest, _, tags = self.versions[version - 1]
        self.versions[version - 1] = (manifest, content, tags)
