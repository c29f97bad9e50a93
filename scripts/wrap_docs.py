#!/usr/bin/env python3
"""Wrap the paragraphs of Markdown pages that have lines too long to be read: `make format`.

Only paragraphs and list items are touched, and of these only such as have a line that is too long. Tables,
code, headings and lines that end in a hard break stay as they are. No break is put into a code span, nor in
front of what would begin a list, a heading, a quote or a table there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The longest line.
WIDTH = 120
#: Pages that a command writes, line by line.
MADE = {"docs/cli.md", "docs/concepts/README.md", "docs/walk.md"}

_FENCE = re.compile(r"\s*(```|~~~)")
_ITEM = re.compile(r"(\s*)([-*+]|\d+[.)]) +")
_ALONE = re.compile(r"\s*(#{1,6} |\||>|<|\[[^\]]+\]: |[-=*_]{3,}\s*$|$)")
_BEGINS_A_BLOCK = re.compile(r"([-*+]|#{1,6}|\d+[.)])(?=\s|$)|[>|]|[-=]+$|```|~~~")
#: Behind a line that stays as it is.
_VERBATIM = "\0"
_WORD = re.compile(r"(?:`+[^`]*`+|[^\s`])+")


def wrapped(text: str) -> str:
    r"""Return a page whose paragraphs have no line longer than they may be.

    >>> [len(line) for line in wrapped("word " * 30 + "\n").splitlines()]
    [119, 29]
    """
    lines: list[str] = []
    for paragraph in _paragraphs(text.splitlines()):
        long = any(len(line) > WIDTH for line in paragraph)
        fixed = any(line.endswith((_VERBATIM, "  ", "\\")) for line in paragraph)
        lines += _wrap(paragraph) if long and not fixed else paragraph
    return "".join(f"{line.removesuffix(_VERBATIM)}\n" for line in lines)


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Yield runs of lines that are one paragraph or one list item, and all others line by line."""
    run: list[str] = []
    fence = ""
    for line in lines:
        opened = _FENCE.match(line)
        is_code = bool(fence or opened)
        if opened and fence in ("", opened[1]):
            fence = "" if fence else opened[1]
        alone = is_code or _ALONE.match(line)
        if run and (alone or _ITEM.match(line)):
            yield run
            run = []
        if alone:
            yield [line + _VERBATIM]
        else:
            run.append(line)
    if run:
        yield run


def _wrap(paragraph: list[str]) -> list[str]:
    marker = _ITEM.match(paragraph[0])
    first = marker[0] if marker else re.match(r"\s*", paragraph[0])[0]  # type: ignore[index]
    rest = " " * len(first) if marker else first
    text = " ".join([paragraph[0][len(first) :], *(line.strip() for line in paragraph[1:])])
    made, line = [], [first.strip()] if marker else []
    for word in _WORD.findall(text):
        indent = rest if made or not marker else marker[1]
        if line and len(indent) + len(" ".join([*line, word])) > WIDTH and line != [first.strip()]:
            # What would begin a block takes the word before it along.
            split, begins = len(line), word
            while split and _BEGINS_A_BLOCK.match(begins):
                split -= 1
                begins = line[split]
            if line[:split] not in ([], [first.strip()]):
                made.append(indent + " ".join(line[:split]))
                line = line[split:]
        line.append(word)
    return [*made, (rest if made or not marker else marker[1]) + " ".join(line)]


def pages() -> list[Path]:
    """Return the pages that people write."""
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md"]
    found += [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "apps").rglob("*.md"))]
    return [page for page in found if page.relative_to(ROOT).as_posix() not in MADE]


def main(arguments: list[str]) -> int:
    """Wrap all pages, or with ``--check`` name those that are not; return the exit code."""
    left = []
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = wrapped(before)
        if after != before:
            left.append(page)
            if "--check" not in arguments:
                page.write_text(after, encoding="utf-8")
    for page in left:
        print(f"{'wrapped' if '--check' not in arguments else 'lines too long'}  {page.relative_to(ROOT)}")
    return 1 if left and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
