"""Set the project up in `.venv`: environment, Python packages, Millrace itself, jars.

`make setup` runs this with any Python from 3.11, nothing else installed. A run that finds everything
done does nothing and asks no network; a run after an interrupted one repairs what that left behind.
The syntax stays that of Python 3.8, so that an older Python gets as far as being told so.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Iterator, Mapping, Sequence  # noqa: UP035 - see the module's docstring

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 11)
JAVA_RELEASES = (17, 21)
EXTRAS = ("apps", "dashboard", "dev")
#: What decides whether a finished set-up is still good.
INPUTS = (
    "pyproject.toml",
    "shared/pyproject.toml",
    "uv.lock",
    "requirements.lock",
    "requirements-uv.txt",
    "jars.lock",
    "scripts/setup.py",
)
STEPS = 6
DOWNLOAD_MB = 880  # measured with empty caches: Spark 470, other packages 320, jars 65, uv 25
DISK_MB = 3200  # of which the environment 1700, the rest caches of packages and jars
_SIGN_OF_LIFE_S = 30.0
_JARS_THERE = "from millrace.local.jars import jar_paths; jar_paths('spark'); jar_paths('broker')"


class SetupError(Exception):
    """The set-up cannot go on; the message says what is wrong and what to do."""


def check_python(version: Sequence[int], executable: str) -> str:
    """Return the version as text, or raise for one that is too old."""
    text = ".".join(str(part) for part in version[:3])
    if tuple(version[:2]) < OLDEST_PYTHON:
        wanted = ".".join(str(part) for part in OLDEST_PYTHON)
        raise SetupError(
            f"Python {wanted} or newer is needed, {executable} is {text}: make setup PYTHON=python{wanted}"
        )
    return text


def is_slow(told: Mapping[str, object]) -> bool:
    """Return whether a Python says that it was built without optimisations (millrace.local.python_build)."""
    arguments = str(told.get("CONFIG_ARGS") or "")
    is_told = bool(arguments) and "--enable-optimizations" not in arguments
    return is_told and bool(told.get("PGO_PROF_USE_FLAG"))


#: Run by another Python, says what is asked of it: version, how it was built, that it makes environments.
_ABOUT = """
import ensurepip, json, sys, sysconfig, venv
told = {name: sysconfig.get_config_var(name) for name in ("CONFIG_ARGS", "PGO_PROF_USE_FLAG")}
print(json.dumps({"version": sys.version_info[:3], "told": told}))
"""
#: Where others may stand that the PATH does not name.
_BESIDE = ("/usr/bin", "/usr/local/bin", "/opt/homebrew/bin", "~/.local/bin")
_UV_PYTHONS = "~/.local/share/uv/python"


def quicker_python(path: str) -> str | None:
    """Return a Python of this one's version that was built with its optimisations; ``None``: there is none.

    Args:
        path: Folders to look in first, as in ``PATH``.
    """
    name = "python{}.{}".format(*sys.version_info[:2])
    folders = [*filter(None, path.split(os.pathsep)), *map(os.path.expanduser, _BESIDE)]
    found = [os.path.join(folder, name) for folder in folders]
    found += map(str, sorted(Path(_UV_PYTHONS).expanduser().glob(f"*/bin/{name}")))
    for python in dict.fromkeys(one for one in found if os.access(one, os.X_OK)):
        command = [python, "-I", "-c", _ABOUT]
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError, KeyError):
            answer = subprocess.run(
                command, capture_output=True, timeout=30, check=True, env=child_environ()
            ).stdout
            about = json.loads(answer)
            if tuple(about["version"][:2]) == sys.version_info[:2] and not is_slow(about["told"]):
                return python
    return None


def python_to_use(environ: Mapping[str, str], any_will_do: bool) -> str:
    """Return the Python that the environment is made of, and say so where it is not this one.

    Args:
        environ: Environment variables.
        any_will_do: Whether nobody has named this one.
    """
    if not is_slow(sysconfig.get_config_vars()):
        return sys.executable
    say(f"      {sys.executable} was built without its optimisations: up to half as slow again as others.")
    other = quicker_python(environ.get("PATH", "")) if any_will_do else None
    if other is not None:
        say(f"      {other} has them, and is taken; make setup PYTHON={sys.executable} takes this one.")
    elif any_will_do:
        say("      With another one: make setup PYTHON=/usr/bin/python3")
    return other or sys.executable


def check_java(environ: Mapping[str, str]) -> str:
    """Return the version of the Java that Spark will take, or raise for none or a wrong one."""
    home = environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
    wanted = " or ".join(str(release) for release in JAVA_RELEASES)
    advice = f"install a Java {wanted} runtime, or set JAVA_HOME to one"
    if not java:
        raise SetupError(f"no Java found: {advice}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"{java} does not run: {advice}") from error
    return check_java_version(answer.stderr + answer.stdout, java)


def check_java_version(answer: str, java: str) -> str:
    """Return the version in the answer of `java -version`, or raise for one that will not do."""
    wanted = " or ".join(str(release) for release in JAVA_RELEASES)
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', answer)
    if not found or int(found[2]) not in JAVA_RELEASES:
        what = found[1] if found else "of an unknown version"
        raise SetupError(f"Java {wanted} is needed, {java} is {what}: install one, or set JAVA_HOME to one")
    return found[1]


class Environment:
    """The virtual environment of a source tree, and the notes that the set-up leaves in it.

    Args:
        root: The source tree; the environment is its folder ``.venv``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.uv = self.folder / "bin" / "uv"
        self._stamp = self.folder / ".millrace-setup.json"
        self._unfinished = self.folder / ".millrace-unfinished"

    def fingerprint(self) -> str:
        """Return a hash of everything that decides what the environment must hold."""
        digest = hashlib.sha256()
        for path in (*(self.root / name for name in INPUTS), self.folder / "pyvenv.cfg"):
            content = path.read_bytes() if path.is_file() else b""
            digest.update(f"{path.name} {len(content)}\n".encode() + content)
        return digest.hexdigest()

    def is_done(self) -> bool:
        """Say whether a finished set-up is still good for these inputs, in this place, with its jars."""
        if self._noted() != self._note() or not self.python.exists():
            return False
        command = [str(self.python), "-c", _JARS_THERE]
        return subprocess.run(command, capture_output=True, env=child_environ(), check=False).returncode == 0

    def is_usable(self) -> bool:
        """Say whether the environment can be built upon: whole, of a good Python, never moved."""
        if self._unfinished.exists() or not self.python.exists():
            return False
        noted = self._noted()
        if noted and noted.get("root") != str(self.root):
            return False  # its scripts name the interpreter by its old path
        test = f"import pip, sys; sys.exit(sys.version_info < {OLDEST_PYTHON})"
        with contextlib.suppress(OSError):
            command = [str(self.python), "-c", test]
            return (
                subprocess.run(command, capture_output=True, env=child_environ(), check=False).returncode == 0
            )
        return False

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Mark the environment as unfinished until the block ends or fails in an orderly way."""
        self._stamp.unlink(missing_ok=True)
        self._unfinished.touch()
        try:
            yield
        except Exception:
            self._unfinished.unlink(missing_ok=True)
            raise
        self._unfinished.unlink(missing_ok=True)

    def note_done(self) -> None:
        """Record that the set-up is finished for the present inputs."""
        draft = self._stamp.with_suffix(".new")
        draft.write_text(json.dumps(self._note()), encoding="utf-8")
        draft.replace(self._stamp)

    def _note(self) -> dict[str, str]:
        return {"root": str(self.root), "fingerprint": self.fingerprint()}

    def _noted(self) -> dict[str, str] | None:
        try:
            noted = json.loads(self._stamp.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return noted if isinstance(noted, dict) else None


def child_environ() -> dict[str, str]:
    """Return the environment for the tools: ours, less what would point them at other packages."""
    misleading = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    kept = {name: value for name, value in os.environ.items() if name not in misleading}
    return {**kept, "PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def uv_command(env: Environment) -> list[str]:
    """Return what installs the packages with uv, from uv.lock."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    sync = [str(env.uv), "sync", "--frozen", "--inexact", "--no-install-workspace", *extras]
    return [*sync, "--python", str(env.python)]


