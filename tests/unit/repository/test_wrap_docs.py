"""Pages have lines that can be read, and wrapping one changes nothing of what it says."""

from __future__ import annotations

import random
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.cases import case_count

ROOT = Path(__file__).resolve().parents[3]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "wrap_docs.py"))
wrapped, pages, WIDTH = SCRIPT["wrapped"], SCRIPT["pages"], SCRIPT["WIDTH"]
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
#: What a line may begin with, and then is not what its words say.
_BLOCK = re.compile(r"\s*([-*+] |\d+[.)] |#+ |>|\||```)")


def blocks(text: str) -> list[str]:
    """Return how lines begin that begin a block, outside of code."""
    return [m[0] for line in _FENCE.sub("", text).splitlines() if (m := _BLOCK.match(line))]


def too_long(text: str) -> list[str]:
    """Return lines that are too long and could be broken: no table, no heading, not one word or code span."""
    lines = [line for line in _FENCE.sub("", text).splitlines() if not re.match(r"\s*(\||#|<)", line)]
    return [line for line in lines if len(line) > WIDTH and " " in re.sub(r"`[^`]*`", "", line.strip())]


def test_pages_have_lines_that_can_be_read() -> None:
    """If not: `make format`."""
    assert [
        str(page.relative_to(ROOT))
        for page in pages()
        if wrapped(page.read_text("utf-8")) != page.read_text("utf-8")
    ] == []
    for page in (*pages(), ROOT / "docs" / "cli.md", ROOT / "docs" / "concepts" / "README.md"):
        text = page.read_text("utf-8")
        assert too_long(text) == [], page


WORDS = ["so", "state", "a", "`a code span`", "`-s x=1`", "[a link](a.md)", "-", "*", "+", "#", ">", "|",
         "1.", "12)", "**bold**", "2026", "0660.", "```", "=", "--", "…", "`" + "x " * 70 + "`"]  # fmt: skip


def page_of(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(1, 6)):
        words = ["a", *(rng.choice(WORDS) for _ in range(rng.randint(0, 60)))]
        text = " ".join(words).replace(" ```", " `c`")
        kind = rng.randrange(6)
        parts.append(
            ["", "- ", "  ", "12. ", "    - ", "> "][kind] + text
            if rng.random() < 0.8
            else rng.choice([f"| {text} |", f"```text\n{text}\n```", f"# {text}"])
        )
        if rng.random() < 0.5:
            parts.append("")
    return "\n".join(parts) + "\n"


def test_wrapping_keeps_words_code_and_blocks_and_is_done_once() -> None:
    rng = random.Random(2)
    for _ in range(case_count(600)):
        page = page_of(rng)
        found = wrapped(page)
        assert found.split() == page.split()
        assert _FENCE.findall(found) == _FENCE.findall(page)
        assert blocks(found) == blocks(page)
        assert wrapped(found) == found
        assert all(span in found for span in re.findall(r"(?<=\s)`[^`\n]+`(?=\s)", page))


@pytest.mark.parametrize(
    "line",
    ["| " + "a table | " * 20, "# " + "a heading " * 20, "> " + "a quote " * 20, "a break " * 20 + " "],
)
def test_what_has_its_lines_for_a_reason_keeps_them(line: str) -> None:
    assert wrapped(line + "\n") == line + "\n"


def test_a_list_item_goes_on_below_its_text_and_what_stands_after_it_stays() -> None:
    text = f"- {'word ' * 30}\n- next\n\nafter\n"
    first, second, third, *rest = wrapped(text).splitlines()
    assert first.startswith("- word")
    assert second.startswith("  word")
    assert [third, *rest] == ["- next", "", "after"]
