"""The folder of exports: one rename, and a reader never sees half of anything."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from millrace.models import exports as module
from millrace.models.exports import KEPT_S, Exports, NoExports
from millrace.models.files import check_bytes
from millrace.models.manifest import BrokenModel, Manifest, decoded, encoded
from millrace.models.serving import ExportedModels
from tests.cases import case_count
from tests.unit.millrace.models.cases import INPUTS, data, forest, made, manifest

#: Operations on files between which anything else may happen.
OPERATIONS = {"open", "read", "write", "replace", "unlink", "utime", "stat"}
READS = case_count(10_000, share=10)
#: Versions after which no reader is about to read a file.
OLD = 40


class Steps:
    """Stands for the module ``os``: before each operation somebody else may have a turn."""

    def __init__(self, turn: Callable[[str], None]) -> None:
        self._turn = turn

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name == "fsync":
            return lambda _: None
        if name not in OPERATIONS:
            return found

        def step(*arguments: Any, **more: Any) -> Any:
            self._turn(name)
            return found(*arguments, **more)

        return step


class Turns:
    """Lets one thread of two go on at a time, for as many steps as are drawn: one, or some, or hundreds."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._may = {name: threading.Lock() for name in ("reader", "writer")}
        for lock in self._may.values():
            lock.acquire()
        self._names: dict[int, str] = {}
        self._left = set(self._may)
        self._more = 0
        self.steps = {"reader": 0, "writer": 0}

    def run(self, **tasks: Callable[[], None]) -> None:
        failed: list[BaseException] = []

        def task(name: str) -> None:
            self._names[threading.get_ident()] = name
            self._may[name].acquire()
            try:
                tasks[name]()
            except BaseException as error:
                failed.append(error)
            finally:
                self._left.discard(name)
                for other in self._left:
                    self._may[other].release()

        threads = [threading.Thread(target=task, args=(name,)) for name in tasks]
        for thread in threads:
            thread.start()
        self._may["reader"].release()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def turn(self, _: str) -> None:
        mine = self._names.get(threading.get_ident())
        if mine is None:  # a thread of another test, which looks into a folder of its own
            return
        self.steps[mine] += 1
        self._more -= 1
        if self._more >= 0 or len(self._left) < 2:
            return
        self._more = round(10 ** self._random.uniform(0, 2))
        other = "writer" if mine == "reader" else "reader"
        self._may[other].release()
        self._may[mine].acquire()


def content_of(version: int) -> bytes:
    """A file that says of which version it is, all over."""
    return f"<{version}>".encode() * (1 + version % 5)