def pip_command(env: Environment, terminal: bool) -> list[str]:
    """Return what installs the same packages without uv, from requirements.lock."""
    bar = [] if terminal else ["--progress-bar", "off"]
    return [*_pip(env), *bar, "--require-hashes", "-r", str(env.root / "requirements.lock")]


def project_command(env: Environment) -> list[str]:
    """Return what installs Millrace itself, core and apps, built by the locked hatchling there by then."""
    both = [word for folder in (env.root, env.root / "shared") for word in ("--editable", str(folder))]
    return [*_pip(env), "--quiet", "--no-deps", "--no-build-isolation", *both]


def _pip(env: Environment) -> list[str]:
    return [str(env.python), "-m", "pip", "install"]


def succeeds(command: Sequence[str], cwd: Path) -> bool:
    """Run a command with its output shown, and say whether it went well.

    Without a terminal the tools are silent for minutes: then a line now and then says that it goes on.
    """
    environ = {
        **child_environ(),
        "UV_PROJECT_ENVIRONMENT": str(cwd / ".venv"),
        "UV_PYTHON_DOWNLOADS": "never",
    }
    begin = time.monotonic()
    try:
        child = subprocess.Popen(command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL)
    except OSError as error:
        say(f"      {error}")
        return False
    try:
        while True:
            try:
                return child.wait(_SIGN_OF_LIFE_S) == 0
            except subprocess.TimeoutExpired:
                if not sys.stdout.isatty():
                    say(f"      still at it, {time.monotonic() - begin:.0f} s")
    finally:
        if child.poll() is None:  # we are being stopped: do not leave it behind
            child.terminate()
            child.wait()


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


