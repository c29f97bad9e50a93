"""Sources of settings: the file, the environment, the command line, each value with its origin.

Every source becomes a list of :class:`Entry` (path, value, origin). Names are looked up in the settings
class here, so that an unknown key is reported with the place where it stands and the nearest valid key.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_origin

import yaml
from pydantic import BaseModel

from millrace.errors import UserError
from millrace.runtime.redaction import is_secret
from millrace.runtime.secrets import OptionMap

#: ``MILLRACE__KAFKA__BOOTSTRAP`` sets ``kafka.bootstrap``.
ENV_PREFIX: Final = "MILLRACE__"
#: Names the file with settings, unless ``--config`` does.
CONFIG_VARIABLE: Final = "MILLRACE_CONFIG"
#: Read from the working directory when nothing names a file.
DEFAULT_CONFIG: Final = "millrace.yaml"
#: What most Kafka tools call the brokers' addresses; sets ``kafka.bootstrap``.
BOOTSTRAP_VARIABLE: Final = "KAFKA_BOOTSTRAP_SERVERS"
#: The section of the file that holds for every app.
COMMON: Final = "common"

Path_ = tuple[str, ...]
_CONTAINERS: Final = (list, tuple, set, frozenset, dict)


class SettingsError(UserError):
    """Settings that cannot be used.

    Attributes:
        problems: One readable line per problem.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        many = f"{len(self.problems)} problems in the settings:\n  "
        super().__init__(self.problems[0] if len(self.problems) == 1 else many + "\n  ".join(self.problems))


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of one source: where it belongs, what it is, and where it was written."""

    path: Path_
    value: Any
    origin: str

    def __repr__(self) -> str:
        # A value may be a secret; where it comes from is all that is ever worth printing.
        return f"Entry({'.'.join(self.path)} from {self.origin})"


class FromOption(str):
    """A setting that an option of its own has set: errors tell the option, which is what was typed.

    Args:
        option: The option, e.g. ``"--bootstrap"``.
        key: The setting's key.
        value: Its value.

    Example:
        >>> FromOption("--bootstrap", "kafka.bootstrap", "broker:9092")
        'kafka.bootstrap=broker:9092'
    """

    option: str

    def __new__(cls, option: str, key: str, value: str) -> FromOption:
        """Return the setting as ``--set`` takes it."""
        made = super().__new__(cls, f"{key}={value}")
        made.option = option
        return made


class Collector:
    """Turns sources into entries for one settings class and keeps the problems found on the way."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.model = model
        self.problems: list[str] = []
        self.notices: list[str] = []

    def file(
        self, path: Path, sections: Sequence[str], known: Iterable[str], base: type[BaseModel]
    ) -> list[Entry]:
        """Return the entries of ``path``: of each of ``sections`` that it has, in this order.

        Args:
            path: A YAML file whose top-level keys are sections.
            sections: Sections to read; ``common`` may only hold what ``base`` knows.
            known: Every section that may stand in the file (``common`` and all apps).
            base: The settings that every app has.
        """
        content, lines = _read_yaml(path)
        known = {COMMON, *sections, *known}
        for name in content:
            if name not in known:
                self.problems.append(_unknown_section(f"{path}:{lines[(name,)]}", name, known, base))
        entries: list[Entry] = []
        for section in sections:
            body = content.get(section)
            if isinstance(body, Mapping):
                where = _FileOrigin(path, section, lines)
                entries += self._walk(base if section == COMMON else self.model, body, where)
            elif body is not None:
                self.problems.append(
                    f"{path}:{lines[(section,)]}: section '{section}' must hold settings, one a line"
                )
        return entries

    def environment(self, env: Mapping[str, str]) -> list[Entry]:
        """Return the entries of ``MILLRACE__…`` variables; an empty value counts as not set."""
        entries = []
        if env.get(BOOTSTRAP_VARIABLE):
            entries.append(Entry(("kafka", "bootstrap"), env[BOOTSTRAP_VARIABLE], BOOTSTRAP_VARIABLE))
        for name in sorted(env):
            if name.upper().startswith(ENV_PREFIX) and env[name]:
                parts = name[len(ENV_PREFIX) :].split("__")
                # Shells cannot set names with dots, so SASL_PASSWORD means sasl.password inside an options
                # map; a part in mixed case comes from a tool that can set any name, and stands as it is.
                values = _nested([part.lower() if part.isupper() else part for part in parts], env[name])
                entries += self._walk(self.model, values, _Named(name), dots=parts[-1].isupper())
        return entries

    def overrides(self, items: Sequence[str]) -> list[Entry]:
        """Return the entries of ``--set key=value`` items; an empty value means none."""
        entries = []
        for item in items:
            key, equals, value = item.partition("=")
            key = key.strip()
            if equals and key:
                origin = item.option if isinstance(item, FromOption) else f"--set {key}"
                entries += self._walk(self.model, _nested(key.split("."), value or None), _Named(origin))
            else:
                # The whole item may be a secret that lacks its key; show no more than a plain name.
                shown = item if re.fullmatch(r"[a-z_.]+", item) and not is_secret(item) else "…"
                self.problems.append(
                    f"--set {shown}: write KEY=VALUE, for example --set kafka.bootstrap=host:9092"
                )
        return entries

    def _walk(
        self,
        model: type[BaseModel],
        values: Mapping[str, Any],
        origin: Callable[[Path_], str],
        path: Path_ = (),
        *,
        dots: bool = False,
    ) -> list[Entry]:
        """Return the entries of a nested mapping, guided by the fields of ``model``."""
        entries: list[Entry] = []
        for said, value in values.items():
            key = self._today(model, values, said, path, origin)
            here, where = (*path, key), origin((*path, said))
            field = model.model_fields.get(key)
            section = _section(field.annotation) if field else None
            if field is None:
                self._unknown(here, where, model)
            elif section and isinstance(value, Mapping):
                entries += self._walk(section, value, origin, here, dots=dots)
            elif section and value is not None:
                self.problems.append(f"{where}: {'.'.join(here)} is a section: set one of its keys")
            elif not section:
                value, parsed = self._parsed(value, field.annotation, where)
                if _is_options(field.annotation) and isinstance(value, Mapping):
                    for rest, item in _flat(value):
                        name = ".".join(rest)
                        name = name.replace("_", ".") if dots and not parsed else name
                        entries.append(Entry((*here, name), item, origin((*path, said, *rest))))
                elif isinstance(value, Mapping) and isinstance(origin, _Named) and not parsed:
                    # A key of a mapping by itself, `--set storage.retention.alerts=7d`: the others stay.
                    entries += [Entry((*here, *rest), item, where) for rest, item in _flat(value)]
                else:
                    entries.append(Entry(here, value, where))
        return entries

    def _today(
        self,
        model: type[BaseModel],
        values: Mapping[str, Any],
        said: str,
        path: Path_,
        origin: Callable[[Path_], str],
    ) -> str:
        """Return what a key is called today; a former name is taken down as a notice."""
        today: str | None = getattr(model, "FORMER", {}).get(said)
        if today is None:
            return said
        former, key = (".".join((*path, name)) for name in (said, today))
        told = f"{origin((*path, said))}: {former} is the former name of {key}"
        if today in values:
            self.problems.append(f"{told}, which is set, too: leave one out")
        else:
            self.notices.append(f"{told}: use that")
        return today

    def _parsed(self, value: Any, annotation: Any, origin: str) -> tuple[Any, bool]:
        """Return the value of a list or mapping field, read as JSON if it is text, and whether it was."""
        if not isinstance(value, str) or not (
            _is_options(annotation) or get_origin(annotation) in _CONTAINERS
        ):
            return value, False
        try:
            return json.loads(value), True
        except json.JSONDecodeError as error:
            self.problems.append(f"{origin}: not valid JSON at character {error.pos + 1}")
            return None, False

    def _unknown(self, path: Path_, origin: str, model: type[BaseModel]) -> None:
        key = ".".join(path)
        # Below the top, `model` is a section; keys are suggested from the whole.
        root = model if len(path) == 1 else self.model
        nearest = _nearest(key, _keys(root))
        if key in _keys(self.model) or key in self.model.model_fields:
            hint = "it belongs to one app only, write it in that app's section"
        elif nearest and origin.startswith(ENV_PREFIX):
            hint = f"did you mean {ENV_PREFIX}{nearest.replace('.', '__').upper()}?"
        elif nearest:
            hint = f"did you mean '{nearest}'?"
        else:
            hint = "`millrace config show` lists every key"
        self.problems.append(f"{origin}: unknown key '{key}': {hint}")


