"""Fetching jars: order of the places, resuming, hashes, alternates, several processes, no network."""

from __future__ import annotations

import base64
import hashlib
import multiprocessing
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli.jars import app as jars_command
from millrace.errors import UserError
from millrace.local.jar_cache import JarCache, cache_root
from millrace.local.jar_lock import Artifact, Jar, JarLock, load_lock
from millrace.local.jar_sources import LocalRepository, RemoteRepository, sources_from
from millrace.local.jars import ensure_jars, jar_paths, report_jars

Place = LocalRepository | RemoteRepository
NOBODY_LISTENS = "http://127.0.0.1:9"  # the discard port, which nothing serves


@dataclass
class Mirror:
    """A Maven repository on loopback, and what was asked of it."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    statuses: dict[str, list[int]] = field(default_factory=dict)  # answered first, before the file
    cuts: dict[str, list[int]] = field(default_factory=dict)  # bytes sent before the connection is cut
    ranges: bool = True

    def serve(self, artifact: Artifact, content: bytes) -> None:
        self.files["/" + artifact.repository_path] = content

    def count(self, artifact: Artifact) -> int:
        return sum(path == "/" + artifact.repository_path for path, _ in self.asked)


def handler_of(mirror: Mirror) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            mirror.asked.append((self.path, self.headers.get("Range")))
            if who := self.headers.get("Authorization"):
                mirror.authorizations.append(who)
            if statuses := mirror.statuses.get(self.path):
                return self.answer(statuses.pop(0), b"")
            if self.path not in mirror.files:
                return self.answer(404, b"")
            content = mirror.files[self.path]
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if mirror.ranges else None
            if not wanted:
                return self.answer(200, content)
            begin = int(wanted[1])
            if begin >= len(content):
                return self.answer(416, b"")
            return self.answer(206, content[begin:], f"bytes {begin}-{len(content) - 1}/{len(content)}")

        def answer(self, status: int, body: bytes, content_range: str | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if content_range:
                self.send_header("Content-Range", content_range)
            self.end_headers()
            cuts = mirror.cuts.get(self.path)
            if cuts and body:
                body = body[: cuts.pop(0)]
                self.close_connection = True
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler


@pytest.fixture
def make_mirror() -> Iterator[Callable[[], Mirror]]:
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def make() -> Mirror:
        mirror = Mirror()
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(mirror))
        mirror.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        servers.append((server, thread))
        return mirror

    yield make
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def mirror(make_mirror: Callable[[], Mirror]) -> Mirror:
    return make_mirror()


@pytest.fixture
def cache(tmp_path: Path) -> JarCache:
    return JarCache(tmp_path / "cache")


def content_of(name: str, size: int = 200_000) -> bytes:
    return (name.encode() * size)[:size]


def jar_of(name: str, alternates: tuple[Artifact, ...] = (), content: bytes | None = None) -> Jar:
    content = content if content is not None else content_of(name)
    return Jar(
        coordinate=f"org.test:{name}:1.0",
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        group="spark",
        alternates=alternates,
    )


def lock_of(*jars: Jar) -> JarLock:
    return JarLock(version=1, jar=jars)


def remote(mirror: Mirror, label: str = "mirror") -> RemoteRepository:
    return RemoteRepository(label, mirror.url, backoff_s=0.0)


class Recorder:
    """A progress that adds up what it is told."""

    def __init__(self) -> None:
        self.announced: list[tuple[int, int]] = []
        self.held = 0
        self.jars: list[str] = []
        self._guard = threading.Lock()

    def start(self, jars: int, size: int) -> None:
        self.announced.append((jars, size))

    def advance(self, size: int) -> None:
        with self._guard:
            self.held += size

    def done(self, artifact: Artifact) -> None:
        self.jars.append(artifact.file_name)


def test_missing_jars_are_announced_fetched_and_given_in_the_order_of_the_lock(
    mirror: Mirror, cache: JarCache
) -> None:
    jars = [jar_of(name) for name in ("c", "a", "b")]
    for jar in jars:
        mirror.serve(jar, content_of(jar.coordinate.split(":")[1]))
    progress = Recorder()
    paths = ensure_jars(["spark"], progress, lock=lock_of(*jars), cache=cache, sources=[remote(mirror)])
    assert [path.name for path in paths["spark"]] == ["c-1.0.jar", "a-1.0.jar", "b-1.0.jar"]
    assert [path.read_bytes()[:1] for path in paths["spark"]] == [b"c", b"a", b"b"]
    assert progress.announced == [(3, 600_000)]
    assert progress.held == 600_000
    assert sorted(progress.jars) == ["a-1.0.jar", "b-1.0.jar", "c-1.0.jar"]


def test_all_cached_asks_no_source_and_announces_nothing(mirror: Mirror, cache: JarCache) -> None:
    lock = lock_of(jar_of("a"))
    mirror.serve(lock.jar[0], content_of("a"))
    ensure_jars(["spark"], lock=lock, cache=cache, sources=[remote(mirror)])
    asked, progress = len(mirror.asked), Recorder()
    unreachable = RemoteRepository("nowhere", NOBODY_LISTENS, backoff_s=0.0)
    paths = ensure_jars(["spark"], progress, lock=lock, cache=cache, sources=[unreachable])
    assert paths == {"spark": jar_paths("spark", lock=lock, cache=cache)}
    assert (len(mirror.asked), progress.announced) == (asked, [])


def test_cut_connection_is_resumed_where_it_broke(mirror: Mirror, cache: JarCache) -> None:
    jar = jar_of("a")
    mirror.serve(jar, content_of("a"))
    mirror.cuts["/" + jar.repository_path] = [50_000, 70_000]
    progress = Recorder()
    (path,) = ensure_jars(["spark"], progress, lock=lock_of(jar), cache=cache, sources=[remote(mirror)])[
        "spark"
    ]
    assert path.read_bytes() == content_of("a")
    begins = [int(asked.partition("=")[2].rstrip("-")) for _, asked in mirror.asked if asked]
    assert len(mirror.asked) == 3
    assert begins == sorted(begins)
    assert 0 < begins[0] <= 50_000
    assert progress.held == 200_000


def test_part_left_by_a_stopped_process_is_continued(mirror: Mirror, cache: JarCache) -> None:
    jar = jar_of("a")
    mirror.serve(jar, content_of("a"))
    part = cache.part(jar)
    part.parent.mkdir(parents=True)
    part.write_bytes(content_of("a")[:150_000])
    ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=[remote(mirror)])
    assert mirror.asked == [("/" + jar.repository_path, "bytes=150000-")]


def test_part_with_foreign_content_is_dropped_and_fetched_from_the_start(
    mirror: Mirror, cache: JarCache
) -> None:
    jar = jar_of("a")
    mirror.serve(jar, content_of("a"))
    part = cache.part(jar)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 150_000)
    (path,) = ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=[remote(mirror)])["spark"]
    assert path.read_bytes() == content_of("a")


def test_server_without_ranges_sends_the_whole_file_again(mirror: Mirror, cache: JarCache) -> None:
    jar = jar_of("a")
    mirror.serve(jar, content_of("a"))
    mirror.ranges = False
    mirror.cuts["/" + jar.repository_path] = [50_000]
    progress = Recorder()
    (path,) = ensure_jars(["spark"], progress, lock=lock_of(jar), cache=cache, sources=[remote(mirror)])[
        "spark"
    ]
    assert path.read_bytes() == content_of("a")
    assert progress.held == 200_000


def test_server_that_never_gets_further_is_given_up(mirror: Mirror, cache: JarCache) -> None:
    jar = jar_of("a")
    mirror.serve(jar, content_of("a"))
    mirror.ranges = False
    mirror.cuts["/" + jar.repository_path] = [50_000] * 100
    with pytest.raises(UserError, match=r"cannot get the jar org\.test:a:1\.0: mirror: "):
        ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=[remote(mirror)])
    assert mirror.count(jar) < 10


def test_server_in_trouble_is_tried_again(mirror: Mirror, cache: JarCache) -> None:
    jar = jar_of("a")
    mirror.serve(jar, content_of("a"))
    mirror.statuses["/" + jar.repository_path] = [503, 429]
    ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=[remote(mirror)])
    assert mirror.count(jar) == 3


@pytest.mark.parametrize("wrong", [b"evil", content_of("b"), content_of("a") + b"more"])
def test_wrong_content_is_refused_and_never_visible(mirror: Mirror, cache: JarCache, wrong: bytes) -> None:
    jar = jar_of("a")
    mirror.serve(jar, wrong)
    with pytest.raises(
        UserError, match=r"mirror: (its file has another hash than jars\.lock|it sent 4 of 200000)"
    ):
        ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=[remote(mirror)])
    assert not cache.path(jar).exists()
    with pytest.raises(UserError, match="run: millrace jars fetch"):
        jar_paths("spark", lock=lock_of(jar), cache=cache)


@pytest.mark.parametrize("status", [404, 403, 500])
def test_mirror_that_lacks_a_jar_is_followed_by_the_next_source(
    make_mirror: Callable[[], Mirror], cache: JarCache, status: int
) -> None:
    first, second = make_mirror(), make_mirror()
    jar = jar_of("a")
    first.statuses["/" + jar.repository_path] = [status] * 10
    second.serve(jar, content_of("a"))
    sources = [remote(first), remote(second, "Maven Central")]
    ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=sources)
    assert (first.count(jar) > 0, second.count(jar)) == (True, 1)


def test_wrong_hash_at_the_mirror_is_followed_by_the_next_source(
    make_mirror: Callable[[], Mirror], cache: JarCache
) -> None:
    first, second = make_mirror(), make_mirror()
    jar = jar_of("a")
    first.serve(jar, content_of("b"))
    second.serve(jar, content_of("a"))
    sources = [remote(first), remote(second, "Maven Central")]
    (path,) = ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=sources)["spark"]
    assert path.read_bytes() == content_of("a")


def test_alternate_is_used_when_no_source_has_the_first_choice(mirror: Mirror, cache: JarCache) -> None:
    stand_in = jar_of("preview")
    jar = jar_of("release", alternates=(Artifact(coordinate=stand_in.coordinate, sha256=stand_in.sha256),))
    mirror.serve(stand_in, content_of("preview"))
    lock = lock_of(jar)
    (path,) = ensure_jars(["spark"], lock=lock, cache=cache, sources=[remote(mirror)])["spark"]
    assert path.name == "preview-1.0.jar"
    (report,) = report_jars(["spark"], lock=lock, cache=cache)
    assert report.used == jar.alternates[0]
    ensure_jars(["spark"], lock=lock, cache=cache, sources=[remote(mirror)])
    assert mirror.count(jar) == 1


def test_first_choice_is_preferred_to_its_alternate(mirror: Mirror, cache: JarCache) -> None:
    stand_in = jar_of("preview")
    jar = jar_of("release", alternates=(Artifact(coordinate=stand_in.coordinate, sha256=stand_in.sha256),))
    mirror.serve(stand_in, content_of("preview"))
    mirror.serve(jar, content_of("release"))
    (path,) = ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=[remote(mirror)])["spark"]
    assert path.name == "release-1.0.jar"


def test_local_repository_serves_before_the_network(mirror: Mirror, cache: JarCache, tmp_path: Path) -> None:
    jar = jar_of("a")
    own = tmp_path / "m2" / jar.repository_path
    own.parent.mkdir(parents=True)
    own.write_bytes(content_of("a"))
    progress = Recorder()
    sources: list[Place] = [LocalRepository(tmp_path / "m2"), remote(mirror)]
    ensure_jars(["spark"], progress, lock=lock_of(jar), cache=cache, sources=sources)
    assert (mirror.asked, progress.announced) == ([], [])


def test_damaged_file_in_the_local_repository_is_passed_over(
    mirror: Mirror, cache: JarCache, tmp_path: Path
) -> None:
    jar = jar_of("a")
    own = tmp_path / "m2" / jar.repository_path
    own.parent.mkdir(parents=True)
    own.write_bytes(content_of("b"))
    mirror.serve(jar, content_of("a"))
    sources: list[Place] = [LocalRepository(tmp_path / "m2"), remote(mirror)]
    (path,) = ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=sources)["spark"]
    assert path.read_bytes() == content_of("a")


def test_damaged_jar_in_the_cache_is_noticed_and_fetched_again(mirror: Mirror, cache: JarCache) -> None:
    jar = jar_of("a")
    mirror.serve(jar, content_of("a"))
    lock = lock_of(jar)
    ensure_jars(["spark"], lock=lock, cache=cache, sources=[remote(mirror)])
    cache.path(jar).write_bytes(content_of("b"))
    with pytest.raises(UserError, match="or damaged there; run: millrace jars fetch"):
        jar_paths("spark", lock=lock, cache=cache)
    (path,) = ensure_jars(["spark"], lock=lock, cache=cache, sources=[remote(mirror)])["spark"]
    assert path.read_bytes() == content_of("a")


def test_verifying_reads_the_files_and_does_not_trust_size_and_time(mirror: Mirror, cache: JarCache) -> None:
    jar = jar_of("a")
    mirror.serve(jar, content_of("a"))
    lock = lock_of(jar)
    ensure_jars(["spark"], lock=lock, cache=cache, sources=[remote(mirror)])
    path = cache.path(jar)
    before = path.stat()
    path.write_bytes(content_of("b"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (report,) = report_jars(["spark"], rehash=True, lock=lock, cache=cache)
    assert report.state.value == "corrupt"


def test_unreachable_places_end_in_one_line_that_says_what_to_do(cache: JarCache, tmp_path: Path) -> None:
    jars = [jar_of(name) for name in "abcdefgh"]
    sources: list[Place] = [
        LocalRepository(tmp_path / "m2"),
        RemoteRepository("mirror https://repo.example", NOBODY_LISTENS, backoff_s=0.0),
        RemoteRepository("Maven Central", NOBODY_LISTENS, backoff_s=0.0),
    ]
    with pytest.raises(UserError) as caught:
        ensure_jars(["spark"], lock=lock_of(*jars), cache=cache, sources=sources)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("cannot get the jar org.test:a:1.0 (nor 7 more jars): ")
    assert f"local Maven repository {tmp_path / 'm2'}: not there; mirror https://repo.example: " in line
    assert line.endswith("set MILLRACE_MAVEN_MIRROR to a Maven repository that this machine reaches")


def test_cache_that_cannot_be_made_says_which_setting_helps(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="set MILLRACE_CACHE"):
        ensure_jars(
            ["spark"], lock=lock_of(jar_of("a")), cache=JarCache(tmp_path / "file"), sources=[remote(mirror)]
        )


def fetch_in_process(root: Path, url: str, names: list[str], begin: threading.Barrier) -> None:
    begin.wait(30)
    source = RemoteRepository("mirror", url, backoff_s=0.0)
    ensure_jars(["spark"], lock=lock_of(*map(jar_of, names)), cache=JarCache(root), sources=[source])


def test_two_processes_at_once_share_the_work(mirror: Mirror, cache: JarCache) -> None:
    names = [f"jar{number}" for number in range(12)]
    for name in names:
        mirror.serve(jar_of(name), content_of(name))
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(2)
    workers = [
        context.Process(target=fetch_in_process, args=(cache.root, mirror.url, names, begin))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert set(Counter(path for path, _ in mirror.asked).values()) == {1}
    assert len(jar_paths("spark", lock=lock_of(*map(jar_of, names)), cache=cache)) == 12
    assert list(cache.part(jar_of("a")).parent.iterdir()) == []


def forged(cache: JarCache, jar: Jar) -> Path:
    """Put a jar with other content into a cache, with a stamp that says that it was checked."""
    path = cache.path(jar)
    path.write_bytes(b"evil" * 50_000)
    status = path.stat()
    stamp = f"{jar.sha256} {status.st_size} {status.st_mtime_ns}"
    path.with_name(path.name + ".checked").write_text(stamp)
    return path


@pytest.mark.parametrize("open_to_others", ["jar", "stamp", "folder", "cache"])
def test_a_forged_jar_with_its_stamp_is_refused_where_others_can_have_put_it(
    mirror: Mirror, cache: JarCache, open_to_others: str
) -> None:
    jar = jar_of("a")
    mirror.serve(jar, content_of("a"))
    ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=[remote(mirror)])
    path = forged(cache, jar)
    # Whoever can write here can write the stamp as well: where nobody else can, it is believed.
    assert jar_paths("spark", lock=lock_of(jar), cache=cache) == [path]
    places = {
        "jar": path, "stamp": path.with_name(path.name + ".checked"), "folder": path.parent,
        "cache": cache.root,
    }  # fmt: skip
    places[open_to_others].chmod(0o777)
    with pytest.raises(UserError, match="damaged"):
        jar_paths("spark", lock=lock_of(jar), cache=cache)
    assert [r.state.value for r in report_jars(["spark"], lock=lock_of(jar), cache=cache)] == ["corrupt"]
    ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=[remote(mirror)])
    assert path.read_bytes() == content_of("a")


def test_a_link_in_place_of_an_unfinished_download_is_not_written_through(
    mirror: Mirror, cache: JarCache, tmp_path: Path
) -> None:
    jar, precious = jar_of("a"), tmp_path / "precious"
    precious.write_text("mine")
    mirror.serve(jar, content_of("a"))
    cache.part(jar).parent.mkdir(parents=True)
    cache.part(jar).symlink_to(precious)
    ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=[remote(mirror)])
    assert precious.read_text() == "mine"
    assert cache.path(jar).read_bytes() == content_of("a")


def test_places_follow_the_environment() -> None:
    def names(**environ: str) -> list[str]:
        return [source.name for source in sources_from({"MAVEN_REPO_LOCAL": "/m2", **environ})]

    local, central = "local Maven repository /m2", "Maven Central"
    assert names() == [local, central]
    assert names(DEFAULT_ARTIFACT_REPOSITORY="https://b.example/x") == [
        local,
        "mirror https://b.example/x",
        central,
    ]
    both = names(MILLRACE_MAVEN_MIRROR="http://a.example", DEFAULT_ARTIFACT_REPOSITORY="https://b.example")
    assert both == [local, "mirror http://a.example", central]
    assert names(MILLRACE_MAVEN_MIRROR="file:///srv/my%20jars") == [
        local,
        "local Maven repository /srv/my jars",
        central,
    ]


def test_mirror_credentials_are_sent_but_never_shown(mirror: Mirror, cache: JarCache) -> None:
    jar = jar_of("a")
    address = mirror.url.replace("://", "://me:secret@") + "/maven/?token=t"
    _, place, _ = sources_from({"MILLRACE_MAVEN_MIRROR": address})
    assert (place.name, "secret" in repr(place)) == (f"mirror {mirror.url}/maven/", False)
    with pytest.raises(UserError) as caught:
        ensure_jars(["spark"], lock=lock_of(jar), cache=cache, sources=[place])
    assert "secret" not in str(caught.value)
    assert mirror.asked == [(f"/maven/{jar.repository_path}?token=t", None)]
    assert mirror.authorizations == ["Basic " + base64.b64encode(b"me:secret").decode()]


def test_mirror_that_is_no_address_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"^DEFAULT_ARTIFACT_REPOSITORY is not the address"):
        sources_from({"DEFAULT_ARTIFACT_REPOSITORY": "repo.example"})


def test_cache_folder_follows_the_environment() -> None:
    assert cache_root({"MILLRACE_CACHE": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c/jars")
    assert cache_root({"XDG_CACHE_HOME": "/x"}) == Path("/x/millrace/jars")
    assert cache_root({}) == Path.home() / ".cache/millrace/jars"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 2", "Invalid enum value 2"),
        ('version = 1\n[[jar]]\ncoordinate = "a:b"', r"at `\$\.jar\[0\]\.coordinate`"),
        ("version = 1\njars = []", "unknown field `jars`"),
        ("version", "is not a jar lock"),
    ],
)
def test_bad_lock_file_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "jars.lock"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        load_lock(path)


def test_verify_command_names_what_is_missing_and_exits_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path))
    answer = CliRunner().invoke(jars_command, ["verify", "--group", "spark"])
    assert answer.exit_code == 1
    assert "absent: io.delta:delta-storage:4.4.0" in answer.output
    assert "7 of 7 jars are missing or damaged; run: millrace jars fetch" in answer.output


def test_list_command_says_that_an_alternate_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path))
    answer = CliRunner().invoke(jars_command, ["list"])
    assert answer.exit_code == 0
    (line,) = [line for line in answer.output.splitlines() if "spark-token-provider" in line]
    assert "absent (not at the central repository: its alternate is normal)" in line
