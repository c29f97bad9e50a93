"""Tables at the end of commands: a pipe or a file breaks no word of theirs."""

from __future__ import annotations

import pytest

from millrace.console.report import print_table


def test_a_table_that_goes_to_a_file_is_as_wide_as_it_must_be(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("input", "event", *(f"a column {n}" for n in range(8)))
    print_table("title", columns, [("transactions", "RemoveListEntry", *[1_000_000] * 8)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split("  ")[0] == "input"
    assert "RemoveListEntry" in lines[2]
    assert lines[2].count("1,000,000") == 8


def test_what_is_longer_than_a_line_may_be_is_folded(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("title", ("said",), [("x" * 1_000,)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 240
    assert "".join(lines[2:]).count("x") == 1_000
