"""Files of YAML that people write: what they hold, and what is wrong with one in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import UserError
from millrace.local.documents import MAX_FILE, read_yaml


class Refused(UserError):
    """What a caller asks to be raised."""


def test_a_file_is_read_as_plain_values(tmp_path: Path) -> None:
    (file := tmp_path / "a.yaml").write_text("rules:\n  - {id: r1, at: 3}\n", "utf-8")
    assert read_yaml(file) == {"rules": [{"id": "r1", "at": 3}]}
    (tmp_path / "b.json").write_text('[{"a": 1.5}]')
    assert read_yaml(tmp_path / "b.json") == [{"a": 1.5}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 3_000, "nested too deeply"),
        (b"\xff\xfe", "is no text"),
        (b"a: [1", ":1: "),
        (b"a: 1\n\tb: 2", ":2: "),
        (b"a\x00b", "is no YAML"),
        (b"a: 2026-13-45", "month"),
        (b" " * (MAX_FILE + 1), "larger than"),
    ],
    ids=["deep", "bytes", "open", "tab", "nul", "date", "large"],
)
def test_what_is_wrong_with_a_file_is_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    (file := tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(Refused) as refused:
        read_yaml(file, Refused)
    assert said in str(refused.value)
    assert str(refused.value).startswith(str(file))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_or_is_a_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_yaml(tmp_path / "none")
    with pytest.raises(UserError, match="Is a directory"):
        read_yaml(tmp_path)
