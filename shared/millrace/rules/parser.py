"""The parser of rules: recursive descent from words to a syntax tree, bounded in depth and size.

::

    rule       = or
    or         = and ("or" and)*
    and        = not ("and" not)*
    not        = "not" not | comparison
    comparison = sum [ ("<" | "<=" | ">" | ">=" | "==" | "!=") sum
                     | ["not"] "in" list
                     | ["not"] "between" sum "and" sum
                     | "is" ["not"] "missing" ]
    sum        = term (("+" | "-") term)*
    term       = factor (("*" | "/" | "%") factor)*
    factor     = "-" factor | number [unit ...] | text | "true" | "false"
               | name | name "(" [or ("," or)*] ")" | "(" or ")"
    list       = "(" sum ("," sum)* ")"          ("[...]" means the same)
"""

from __future__ import annotations

import math
from typing import Final

from millrace.rules import syntax
from millrace.rules.errors import RuleError
from millrace.rules.tokens import UNITS_MS, Token, tokens

#: How deep a rule may be nested, and how many parts it may have.
MAX_DEPTH: Final = 24
MAX_PARTS: Final = 400
#: Most signs of arithmetic.
MAX_SIGNS: Final = 60
#: Most items of an ``in (...)``.
MAX_ITEMS: Final = 1_000

_COMPARISONS: Final = frozenset({"<", "<=", ">", ">=", "==", "!="})


def parse(source: str) -> syntax.Node:
    """Return the shape of a rule's text.

    Raises:
        RuleError: The text is no rule; says where and why.

    >>> parse("amount > 5 and not online").word
    'and'
    """
    return _Parser(tokens(source)).rule()


class _Parser:
    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._at = 0
        self._depth = 0
        self._parts = 0
        self._signs = 0

    def rule(self) -> syntax.Node:
        if self._now.kind == "end":
            raise RuleError("the rule is empty", self._now.line, self._now.column)
        node = self._or()
        if self._now.kind != "end":
            raise self._unexpected("and the rule could end here")
        return node

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        self._parts += 1
        if self._parts > MAX_PARTS + 2 * MAX_ITEMS:
            raise RuleError(f"a rule has at most {MAX_PARTS} parts", token.line, token.column)
        return token

    def _is(self, *texts: str) -> bool:
        token = self._now
        return token.kind in ("keyword", "sign") and token.text in texts

    def _accept(self, text: str) -> bool:
        if self._is(text):
            self._take()
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._unexpected(f"where {text!r} should be")

    def _unexpected(self, where: str) -> RuleError:
        token = self._now
        what = "the text ends" if token.kind == "end" else f"unexpected {token.text!r}"
        return RuleError(f"{what} {where}", token.line, token.column)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RuleError(f"nested deeper than {MAX_DEPTH}", self._now.line, self._now.column)

    def _or(self) -> syntax.Node:
        self._deeper()
        node = self._chain("or")
        self._depth -= 1
        return node

    def _chain(self, word: str) -> syntax.Node:
        start = self._now
        part = self._not if word == "and" else lambda: self._chain("and")
        parts = [part()]
        while self._accept(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else syntax.Logic(start.line, start.column, word, tuple(parts))

    def _not(self) -> syntax.Node:
        start = self._now
        if self._accept("not"):
            self._deeper()
            node: syntax.Node = syntax.Unary(start.line, start.column, "not", self._not())
            self._depth -= 1
            return node
        return self._comparison()

    def _comparison(self) -> syntax.Node:
        start = self._now
        left = self._sum()
        sign = self._now
        if sign.kind == "sign" and sign.text in _COMPARISONS:
            self._take()
            right = self._sum()
            if self._now.kind == "sign" and self._now.text in _COMPARISONS:
                raise self._unexpected("after a comparison: join two comparisons with 'and'")
            return syntax.Binary(sign.line, sign.column, sign.text, left, right)
        if self._accept("is"):
            negated = self._accept("not")
            self._expect("missing")
            return syntax.Missing(start.line, start.column, left, negated)
        negated = False
        if self._is("not") and self._tokens[self._at + 1].text in ("in", "between"):
            negated = self._accept("not")
        if self._accept("in"):
            return syntax.Membership(start.line, start.column, left, self._items(), negated)
        if self._accept("between"):
            low = self._sum()
            self._expect("and")
            return syntax.Between(start.line, start.column, left, low, self._sum(), negated)
        return left

    def _items(self) -> tuple[syntax.Node, ...]:
        close = "]" if self._is("[") else ")"
        if not self._accept("["):
            self._expect("(")
        found = [self._sum()]
        while self._accept(","):
            found.append(self._sum())
            if len(found) > MAX_ITEMS:
                raise RuleError(f"at most {MAX_ITEMS:,} items: use a list", self._now.line, self._now.column)
        self._expect(close)
        return tuple(found)

    def _sum(self) -> syntax.Node:
        node = self._term()
        while self._is("+", "-"):
            sign = self._sign()
            node = syntax.Binary(sign.line, sign.column, sign.text, node, self._term())
        return node

    def _term(self) -> syntax.Node:
        node = self._factor()
        while self._is("*", "/", "%"):
            sign = self._sign()
            node = syntax.Binary(sign.line, sign.column, sign.text, node, self._factor())
        return node

    def _sign(self) -> Token:
        self._signs += 1
        if self._signs > MAX_SIGNS:
            raise RuleError(f"more than {MAX_SIGNS} signs of arithmetic", self._now.line, self._now.column)
        return self._take()

    def _factor(self) -> syntax.Node:
        token = self._now
        if self._is("-"):
            self._take()
            self._deeper()
            node: syntax.Node = syntax.Unary(token.line, token.column, "-", self._factor())
            self._depth -= 1
            return node
        if self._accept("("):
            node = self._or()
            self._expect(")")
            return node
        if self._is("true", "false"):
            self._take()
            return syntax.Literal(token.line, token.column, token.text == "true")
        if token.kind == "number":
            return self._number()
        if token.kind == "text":
            self._take()
            return syntax.Literal(token.line, token.column, token.text)
        if token.kind == "name":
            self._take()
            if self._accept("("):
                return syntax.Call(token.line, token.column, token.text, self._arguments())
            return syntax.Name(token.line, token.column, token.text)
        raise self._unexpected("where a value should be")

    def _arguments(self) -> tuple[syntax.Node, ...]:
        if self._accept(")"):
            return ()
        found = [self._or()]
        while self._accept(","):
            found.append(self._or())
        self._expect(")")
        return tuple(found)

    def _number(self) -> syntax.Node:
        first = self._now
        value = self._value()
        unit = self._unit()
        if unit is None:
            return syntax.Literal(first.line, first.column, value)
        total = value * unit
        while self._now.kind == "number" and self._tokens[self._at + 1].text in UNITS_MS:
            more = self._value()
            total += more * (self._unit() or 0)
        if total != int(total):
            raise RuleError("a duration is whole milliseconds", first.line, first.column)
        return syntax.Duration(first.line, first.column, int(total))

    def _value(self) -> float | int:
        token = self._take()
        value = float(token.text.replace("_", ""))
        if not math.isfinite(value):
            raise RuleError(f"{token.text} is too large", token.line, token.column)
        # What is whole stays whole, as long as a float could say the same.
        return int(value) if value.is_integer() and value < 2**53 else value

    def _unit(self) -> int | None:
        if self._now.kind == "name" and self._now.text in UNITS_MS:
            return UNITS_MS[self._take().text]
        return None