@dataclass(frozen=True, slots=True)
class _Named:
    """The same origin for every key: a variable, an option."""

    name: str

    def __call__(self, key: Path_) -> str:
        return self.name


class _FileOrigin:
    """``file:line`` of a key of one section."""

    def __init__(self, path: Path, section: str, lines: Mapping[Path_, int]) -> None:
        self.path, self.section, self.lines = path, section, lines

    def __call__(self, key: Path_) -> str:
        at = (self.section, *key)
        while at not in self.lines:  # keys inside a text that was read as JSON have no line of their own
            at = at[:-1]
        return f"{self.path}:{self.lines[at]}"


def config_path(config: Path | None, env: Mapping[str, str]) -> Path | None:
    """Return the settings file: ``config``, else ``MILLRACE_CONFIG``, else ``./millrace.yaml`` if it exists.

    Raises:
        SettingsError: If a file is named that does not exist.
    """
    named, by = (config, "--config") if config else (env.get(CONFIG_VARIABLE), CONFIG_VARIABLE)
    if named:
        if not Path(named).is_file():
            what = "is a folder" if Path(named).is_dir() else "not found"
            raise SettingsError([f"settings file {named} {what} (named by {by})"])
        return Path(named)
    return Path(DEFAULT_CONFIG) if Path(DEFAULT_CONFIG).is_file() else None


