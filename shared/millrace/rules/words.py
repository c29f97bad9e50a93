"""The vocabulary of an app's rules: its fields with their types, its functions, its actions."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from millrace.errors import UserError

Type = Literal["number", "text", "boolean"]
#: Gives a value of what a rule is asked about.
Getter = Callable[[Any], Any]


class LanguageError(UserError):
    """A language contradicts itself; a mistake of the app, not of a rule."""


@dataclass(frozen=True)
class Field:
    """A field that rules can read.

    Attributes:
        type: Type of its values.
        nullable: Whether it may be missing (``None``).
        attribute: The attribute of what a rule is asked about; unless given, the field's name.
        about: What it is, in a few words.
    """

    type: Type
    nullable: bool = False
    attribute: str = ""
    about: str = ""


@dataclass(frozen=True)
class Word:
    """A parameter that is one of several words: ``card``, ``device``."""

    choices: tuple[str, ...]

    def __str__(self) -> str:
        return "|".join(self.choices)


@dataclass(frozen=True)
class FieldName:
    """A parameter that is the name of a field; ``choices`` empty: any field of this type."""

    type: Type | None = None
    choices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "|".join(self.choices) or f"{self.type or ''} field".strip()


@dataclass(frozen=True)
class Window:
    """A parameter that is a duration between two bounds, ms: a window of unbounded length is no rule."""

    least_ms: int
    most_ms: int

    def __str__(self) -> str:
        return "duration"


@dataclass(frozen=True)
class Constant:
    """A parameter that is written out: a number, a text, true or false."""

    type: Type

    def __str__(self) -> str:
        return f"constant {self.type}"


@dataclass(frozen=True)
class Where:
    """A last parameter that may be left out: a condition on each of the things that a function looks at.

    It is written as any condition, over fields of its own, and has constants only beside them.

    Attributes:
        fields: What the condition can speak of: name → field.
    """

    fields: Mapping[str, Field]

    def __hash__(self) -> int:
        return hash(tuple(self.fields))

    def __str__(self) -> str:
        return f"condition on {'|'.join(self.fields)}, or nothing"


@dataclass(frozen=True)
class Chosen:
    """The condition that was written for a :class:`Where`; equal texts mean equal conditions.

    Attributes:
        text: The condition, in one form.
        run: Gives true, false or ``None`` (unknown) of a thing with the fields as attributes.
        fields: The fields that it reads.
    """

    text: str
    run: Getter = field(compare=False, repr=False)
    fields: frozenset[str] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.text


Parameter = Word | FieldName | Window | Constant | Where


@dataclass(frozen=True)
class Function:
    """A function of constants, made ready once per rule: windows over state, lists, scores.

    Attributes:
        name: Its name.
        parameters: What it takes.
        result: Type of its values.
        bind: ``bind(*arguments)`` gives the function of what the rule is asked about. A window comes as
            milliseconds, a field as its name, a condition as :class:`Chosen`. It raises ``ValueError`` where
            the arguments do not go together.
        nullable: Whether it may have no value (``None``).
        about: What it is, in a few words.
        implies: Of a function that is true or false: ``implies(*arguments)`` gives a field of numbers and a
            limit that it is at least where the function is true. Rules are then found by the field.
        number: Of a function that gives a text: ``number(*arguments)`` gives the function that is meant where
            a number is wanted; it may have no value.
    """

    name: str
    parameters: tuple[Parameter, ...]
    result: Type
    bind: Callable[..., Getter]
    nullable: bool = False
    about: str = ""
    implies: Callable[..., tuple[str, float]] | None = None
    number: Callable[..., Getter] | None = None


@dataclass(frozen=True)
class Pure:
    """A function of values.

    Attributes:
        name: Its name.
        types: Types of what it takes; of the last one there may be ``more``.
        result: Type of its values.
        apply: The function. An argument is never ``None``: where one is missing, so is the result.
        nullable: Whether it may have no value all the same.
        more: Whether the last argument may be repeated.
        about: What it is, in a few words.
    """

    name: str
    types: tuple[Type, ...]
    result: Type
    apply: Callable[..., Any]
    nullable: bool = False
    more: bool = False
    about: str = ""


def _root(value: float) -> float | None:
    return math.sqrt(value) if value >= 0 else None


def _log10(value: float) -> float | None:
    return math.log10(value) if value > 0 else None


#: What every language has.
COMMON: Final = (
    Pure("abs", ("number",), "number", abs, about="without its sign"),
    Pure("round", ("number",), "number", lambda v: float(round(v)) if math.isfinite(v) else v, about="whole"),
    Pure("sqrt", ("number",), "number", _root, nullable=True, about="root; missing below 0"),
    Pure("log10", ("number",), "number", _log10, nullable=True, about="logarithm; missing at 0 and below"),
    Pure("min", ("number", "number"), "number", min, more=True, about="the least"),
    Pure("max", ("number", "number"), "number", max, more=True, about="the largest"),
    Pure("lower", ("text",), "text", str.lower, about="in lower case"),
    Pure("length", ("text",), "number", len, about="characters"),
    Pure("starts_with", ("text", "text"), "boolean", str.startswith, about="begins so"),
    Pure("ends_with", ("text", "text"), "boolean", str.endswith, about="ends so"),
    Pure("contains", ("text", "text"), "boolean", str.__contains__, about="has it in it"),
)


@dataclass(frozen=True)
class Vocabulary:
    """What rules can speak of.

    Attributes:
        fields: Name → field.
        functions: The app's functions; :data:`COMMON` and ``coalesce(a, b)`` are always there.
        actions: What a rule may ask for; empty: rules have no action.
        two_person: Actions whose rules a second person must approve before they are active.
    """

    fields: Mapping[str, Field]
    functions: tuple[Function | Pure, ...] = ()
    actions: tuple[str, ...] = ()
    two_person: frozenset[str] = frozenset()
    _by_name: dict[str, Function | Pure] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for function in (*COMMON, *self.functions):
            if function.name == "coalesce":
                raise LanguageError("the function 'coalesce' is built in")
            self._by_name[function.name] = function
        if unknown := self.two_person - set(self.actions):
            raise LanguageError(f"two_person names no action: {', '.join(sorted(unknown))}")

    def function(self, name: str) -> Function | Pure | None:
        """Return the function of that name."""
        return self._by_name.get(name)

    def function_names(self) -> list[str]:
        """Return the names of all functions."""
        return sorted([*self._by_name, "coalesce"])

    def describe(self) -> list[tuple[str, str, str]]:
        """Return what can be written: (text, type, what it is), fields first."""
        rows = [
            (name, f.type + (" or missing" if f.nullable else ""), f.about) for name, f in self.fields.items()
        ]
        for name in sorted(self._by_name):
            f = self._by_name[name]
            if isinstance(f, Pure):
                takes = ", ".join(f.types) + (", …" if f.more else "")
            else:
                takes = ", ".join(str(p) for p in f.parameters)
            rows.append((f"{name}({takes})", f.result + (" or missing" if f.nullable else ""), f.about))
        return rows


def nearest(name: str, among: Iterable[str]) -> str:
    """Return a hint at the name that was meant, or nothing.

    >>> nearest("amont", ["amount", "mcc"])
    '; did you mean amount?'
    """
    found = difflib.get_close_matches(name, list(among), n=1)
    return f"; did you mean {found[0]}?" if found else ""
