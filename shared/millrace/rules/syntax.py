"""The syntax tree of a rule: what the parser makes and the compiler reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """A part of a rule.

    Attributes:
        line: Where it begins, from 1.
        column: Where it begins, from 1.
    """

    line: int
    column: int


@dataclass(frozen=True)
class Literal(Node):
    """A number, a text, or true or false."""

    value: float | int | str | bool


@dataclass(frozen=True)
class Duration(Node):
    """A duration, ms."""

    ms: int


@dataclass(frozen=True)
class Name(Node):
    """A field, or a word that a function knows."""

    name: str


@dataclass(frozen=True)
class Call(Node):
    """A function of arguments."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Unary(Node):
    """``-x`` or ``not x``."""

    sign: str
    of: Node


@dataclass(frozen=True)
class Binary(Node):
    """Arithmetic or a comparison of two."""

    sign: str
    left: Node
    right: Node


@dataclass(frozen=True)
class Logic(Node):
    """``and`` or ``or`` of several."""

    word: str
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Membership(Node):
    """``x in (a, b)``."""

    of: Node
    among: tuple[Node, ...]
    negated: bool


@dataclass(frozen=True)
class Missing(Node):
    """``x is missing``."""

    of: Node
    negated: bool


@dataclass(frozen=True)
class Between(Node):
    """``x between a and b``, both ends included."""

    of: Node
    low: Node
    high: Node
    negated: bool
