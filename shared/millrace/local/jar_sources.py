"""Sources of jars: a local Maven repository, a mirror, Maven Central."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from millrace.errors import MillraceError, UserError
from millrace.local.jar_cache import Cancelled
from millrace.local.jar_lock import Artifact

if TYPE_CHECKING:
    import httpx

#: The public repository, asked last.
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
#: Environment variables that name a mirror, the first that is set counts.
MIRROR_VARIABLES = ("MILLRACE_MAVEN_MIRROR", "DEFAULT_ARTIFACT_REPOSITORY")

#: Tries in a row that bring nothing new before a source is given up.
ATTEMPTS = 4
BACKOFF_S = 0.5
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})

#: Told the change in bytes held; negative when a download starts over.
Advance = Callable[[int], None]


class Unavailable(MillraceError):
    """A source does not have an artifact, or does not answer; the message says why, in a few words."""


class _TryAgain(Exception):
    """The server answered that it cannot serve now, or sent less than the whole file."""


class Source(Protocol):
    """A place that may have a jar."""

    @property
    def name(self) -> str:
        """What to call the place in a message, without credentials."""

    def fetch(self, artifact: Artifact, part: Path, advance: Advance, cancelled: threading.Event) -> None:
        """Complete the file ``part`` with the artifact's bytes, unchecked, or raise :class:`Unavailable`."""


@dataclass(frozen=True)
class LocalRepository:
    """A Maven repository on this machine's file system.

    Args:
        root: Its folder; need not exist.
    """

    root: Path

    @property
    def name(self) -> str:
        """What to call the place in a message."""
        return f"local Maven repository {self.root}"

    def fetch(self, artifact: Artifact, part: Path, advance: Advance, cancelled: threading.Event) -> None:
        """Copy the jar to ``part``."""
        del cancelled  # a copy on one machine is over before anyone could give it up
        before = part.stat().st_size if part.exists() else 0
        try:
            shutil.copyfile(self.root / artifact.repository_path, part)
        except FileNotFoundError as error:
            raise Unavailable("not there") from error
        except OSError as error:
            raise Unavailable(f"cannot be read ({error.strerror})") from error
        advance(part.stat().st_size - before)


@dataclass
class RemoteRepository:
    """A Maven repository over HTTP.

    Args:
        label: What to call it, for example ``"Maven Central"``.
        url: Its root; may hold a user name and password.
        backoff_s: Seconds to wait before the second try; doubled for each further one.
    """

    label: str
    url: str = field(repr=False)
    backoff_s: float = BACKOFF_S
    _client: httpx.Client | None = field(default=None, init=False, repr=False)
    _unreachable: str | None = field(default=None, init=False, repr=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def name(self) -> str:
        """What to call the place in a message, without credentials."""
        return self.label

    def close(self) -> None:
        """Close the connections; the object can be used again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def fetch(self, artifact: Artifact, part: Path, advance: Advance, cancelled: threading.Event) -> None:
        """Download the jar to ``part``, continuing what is there, with retries."""
        import httpx

        if self._unreachable:  # found out by another jar of this run: do not wait for it 51 times more
            raise Unavailable(self._unreachable)
        failures, farthest = 0, _size(part)
        while True:
            try:
                return self._stream(artifact, part, advance, cancelled)
            except (httpx.TransportError, _TryAgain) as error:
                failures = 0 if _size(part) > farthest else failures + 1
                farthest = max(farthest, _size(part))
                if failures == ATTEMPTS:
                    reason = _in_words(error)
                    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                        self._unreachable = reason
                    raise Unavailable(reason) from error
            except httpx.HTTPError as error:  # too many redirects, undecodable answer: no try will mend it
                raise Unavailable(_in_words(error)) from error
            if cancelled.wait(self.backoff_s * 2 ** max(failures - 1, 0)):
                raise Cancelled("the download was given up")

    def _stream(self, artifact: Artifact, part: Path, advance: Advance, cancelled: threading.Event) -> None:
        held = _size(part)
        if artifact.size and held >= artifact.size:
            return  # a process was stopped between the last byte and the check
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={held}-"} if held else {})
        root = urlsplit(self.url)
        url = root._replace(path=f"{root.path.rstrip('/')}/{artifact.repository_path}").geturl()
        with self._connected().stream("GET", url, headers=headers) as response:
            status = response.status_code
            if status in _TRY_AGAIN:
                raise _TryAgain(f"it answers {status} {response.reason_phrase}".rstrip())
            if status == 416:  # what we hold is not the beginning of what it has
                advance(-held)
                part.unlink(missing_ok=True)
                raise _TryAgain("it cannot continue the download (416)")
            if status not in (200, 206):
                raise Unavailable("not there (404)" if status == 404 else f"it answers {status}")
            resumed = status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {held}-")
            if held and not resumed:
                advance(-held)
                held = 0
            with part.open("ab" if resumed else "wb") as file:
                for chunk in response.iter_raw():  # as it comes, so that a cut loses nothing
                    file.write(chunk)
                    advance(len(chunk))
                    held += len(chunk)
                    if artifact.size and held > artifact.size:
                        return  # longer than the lock says: the hash will refuse it
                    if cancelled.is_set():
                        raise Cancelled("the download was given up")
        if artifact.size and held < artifact.size:
            raise _TryAgain(f"it sent {held} of {artifact.size} bytes")

    def _connected(self) -> httpx.Client:
        import httpx

        with self._guard:
            if self._client is None:
                timeout = httpx.Timeout(30.0, connect=10.0)
                self._client = httpx.Client(timeout=timeout, follow_redirects=True)
            return self._client


def sources_from(environ: Mapping[str, str] = os.environ) -> list[LocalRepository | RemoteRepository]:
    """Return the places to ask, in order.

    Args:
        environ: Environment; ``MAVEN_REPO_LOCAL`` moves the local Maven repository, and
            ``MILLRACE_MAVEN_MIRROR`` or ``DEFAULT_ARTIFACT_REPOSITORY`` names a mirror.

    Raises:
        UserError: The mirror is not an ``http``, ``https`` or ``file`` address.

    Example:
        >>> [source.name for source in sources_from({"MAVEN_REPO_LOCAL": "/opt/m2"})]
        ['local Maven repository /opt/m2', 'Maven Central']
    """
    own = environ.get("MAVEN_REPO_LOCAL")
    local = Path(own).expanduser() if own else Path.home() / ".m2" / "repository"
    sources: list[LocalRepository | RemoteRepository] = [LocalRepository(local)]
    for variable in MIRROR_VARIABLES:
        if address := environ.get(variable):
            sources.append(_mirror(variable, address))
            break
    return [*sources, RemoteRepository("Maven Central", MAVEN_CENTRAL)]


def _mirror(variable: str, address: str) -> LocalRepository | RemoteRepository:
    parts = urlsplit(address)
    if parts.scheme == "file":
        return LocalRepository(Path(unquote(parts.path)))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{variable} is not the address of a Maven repository (https://… or file://…)")
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
    return RemoteRepository(f"mirror {shown}", address)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _in_words(error: Exception) -> str:
    said = str(error) or type(error).__name__
    return " ".join(said.split())
