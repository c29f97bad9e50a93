"""Files that are this user's alone: the umask of commands, what stays shared, what others could change."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.errors import UserError
from millrace.local import private
from millrace.local.private import is_ours, keep_private, make_shared, open_private, share

NOBODY = 65_534


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The usual umask, and an environment that no command has touched."""
    monkeypatch.delenv("MILLRACE_GIVEN_UMASK", raising=False)
    before = os.umask(0o022)
    yield
    os.umask(before)
    os.environ.pop("MILLRACE_GIVEN_UMASK", None)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(
    ("told", "shell", "expected"),
    [(None, 0o022, 0o077), ("027", 0o022, 0o027), ("0", 0o022, 0o022), ("027", 0o077, 0o077),
     ("077", 0o000, 0o077), ("", 0o002, 0o077)],
)  # fmt: skip
def test_a_command_takes_all_rights_from_others_or_what_it_is_told(
    told: str | None, shell: int, expected: int, tmp_path: Path
) -> None:
    os.umask(shell)
    assert keep_private({} if told is None else {"MILLRACE_UMASK": told}) == expected
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert (mode(tmp_path / "file"), mode(tmp_path / "folder")) == (0o666 & ~expected, 0o777 & ~expected)


@pytest.mark.parametrize("told", ["x", "0778", "-1", "0177", "777", "8", "0x1f"])
def test_what_is_no_umask_or_shuts_out_the_owner_is_refused(told: str) -> None:
    with pytest.raises(UserError, match="MILLRACE_UMASK"):
        keep_private({"MILLRACE_UMASK": told})
    assert os.umask(0o022) == 0o022


def test_every_command_begins_with_it_and_hands_it_on(tmp_path: Path) -> None:
    """By the real command line; its first child process, as a broker or a JVM, inherits it."""
    code = (
        "import os, subprocess, sys, millrace.cli as cli\n"
        "os.umask(0o022)\n"
        "cli.build = lambda: lambda **_: subprocess.run(['sh', '-c', 'mkdir folder; echo x > folder/file'])\n"
        "cli.main()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert (mode(tmp_path / "folder"), mode(tmp_path / "folder" / "file")) == (0o700, 0o600)


def test_what_is_nobodys_data_keeps_the_rights_of_the_users_shell(tmp_path: Path) -> None:
    keep_private({})
    make_shared(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "jar").touch()
    share(tmp_path / "a" / "b" / "jar")
    modes = [mode(tmp_path / "a" / rest) for rest in (".", "b", "b/jar")]
    assert modes == [0o755, 0o755, 0o644]


def test_without_a_command_share_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o640)
    share(tmp_path / "file")
    assert mode(tmp_path / "file") == 0o640


def test_a_private_file_is_one_whatever_the_umask_and_follows_no_link(tmp_path: Path) -> None:
    os.umask(0)
    with open_private(tmp_path / "file") as file:
        file.write("x")
    assert mode(tmp_path / "file") == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for taken in ("file", "link"):
        with pytest.raises(FileExistsError):
            open_private(tmp_path / taken)
    assert not (tmp_path / "target").exists()


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / "org"
    folder.mkdir(parents=True)
    (folder / "jar").write_text("x")
    return folder / "jar"


def test_a_file_of_ours_is_ours(inside: Path) -> None:
    assert is_ours(inside)
    assert not is_ours(inside.with_name("none"))


@pytest.mark.parametrize(("which", "rights"), [(0, 0o666), (1, 0o777), (2, 0o757), (0, 0o602)])
def test_what_others_can_write_or_replace_is_not(inside: Path, which: int, rights: int) -> None:
    [inside, *inside.parents][which].chmod(rights)
    assert not is_ours(inside)


def test_a_folder_in_which_only_owners_rename_is_no_danger_to_what_is_in_it(inside: Path) -> None:
    inside.parent.chmod(0o1777)
    assert is_ours(inside)


def test_a_group_counts_as_others_unless_it_is_the_users_own(
    inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.chmod(0o664)
    monkeypatch.setattr(private, "_is_own_group", lambda gid: True)
    assert is_ours(inside)
    monkeypatch.setattr(private, "_is_own_group", lambda gid: False)
    assert not is_ours(inside)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("which", ["file", "folder", "link", "target"])
def test_what_belongs_to_somebody_else_is_not_ours(inside: Path, which: str, tmp_path: Path) -> None:
    named = inside
    if which in ("link", "target"):
        named = tmp_path / "named"
        named.symlink_to(inside)
        assert is_ours(named)
    changed = {"file": inside, "folder": inside.parent, "link": named, "target": inside}[which]
    os.chown(changed, NOBODY, NOBODY, follow_symlinks=False)
    assert not is_ours(named)
