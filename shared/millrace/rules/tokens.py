"""The tokenizer of rules: from text to words."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from millrace.rules.errors import RuleError

#: Longest text of a rule, characters.
MAX_TEXT: Final = 4_000

KEYWORDS: Final = frozenset({"and", "or", "not", "in", "is", "between", "missing", "true", "false"})
#: Names of units of time → milliseconds. A number before one of them is a duration.
UNITS_MS: Final = {
    name: size
    for size, names in {
        1: "ms millisecond milliseconds",
        1_000: "s sec secs second seconds",
        60_000: "min mins minute minutes",
        3_600_000: "h hr hrs hour hours",
        86_400_000: "d day days",
        604_800_000: "w week weeks",
    }.items()
    for name in names.split()
}

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)
      | (?P<newline>\n)
      | (?P<number>\d+(?:_\d{3})*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
      | (?P<text>"[^"\n]*"|'[^'\n]*')
      | (?P<sign><=|>=|==|!=|[-+*/%<>(),\[\]])""",
    re.VERBOSE | re.ASCII,
)


class Token(NamedTuple):
    """A word of a rule.

    Attributes:
        kind: ``number``, ``name``, ``keyword``, ``text``, ``sign`` or ``end``.
        text: As it stands; of a ``text`` what is between the quotes.
        line: From 1.
        column: From 1.
    """

    kind: str
    text: str
    line: int
    column: int


def tokens(source: str) -> list[Token]:
    """Return the words of a rule, with an ``end`` after them.

    Args:
        source: The text. Line ends and ``#`` comments mean nothing.

    Raises:
        RuleError: A character that means nothing, a quote without end, or a text that is too long.

    >>> [t.text for t in tokens("amount > 5  # euro")]
    ['amount', '>', '5', '']
    """
    if len(source) > MAX_TEXT:
        raise RuleError(f"a rule has at most {MAX_TEXT:,} characters, this one {len(source):,}", 1, 1)
    found: list[Token] = []
    at, line, start = 0, 1, 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        column = at - start + 1
        if match is None:
            raise RuleError(_strange(source[at]), line, column)
        kind, text = str(match.lastgroup), match[0]
        at = match.end()
        if kind == "newline":
            line, start = line + 1, at
        elif kind != "space":
            if kind == "text":
                text = text[1:-1]
            elif kind == "name" and text in KEYWORDS:
                kind = "keyword"
            found.append(Token(kind, text, line, column))
    found.append(Token("end", "", line, at - start + 1))
    return found


def _strange(character: str) -> str:
    hints = {
        "=": "compare with ==",
        "&": "write 'and'",
        "|": "write 'or'",
        "!": "write 'not', or != for unequal",
        '"': "this quote has no end in its line",
        "'": "this quote has no end in its line",
    }
    hint = hints.get(character)
    return f"unexpected {character!r}" + (f": {hint}" if hint else "")
