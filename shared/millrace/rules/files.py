"""Files of rules, YAML or JSON: a list of rules, each with the fields of :class:`millrace.rules.Rule`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from millrace.rules.book import check_rule
from millrace.rules.errors import RuleError
from millrace.rules.language import Language
from millrace.rules.model import Rule

#: Largest file, bytes.
MAX_FILE = 4_000_000


@dataclass(frozen=True)
class Written:
    """A rule in a file.

    Attributes:
        rule: The rule.
        line: Line of the file where its condition begins, from 1.
        exact: Whether the lines of the condition are lines of the file.
    """

    rule: Rule
    line: int
    exact: bool


def read_rules(path: Path) -> list[Written]:
    """Return the rules of a file.

    Args:
        path: A file with a list of rules, or with one under the key ``rules``.

    Raises:
        RuleError: The file cannot be read, or is no list of rules; says in which line.
    """
    import yaml

    try:
        if path.stat().st_size > MAX_FILE:
            _refuse(path, 0, f"larger than {MAX_FILE:,} bytes")
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise RuleError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RuleError(f"{path} is not UTF-8") from None
    except RecursionError:
        raise RuleError(f"{path}: nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise RuleError(f"{path}:{mark.line + 1 if mark else 1}: {error.problem}") from None
    if isinstance(root, yaml.MappingNode):
        root = next((v for k, v in root.value if k.value == "rules"), root)
    if not isinstance(root, yaml.SequenceNode):
        _refuse(path, 1, "the file is a list of rules")
    constructor = yaml.SafeLoader("")
    return [_written(path, node, constructor) for node in root.value]


def check_rules(language: Language, path: Path) -> tuple[list[Rule], list[str]]:
    """Return the rules of a file, and a message for each that the language refuses.

    Args:
        language: The app's language.
        path: The file.

    Raises:
        RuleError: The file is no list of rules.
    """
    rules: list[Rule] = []
    problems: list[str] = []
    for written in read_rules(path):
        rule = written.rule
        if any(other.id == rule.id for other in rules):
            problems.append(f"{path}:{written.line}: rule {rule.id!r} stands here twice")
            continue
        rules.append(rule)
        try:
            check_rule(language, rule)
        except RuleError as error:
            line = written.line + (error.line - 1 if written.exact and error.line else 0)
            problems.append(f"{path}:{line}: {error.shown(rule.when)}")
    return rules, problems


def _written(path: Path, node: Any, constructor: Any) -> Written:
    line = node.start_mark.line + 1
    try:
        value = constructor.construct_object(node, deep=True)
        rule = msgspec.convert(value, Rule)
        unknown = set(value) - set(Rule.__struct_fields__)
    except msgspec.ValidationError as error:
        _refuse(path, line, str(error))
    except Exception as error:
        _refuse(path, line, f"this is no rule: {error}")
    if unknown:
        _refuse(path, line, f"a rule has no field {sorted(unknown)[0]!r}")
    when = next(v for k, v in node.value if k.value == "when")
    block = when.style in ("|", ">")
    return Written(rule, when.start_mark.line + 1 + block, block or "\n" not in rule.when)


def _refuse(path: Path, line: int, problem: str) -> NoReturn:
    raise RuleError(f"{path}{f':{line}' if line else ''}: {problem}")