class _Loader(yaml.SafeLoader):
    """Reads bools as YAML 1.2 has them, true and false: `off` is a word, which some settings know."""


_BOOLS = ("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"))
_Loader.yaml_implicit_resolvers = {
    first: [_BOOLS if tag == _BOOLS[0] else (tag, pattern) for tag, pattern in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read_yaml(path: Path) -> tuple[dict[str, Any], dict[Path_, int]]:
    """Return the file's content and the line of every key."""
    loader = _Loader("")
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        lines: dict[Path_, int] = {}
        content = None if node is None else _construct(loader, node, (), lines)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingsError([f"cannot read {path}: {reason}"]) from None
    except yaml.MarkedYAMLError as error:
        # Quoted parts of the parser's message can be pieces of a value, and a value can be a secret.
        problem = re.sub(r"\s*'[^']{2,}'", "", str(error.problem or "not valid YAML"))
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SettingsError(
            [f"{path}:{line}: {problem} (quote values that start with a special character)"]
        ) from None
    except (yaml.YAMLError, RecursionError):
        raise SettingsError([f"{path}: not valid YAML"]) from None
    finally:
        loader.dispose()
    if content is not None and not isinstance(content, dict):
        raise SettingsError(
            [f"{path}:1: write sections: '{COMMON}:' or an app's name, then its settings indented"]
        )
    return content or {}, lines


def _construct(loader: _Loader, node: yaml.Node, path: Path_, lines: dict[Path_, int]) -> Any:
    """Return the Python value of ``node``; keys stay text, repeated keys are errors."""
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node, deep=True)
    if len(path) > 16:
        raise yaml.constructor.ConstructorError(problem="nested too deeply", problem_mark=node.start_mark)
    written = [key.value for key, _ in node.value if key.value != "<<"]
    for index, (key, _) in enumerate(node.value):
        if key.value in written[:index]:
            raise yaml.constructor.ConstructorError(problem="key written twice", problem_mark=key.start_mark)
    loader.flatten_mapping(node)
    result = {}
    for key, value in node.value:
        here = (*path, str(key.value))
        lines[here] = key.start_mark.line + 1
        result[str(key.value)] = _construct(loader, value, here, lines)
    return result


def _section(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _is_options(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, OptionMap)


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        section = _section(field.annotation)
        keys += _keys(section, f"{prefix}{name}.") if section else [prefix + name]
    return keys


def _nearest(key: str, keys: Sequence[str]) -> str | None:
    """Return the key that was probably meant: spelled alike, or the same name in another section."""
    close = difflib.get_close_matches(key, keys, n=1, cutoff=0.8)
    same_name = [k for k in keys if k.rpartition(".")[2] == key.rpartition(".")[2]]
    loose = difflib.get_close_matches(key, keys, n=1)
    return next(iter(close + same_name + loose), None)


def _unknown_section(origin: str, name: str, known: Iterable[str], base: type[BaseModel]) -> str:
    if name in base.model_fields:
        return f"{origin}: '{name}' stands at the top: put it under '{COMMON}:' or an app's name"
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"sections are {', '.join(sorted(known))}"
    return f"{origin}: unknown section '{name}': {hint}"


def _flat(values: Mapping[str, Any], path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*path, key))
        else:
            yield (*path, key), value


def _nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return dict(value)
