"""Reports as files: what they say, and that they are there whole or not at all."""

from __future__ import annotations

import doctest
import json
import math
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from millrace.errors import UserError
from millrace.operations import app_rules, control_topic, report, sending
from millrace.time import moments


@dataclass
class Row:
    name: str
    rate: float | None


class Pair(NamedTuple):
    left: int
    right: str


class Cell(msgspec.Struct):
    where: Path
    count: int


def anything(random: Random, depth: int = 3) -> tuple[Any, Any]:
    """Return a value, and what a reader of its JSON is to see."""
    number = random.randrange(-(10**6), 10**6)
    plain: list[tuple[Any, Any]] = [
        (number, number),
        (np.int64(number), number),
        (number / 7, number / 7),
        (np.float64(number / 7), number / 7),
        (math.nan, None),
        (np.float64("inf"), None),
        (f"ü{number}\n", f"ü{number}\n"),
        (number % 2 == 0, number % 2 == 0),
        (np.bool_(number % 2 == 0), number % 2 == 0),
        (None, None),
        (Path(f"/tmp/{number}"), f"/tmp/{number}"),
    ]
    if not depth or random.random() < 0.4:
        return random.choice(plain)
    parts = [anything(random, depth - 1) for _ in range(random.randrange(4))]
    kind = random.randrange(5)
    if kind == 0:
        return [a for a, _ in parts], [b for _, b in parts]
    if kind == 1:
        return tuple(a for a, _ in parts), [b for _, b in parts]
    if kind == 2:
        return Row("r", math.inf), {"name": "r", "rate": None}
    if kind == 3:
        return (Pair(number, "x"), Cell(Path("a"), number)), [[number, "x"], {"where": "a", "count": number}]
    return {f"k{n}": a for n, (a, _) in enumerate(parts)}, {f"k{n}": b for n, (_, b) in enumerate(parts)}


def test_a_report_says_what_it_was_given_and_json_takes_it(tmp_path: Path) -> None:
    random = Random(5)

    def forbidden(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    for _ in range(10_000):
        given, wanted = anything(random)
        assert json.loads(report.as_json(given), parse_constant=forbidden) == wanted
    report.write(tmp_path / "r.json", {"rows": [1, 2]})
    assert (tmp_path / "r.json").read_text() == '{\n  "rows": [\n    1,\n    2\n  ]\n}\n'


def test_folders_are_made_and_markdown_stands_beside(tmp_path: Path) -> None:
    where = tmp_path / "a" / "b"
    report.write(where / "r.json", {"rows": 3}, markdown=(where / "c" / "r.md", "# 3\n"))
    assert json.loads((where / "r.json").read_text()) == {"rows": 3}
    assert (where / "c" / "r.md").read_text() == "# 3\n"
    report.write(None, {"rows": 4}, markdown=(None, "# 4\n"))
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["r.json", "r.md"]


def test_a_reader_sees_the_old_report_or_the_new_one(tmp_path: Path) -> None:
    path, ends = tmp_path / "r.json", threading.Event()
    report.write(path, {"n": 0, "fill": [0] * 20_000})
    torn: list[str] = []

    def look() -> None:
        while not ends.is_set():
            text = path.read_text()
            try:
                found = json.loads(text)
                if set(found["fill"]) != {found["n"]}:
                    torn.append("mixed")
            except (ValueError, KeyError) as error:
                torn.append(str(error))

    reader = threading.Thread(target=look)
    reader.start()
    for n in range(1, 60):
        report.write(path, {"n": n, "fill": [n] * 20_000})
    ends.set()
    reader.join()
    assert torn == []
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_what_fails_leaves_the_report_before_it_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    report.write(path, {"n": 1})

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match=r"r\.json cannot be written: No space left on device"):
        report.write(path, {"n": 2})
    assert json.loads(path.read_text()) == {"n": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_a_report_keeps_the_mode_of_the_one_before_and_goes_where_a_link_leads(tmp_path: Path) -> None:
    path, link = tmp_path / "r.json", tmp_path / "link.json"
    report.write(path, {"n": 1})
    path.chmod(0o640)
    link.symlink_to(path)
    report.write(link, {"n": 2})
    assert link.is_symlink()
    assert (json.loads(path.read_text()), path.stat().st_mode & 0o777) == ({"n": 2}, 0o640)


def test_what_is_no_plain_file_is_written_to(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    report.write(pipe, {"n": 1})
    reader.join(10)
    assert found == ['{\n  "n": 1\n}\n']
    report.write(Path(os.devnull), {"n": 1})
    assert not Path(os.devnull).is_file()


def test_a_place_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"file/r\.json cannot be written: File exists"):
        report.write(tmp_path / "file" / "r.json", {})
    with pytest.raises(UserError, match="cannot be written: Is a directory"):
        report.write(tmp_path, {})


def test_examples_run_as_they_stand() -> None:
    for module in (app_rules, control_topic, report, sending, moments):
        found = doctest.testmod(module)
        assert (found.failed, found.attempted > 0) == (0, True), module