@contextlib.contextmanager
def step(number: int, title: str) -> Iterator[None]:
    """Print a numbered step, and how long it took."""
    say(f"[{number}/{STEPS}] {title}")
    begin = time.monotonic()
    yield
    say(f"      done in {time.monotonic() - begin:.1f} s")


def make_environment(env: Environment, any_python: bool = False) -> None:
    """Make the virtual environment, or make it anew when it is not usable.

    Args:
        env: The environment.
        any_python: Whether another Python than this may be taken, which is built better.
    """
    if env.is_usable():
        return
    if env.folder.exists():
        say("      .venv is unfinished, damaged or moved: made anew")
        shutil.rmtree(env.folder)
    python = python_to_use(os.environ, any_python)
    if not succeeds([python, "-m", "venv", str(env.folder)], env.root):
        shutil.rmtree(env.folder, ignore_errors=True)
        raise SetupError(
            "the virtual environment cannot be made: install Python's venv module (python3-venv)"
        )


def get_uv(env: Environment) -> bool:
    """Install the pinned uv into the environment; False when it cannot be had."""
    return succeeds([*_pip(env), "--quiet", "--require-hashes", "-r", "requirements-uv.txt"], env.root)


def install_packages(env: Environment, with_uv: bool) -> None:
    """Install the locked Python packages, with uv or else with pip."""
    if with_uv:
        if succeeds(uv_command(env), env.root):
            return
        say("      uv failed: plain pip takes over, which is slower")
    if not succeeds(pip_command(env, sys.stdout.isatty()), env.root):
        advice = "check the network, or name a mirror by PIP_INDEX_URL, and run make setup again"
        raise SetupError(f"the Python packages cannot be installed (reason above): {advice}")


def set_up(env: Environment, any_python: bool = False) -> None:
    """Do all steps; the arguments are those of :func:`make_environment`."""
    begin = time.monotonic()
    say(f"Setting up Millrace in {env.folder}")
    say(f"About {DOWNLOAD_MB} MB to download, less what caches have; {DISK_MB} MB on disk with the caches.")
    with step(1, "Python and Java"):
        python = check_python(sys.version_info[:3], sys.executable)
        say(f"      Python {python}, Java {check_java(os.environ)}")
    with step(2, "virtual environment"):
        make_environment(env, any_python)
    with env.changing():
        with step(3, "uv, the package installer"):
            with_uv = get_uv(env)
            if not with_uv:
                say("      uv cannot be had: plain pip takes over, which is slower")
        with step(4, "Python packages (Spark is built from its source archive: a minute or two)"):
            install_packages(env, with_uv)
        with step(5, "Millrace itself"):
            if not succeeds(project_command(env), env.root):
                raise SetupError("Millrace itself cannot be installed (reason above)")
    with step(6, "jars of Spark's connectors and of the Kafka broker"):
        if not succeeds([str(env.folder / "bin" / "millrace"), "jars", "fetch"], env.root):
            raise SetupError("the jars cannot be fetched (reason above)")
    env.note_done()
    say(f"Set up in {time.monotonic() - begin:.0f} s.")


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """Let one set-up of a source tree run at a time; the next waits."""
    lock = root / ".millrace" / "setup.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up of this tree is running: waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(root: Path = ROOT, arguments: Sequence[str] = ()) -> int:
    """Set up what is not set up yet; return the exit code.

    Args:
        root: The source tree.
        arguments: ``--any-python``: nobody has named the Python that runs this.
    """
    try:
        check_python(sys.version_info[:3], sys.executable)
        env = Environment(root)
        if env.is_done():
            return 0
        with alone(root):
            if not env.is_done():  # the one that we waited for may have done it
                set_up(env, "--any-python" in arguments)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("setup: interrupted; make setup goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(arguments=sys.argv[1:]))
