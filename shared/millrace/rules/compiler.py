"""The compiler of rules: from a syntax tree to a function of an event, types checked once.

A value that is missing makes a comparison unknown, ``not`` leaves it unknown, ``and`` and ``or`` are those of
SQL; a rule holds only where it is true. What can never be missing takes the shorter way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from millrace.rules import syntax
from millrace.rules.closures import (
    ARITHMETIC,
    COMPARE,
    against,
    all_of,
    all_of_some_missing,
    always,
    any_of,
    any_of_some_missing,
    applied,
    in_missing,
    not_missing,
)
from millrace.rules.errors import RuleError
from millrace.rules.parser import MAX_PARTS, parse
from millrace.rules.words import (
    Chosen,
    Constant,
    FieldName,
    Getter,
    Parameter,
    Pure,
    Type,
    Vocabulary,
    Where,
    Window,
    Word,
    nearest,
)
from millrace.time.durations import format_duration

_UNKNOWN: Final = object()
_TURNED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


@dataclass(frozen=True)
class Use:
    """A function of constants that a rule uses, e.g. ``sum`` of ``("amount", "card", 600000)``."""

    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Code:
    """A compiled part of a rule.

    Attributes:
        type: Type of its values.
        nullable: Whether it may be missing.
        run: Gives its value.
        key: The part as text: equal texts mean equal values.
        constant: Its value, where it has always the same.
        use: The function of constants that it is.
    """

    type: Type
    nullable: bool
    run: Getter
    key: str
    constant: Any = _UNKNOWN
    use: Use | None = None

    @property
    def is_constant(self) -> bool:
        """Whether it has always the same value."""
        return self.constant is not _UNKNOWN


@dataclass(frozen=True, eq=False)
class Test:
    """A simple condition: a value compared with a constant, or looked for among constants.

    Attributes:
        sign: ``<``, ``<=``, ``>``, ``>=`` or ``in``.
        of: What is compared.
        constant: What with; of ``in`` the frozenset.
        computes: Whether it takes a function to know the value: fields are there.
    """

    __test__ = False

    sign: str
    of: Code
    constant: Any
    computes: bool


def cost_of(test: Test) -> int:
    """Return how dear a simple condition is as a way to find a rule."""
    return 2 * test.computes + (test.sign != "in")


@dataclass(frozen=True, eq=False)
class Condition:
    """A condition, ready to be asked.

    Attributes:
        text: As it was written.
        run: Gives true, false or ``None`` (unknown).
        uses: The functions of constants in it: what state must be there for it.
        fields: The fields that it reads.
        tests: Simple conditions each of which must be true where the condition is.
        covers: Sets of simple conditions; of each at least one must be true where the condition is. By them
            an index over many rules leaves out those that cannot hold.
    """

    text: str
    run: Getter
    uses: frozenset[Use]
    fields: frozenset[str]
    tests: tuple[Test, ...] = field(default=(), repr=False)
    covers: tuple[tuple[Test, ...], ...] = field(default=(), repr=False)

    def holds(self, event: Any) -> bool:
        """Return whether the condition is true of an event (anything with the fields as attributes)."""
        return self.run(event) is True


def compile_condition(language: Vocabulary, text: str) -> Condition:
    """Return the condition that a text writes; see :meth:`millrace.rules.Language.condition`."""
    compiler = _Compiler(language)
    root = parse(text)
    code = compiler.boolean(root, "a rule")
    if code.is_constant:
        raise RuleError("the rule is the same for every event", root.line, root.column)
    covers = compiler.covers(root)
    tests = tuple(cover[0] for cover in covers if len(cover) == 1)
    return Condition(text, code.run, frozenset(compiler.uses), frozenset(compiler.fields), tests, covers)


class _Compiler:
    def __init__(self, language: Vocabulary) -> None:
        self._language = language
        self._parts = 0
        self._tests: dict[int, Test] = {}
        self.uses: set[Use] = set()
        self.fields: set[str] = set()

    def boolean(self, node: syntax.Node, what: str) -> Code:
        code = self.code(node)
        if code.type != "boolean":
            _refuse(node, f"{what} is true or false, this is a {code.type}")
        return code

    def code(self, node: syntax.Node) -> Code:
        self._parts += 1
        if self._parts > MAX_PARTS:
            _refuse(node, f"a rule has at most {MAX_PARTS} parts")
        made: Code = getattr(self, f"_{type(node).__name__.lower()}")(node)
        return made

    def covers(self, node: syntax.Node) -> tuple[tuple[Test, ...], ...]:
        """Return sets of simple conditions, of each of which one is true where the node is."""
        if not isinstance(node, syntax.Logic):
            return ((self._tests[id(node)],),) if id(node) in self._tests else ()
        parts = [self.covers(part) for part in node.parts]
        if node.word == "and":
            return tuple(cover for found in parts for cover in found)
        if not all(parts):
            return ()
        return (tuple(test for found in parts for test in min(found, key=self._cost)),)

    def _cost(self, cover: tuple[Test, ...]) -> tuple[int, int]:
        return max(map(cost_of, cover)), len(cover)

    def _test(self, node: syntax.Node, sign: str, of: Code, constant: Any) -> None:
        self._tests[id(node)] = Test(sign, of, constant, of.key not in self.fields)

    # -- values ---------------------------------------------------------------------------------------

    def _literal(self, node: syntax.Literal) -> Code:
        value = node.value
        kind: Type = "text"
        if isinstance(value, bool):
            kind = "boolean"
        elif not isinstance(value, str):
            kind, value = "number", float(value)
        return Code(kind, False, always(value), repr(value), value)

    def _duration(self, node: syntax.Duration) -> NoReturn:
        _refuse(node, "a duration can only be an argument of a function")

    def _name(self, node: syntax.Name) -> Code:
        found = self._language.fields.get(node.name)
        if found is None:
            if self._language.function(node.name) is not None:
                _refuse(node, f"'{node.name}' is a function: write {node.name}(…)")
            _refuse(node, f"there is no field '{node.name}'{nearest(node.name, self._language.fields)}")
        self.fields.add(node.name)
        get = operator.attrgetter(found.attribute or node.name)
        return self._noted(node, Code(found.type, found.nullable, get, node.name))

    def _noted(self, node: syntax.Node, code: Code) -> Code:
        """Take down what is true or false by itself as a simple condition."""
        if code.type == "boolean":
            self._test(node, "in", code, frozenset((True,)))
        return code

    def _unary(self, node: syntax.Unary) -> Code:
        if node.sign == "not":
            of = self.boolean(node.of, "what 'not' is about")
            run = of.run
            if of.nullable:
                return Code("boolean", True, not_missing(run), f"not({of.key})")
            return Code("boolean", False, lambda event: not run(event), f"not({of.key})")
        of = self._number(node.of)
        if of.is_constant:
            return Code("number", False, always(-of.constant), repr(-of.constant), -of.constant)
        return Code("number", of.nullable, _applied(operator.neg, (of,)), f"-({of.key})")

    def _number(self, node: syntax.Node) -> Code:
        code = self._in_numbers(self.code(node))
        if code.type != "number":
            _refuse(node, f"this must be a number, it is a {code.type}")
        return code

    def _in_numbers(self, code: Code) -> Code:
        """Return what a text is where a number is wanted, if its function says so."""
        use = code.use
        if code.type != "text" or use is None:
            return code
        function = self._language.function(use.name)
        if function is None or isinstance(function, Pure) or function.number is None:
            return code
        return Code("number", True, function.number(*use.arguments), f"number({code.key})", use=use)

    def _binary(self, node: syntax.Binary) -> Code:
        if node.sign in COMPARE:
            return self._comparison(node)
        left, right = self._number(node.left), self._number(node.right)
        apply, nullable = ARITHMETIC[node.sign]
        if node.sign in "/%" and right.is_constant and right.constant:
            nullable = False
        nullable = nullable or left.nullable or right.nullable
        key = f"({left.key} {node.sign} {right.key})"
        run = _applied(apply, (left, right))
        if left.is_constant and right.is_constant:
            value = run(None)
            if value is None:
                _refuse(node, "division by zero")
            return Code("number", False, always(value), repr(value), value)
        return Code("number", nullable, run, key)

    # -- conditions -----------------------------------------------------------------------------------

    def _comparison(self, node: syntax.Binary) -> Code:
        left, right = self.code(node.left), self.code(node.right)
        if "number" in (left.type, right.type):
            left, right = self._in_numbers(left), self._in_numbers(right)
        if left.type != right.type:
            _refuse(node, f"a {left.type} cannot be compared with a {right.type}")
        if left.type == "boolean" and node.sign not in ("==", "!="):
            _refuse(node, "true and false have no order")
        if left.is_constant and right.is_constant:
            _refuse(node, "both sides are constant")
        sign = node.sign
        if left.is_constant:
            left, right, sign = right, left, _TURNED[sign]
        nullable = left.nullable or right.nullable
        key = f"({left.key} {sign} {right.key})"
        if right.is_constant:
            run = against(sign, left.run, right.constant, nullable=left.nullable)
            if sign == "==":
                self._test(node, "in", left, frozenset((right.constant,)))
            elif sign != "!=" and left.type == "number":
                self._test(node, sign, left, right.constant)
        else:
            run = _applied(COMPARE[sign], (left, right))
        return Code("boolean", nullable, run, key)

    def _logic(self, node: syntax.Logic) -> Code:
        codes = [self.boolean(part, f"what {node.word!r} joins") for part in node.parts]
        constant = next((n for n, c in zip(node.parts, codes, strict=True) if c.is_constant), None)
        if constant is not None:
            _refuse(constant, f"what {node.word!r} joins is the same for every event")
        nullable = any(c.nullable for c in codes)
        runs = tuple(c.run for c in codes)
        key = f"({f' {node.word} '.join(c.key for c in codes)})"
        make = (
            (all_of_some_missing if nullable else all_of)
            if node.word == "and"
            else (any_of_some_missing if nullable else any_of)
        )
        return Code("boolean", nullable, make(runs), key)

    def _membership(self, node: syntax.Membership) -> Code:
        of = self.code(node.of)
        if of.is_constant:
            _refuse(node, "a constant is looked for: name a field")
        values = []
        for item in node.among:
            code = self.code(item)
            self._parts -= 1  # the parser bounds the items
            if not code.is_constant:
                _refuse(item, "the items of 'in' are constants")
            if code.type != of.type:
                _refuse(item, f"a {of.type} is looked for, this is a {code.type}")
            values.append(code.constant)
        among, run, negated = frozenset(values), of.run, node.negated
        shown = ", ".join(map(repr, sorted(among)))
        if not negated:
            self._test(node, "in", of, among)
        if of.nullable:
            found = in_missing(run, among, negated)
        elif negated:
            found = lambda event: run(event) not in among  # noqa: E731
        else:
            found = lambda event: run(event) in among  # noqa: E731
        return Code("boolean", of.nullable, found, f"({of.key} {'not ' * negated}in {shown})")

    def _missing(self, node: syntax.Missing) -> Code:
        of = self.code(node.of)
        if not of.nullable:
            _refuse(node, "this is never missing")
        run = of.run
        if node.negated:
            return Code("boolean", False, lambda event: run(event) is not None, f"({of.key} is there)")
        return Code("boolean", False, lambda event: run(event) is None, f"({of.key} is missing)")

    def _between(self, node: syntax.Between) -> Code:
        of, low, high = self._number(node.of), self._number(node.low), self._number(node.high)
        nullable = of.nullable or low.nullable or high.nullable
        negated = node.negated
        if low.is_constant and high.is_constant and low.constant > high.constant:
            _refuse(node, "between takes the smaller number first")
        if low.is_constant and not negated:
            self._test(node, ">=", of, low.constant)
        run = _applied(lambda v, a, b: (a <= v <= b) is not negated, (of, low, high))
        return Code(
            "boolean", nullable, run, f"({of.key} {'not ' * negated}between {low.key} and {high.key})"
        )

    # -- functions ------------------------------------------------------------------------------------

    def _call(self, node: syntax.Call) -> Code:
        if node.name == "coalesce":
            return self._coalesce(node)
        function = self._language.function(node.name)
        if function is None:
            hint = nearest(node.name, self._language.function_names())
            _refuse(node, f"there is no function '{node.name}'{hint}")
        if isinstance(function, Pure):
            return self._pure(node, function)
        wanted = function.parameters
        if isinstance(wanted[-1], Where) and len(node.arguments) == len(wanted) - 1:
            wanted = wanted[:-1]
        if len(node.arguments) != len(wanted):
            takes = ", ".join(map(str, function.parameters))
            _refuse(node, f"{node.name} takes ({takes}), not {len(node.arguments)} arguments")
        values = tuple(self._argument(p, a) for p, a in zip(wanted, node.arguments, strict=True))
        use = Use(node.name, values)
        self.uses.add(use)
        shown = ", ".join(str(v) if isinstance(v, Chosen) else repr(v) for v in values)
        try:
            run = function.bind(*values)
        except ValueError as error:
            _refuse(node, str(error))
        code = Code(function.result, function.nullable, run, f"{node.name}({shown})", use=use)
        if function.implies is None:
            return self._noted(node, code)
        name, limit = function.implies(*values)
        self._test(node, ">=", self._name(syntax.Name(node.line, node.column, name)), limit)
        return code

    def _argument(self, wanted: Parameter, node: syntax.Node) -> Any:
        self._parts += 1
        if isinstance(wanted, Window):
            return _window(wanted, node)
        if isinstance(wanted, Where):
            return self._chosen(wanted, node)
        if isinstance(wanted, Constant):
            code = self.code(node)
            if not code.is_constant or code.type != wanted.type:
                _refuse(node, f"this must be a {wanted.type}, written out")
            return code.constant
        if not isinstance(node, syntax.Name):
            _refuse(node, f"this must be one of {wanted}")
        if isinstance(wanted, Word):
            if node.name not in wanted.choices:
                _refuse(node, f"'{node.name}' is none of {', '.join(wanted.choices)}"
                        + nearest(node.name, wanted.choices))  # fmt: skip
            return node.name
        return self._field_name(wanted, node)

    def _chosen(self, wanted: Where, node: syntax.Node) -> Chosen:
        """Compile a condition on what a function looks at, by a language of its own."""
        inner = _Compiler(Vocabulary(wanted.fields))
        inner._parts = self._parts
        code = inner.boolean(node, "this condition")
        if code.is_constant or inner.uses:
            _refuse(node, f"this condition is on {', '.join(wanted.fields)}")
        self._parts = inner._parts
        return Chosen(code.key, code.run, frozenset(inner.fields))

    def _field_name(self, wanted: FieldName, node: syntax.Name) -> str:
        code = self._name(node)
        if wanted.choices and node.name not in wanted.choices:
            _refuse(node, f"'{node.name}' is none of {', '.join(wanted.choices)}")
        if wanted.type is not None and code.type != wanted.type:
            _refuse(node, f"this must be a {wanted.type}, '{node.name}' is a {code.type}")
        return node.name

    def _pure(self, node: syntax.Call, function: Pure) -> Code:
        types = list(function.types)
        if function.more and len(node.arguments) > len(types):
            types += [types[-1]] * (len(node.arguments) - len(types))
        if len(node.arguments) != len(types):
            takes = ", ".join(function.types) + (", …" if function.more else "")
            _refuse(node, f"{node.name} takes ({takes}), not {len(node.arguments)} arguments")
        codes = [self.code(argument) for argument in node.arguments]
        for code, tp, argument in zip(codes, types, node.arguments, strict=True):
            if code.type != tp:
                _refuse(argument, f"this must be a {tp}, it is a {code.type}")
        nullable = function.nullable or any(c.nullable for c in codes)
        key = f"{node.name}({', '.join(c.key for c in codes)})"
        run = _applied(function.apply, codes)
        if all(c.is_constant for c in codes) and (value := run(None)) is not None:
            return Code(function.result, False, always(value), repr(value), value)
        return Code(function.result, nullable, run, key)

    def _coalesce(self, node: syntax.Call) -> Code:
        if len(node.arguments) != 2:
            _refuse(node, "coalesce takes two values: the second stands in where the first is missing")
        first, second = (self.code(a) for a in node.arguments)
        if first.type != second.type:
            _refuse(node, f"coalesce of a {first.type} and a {second.type}")
        if not first.nullable:
            _refuse(node.arguments[0], "this is never missing")
        get, instead = first.run, second.run

        def run(event: Any) -> Any:
            value = get(event)
            return instead(event) if value is None else value

        return Code(first.type, second.nullable, run, f"coalesce({first.key}, {second.key})")


def _applied(apply: Callable[..., Any], of: Sequence[Code]) -> Getter:
    return applied(apply, tuple(code.run for code in of), nullable=any(code.nullable for code in of))


def _refuse(node: syntax.Node, problem: str) -> NoReturn:
    raise RuleError(problem, node.line, node.column)


def _window(wanted: Window, node: syntax.Node) -> int:
    if not isinstance(node, syntax.Duration):
        _refuse(node, "this must be a duration, for example 10 min")
    if not wanted.least_ms <= node.ms <= wanted.most_ms:
        least, most = format_duration(wanted.least_ms), format_duration(wanted.most_ms)
        _refuse(node, f"a window is {least} to {most}, not {format_duration(node.ms)}")
    return node.ms