def test_a_reader_never_sees_a_mixture_of_manifest_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest is renamed while it is read, 10,000 times: any step of one between any two of the other."""
    turns, exports = Turns(7), Exports(str(tmp_path), "wear")
    content = content_of(0)
    exports.publish("champion", manifest(0, content), content)
    monkeypatch.setattr(module, "os", Steps(turns.turn))
    monkeypatch.setattr(module, "_CHUNK", 60)
    done, seen, interleaved = [False], [0], [0]

    def write() -> None:
        version = 0
        while not done[0]:
            version += 1
            new = content_of(version)
            exports.publish("champion", manifest(version, new), new)
            if version > OLD:  # an hour later
                (exports.path / manifest(0, content_of(version - OLD)).file).unlink()

    def read() -> None:
        try:
            while interleaved[0] < READS:
                before = turns.steps["writer"]
                found = exports.find("champion")
                assert found is not None
                data = exports.data(found.manifest)
                check_bytes(found.manifest, data)
                version = int(found.manifest.version)
                assert data == content_of(version)
                assert version >= seen[-1], "it went back"
                if version != seen[-1]:
                    seen.append(version)
                interleaved[0] += turns.steps["writer"] > before
        finally:
            done[0] = True

    turns.run(reader=read, writer=write)
    assert interleaved[0] == READS
    assert len(seen) > READS // 20


class Killed(BaseException):
    """The process is gone: nothing that comes after it is done."""


def test_a_writer_that_is_killed_anywhere_leaves_the_old_version_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", 40)
    writer = threading.get_ident()
    found: list[str] = []
    for left in range(1_000):
        exports = Exports(str(tmp_path / str(left)), "wear")
        for version in (1, 2):
            exports.publish("champion", manifest(version, content_of(version)), content_of(version))
        steps = iter(range(left))

        def turn(name: str, steps: Any = steps) -> None:
            if threading.get_ident() == writer and next(steps, None) is None:
                raise Killed

        monkeypatch.setattr(module, "os", Steps(turn))
        try:
            exports.publish("champion", manifest(3, content_of(3)), content_of(3))
            whole = True
        except Killed:
            whole = False
        monkeypatch.setattr(module, "os", os)
        under = exports.find("champion")
        assert under is not None
        check_bytes(under.manifest, exports.data(under.manifest))
        found.append(under.manifest.version)
        # Who comes after is not disturbed by what was left.
        exports.publish("champion", manifest(4, content_of(4)), content_of(4))
        if whole:
            break
    assert found == sorted(found)
    assert (found[0], found[-1]) == ("2", "3")
    assert found.count("2") > 10


def test_a_version_that_is_named_no_more_stays_for_those_who_are_about_to_read_it(tmp_path: Path) -> None:
    exports = Exports(str(tmp_path), "wear")
    for version in (1, 2, 3):
        exports.publish("champion", manifest(version, content_of(version)), content_of(version))
    assert len(list(exports.path.glob("*.skops"))) == 3
    for file in exports.path.glob("*.skops"):  # an hour later
        status = file.stat()
        os.utime(file, (status.st_atime - KEPT_S - 1, status.st_mtime - KEPT_S - 1))
    exports.publish("champion", manifest(4, content_of(4)), content_of(4))
    kept = {file.name for file in exports.path.glob("*.skops")}
    assert kept == {manifest(n, content_of(n)).file for n in (3, 4)}, "3 was named until now"


def test_an_alias_that_is_withdrawn_is_nobodys_and_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    exports = Exports(str(tmp_path), "wear")
    with pytest.raises(NoExports, match="no model has been exported"):
        exports.find("champion")
    exports.withdraw("champion")
    exports.publish("champion", *made(1))
    assert exports.find("challenger") is None
    exports.withdraw("champion")
    assert exports.find("champion") is None


def test_files_that_are_written_anew_change_the_stamp(tmp_path: Path) -> None:
    exports = Exports(str(tmp_path), "wear")
    version, content = made(1)
    exports.publish("champion", version, content)
    first = exports.find("champion")
    assert first == exports.find("champion")
    (exports.path / version.file).write_bytes(content[:100])
    cut = exports.find("champion")
    assert not exports.holds(version)
    exports.publish("champion", version, content)
    assert exports.holds(version)
    assert len({found.stamp for found in (first, cut, exports.find("champion")) if found}) == 3


def test_what_does_not_belong_together_is_not_published(tmp_path: Path) -> None:
    exports = Exports(str(tmp_path), "wear")
    with pytest.raises(BrokenModel, match="another one"):
        exports.publish("champion", made(1)[0], b"something else")
    with pytest.raises(BrokenModel, match="changed"):
        exports.publish("champion", manifest(1, b"abc"), b"abd")
    for unreadable in ({"metrics": {"ap": float("nan")}}, {"version": "1 or 2"}):
        with pytest.raises(BrokenModel, match="the manifest is none"):
            exports.publish("champion", manifest(1, b"abc", **unreadable), b"abc")
    assert not exports.path.exists()


@pytest.mark.parametrize("alias", ["../champion", "", "Champion", "a/b", "a" * 60])
def test_an_alias_leads_nowhere_else(tmp_path: Path, alias: str) -> None:
    with pytest.raises(ValueError, match="no alias"):
        Exports(str(tmp_path), "wear").find(alias)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sha256": "../../../etc/passwd"}, "sha256"),
        ({"name": "other"}, "of the model other"),
        ({"format": 2}, "form 2"),
        ({"inputs": []}, "inputs"),
        ({"size": 0}, "size"),
        ({"version": "../1"}, "version"),
        ({"kind": "oracle"}, "kind"),
        ({"calibration": {"slope": "x"}}, "slope"),
    ],
)
def test_a_forged_manifest_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    import msgspec

    exports = Exports(str(tmp_path), "wear")
    version, content = made(1)
    exports.publish("champion", version, content)
    said = msgspec.to_builtins(version) | change
    (exports.path / "champion.json").write_bytes(msgspec.json.encode(said))
    with pytest.raises(BrokenModel, match=told):
        exports.find("champion")


def test_a_manifest_that_is_cut_off_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = Exports(str(tmp_path), "wear")
    exports.publish("champion", *made(1))
    place = exports.path / "champion.json"
    whole = place.read_bytes()
    for size in range(len(whole.rstrip()) - 1):
        place.write_bytes(whole[:size])
        with pytest.raises(BrokenModel, match="the manifest is none"):
            exports.find("champion")
    place.write_bytes(whole)
    monkeypatch.setattr(module, "MANIFEST_LIMIT", len(whole) - 1)
    with pytest.raises(BrokenModel, match="it is no manifest"):
        exports.find("champion")


def test_a_manifest_says_the_same_when_it_has_been_written_and_read() -> None:
    version = Manifest(
        name="wear", version="7", size=9, sha256="a" * 64, inputs=INPUTS, kind="regressor", threshold=2.5,
        tables={"readings": 12}, metrics={"mae": 1.5}, requirements={"numpy": "2"},
        about={"x": [1, {"y": None}]},
    )  # fmt: skip
    assert decoded(encoded(version)) == version
    assert decoded(encoded(made(3)[0])) == made(3)[0]


def test_a_file_that_is_larger_than_its_bound_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = Exports(str(tmp_path), "wear")
    version, content = made(1)
    exports.publish("champion", version, content)
    monkeypatch.setattr(module, "FILE_LIMIT", len(content) - 1)
    with pytest.raises(BrokenModel, match="are not read"):
        exports.data(version)


def test_an_estimator_is_published_as_the_bytes_of_its_file_are(tmp_path: Path) -> None:
    one, other = Exports(str(tmp_path / "one"), "wear"), Exports(str(tmp_path / "other"), "wear")
    one.publish("champion", *made(3))
    curve = made(3)[0].calibration
    about = {"inputs": INPUTS, "calibration": curve, "trained_until_ms": 3}
    told = other.publish_estimator("champion", forest(3), version="3", **about)
    first, second = one.find("champion"), other.find("champion")
    assert first is not None
    assert second is not None
    # A file has the time of its making in it.
    assert second.manifest == told == msgspec.structs.replace(first.manifest, sha256=told.sha256)
    x, _ = data(20)
    scores = [ExportedModels(where).load(found.manifest).score_many(x)
              for where, found in ((one, first), (other, second))]  # fmt: skip
    assert scores[0].tolist() == scores[1].tolist()
