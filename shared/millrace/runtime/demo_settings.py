"""Published settings of a running demo, by which others find its broker and its topics.

They stand beside its tables while it runs. No secrets are among them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from millrace.local.home import demo_path

ANNOUNCED_FILE = "running.json"


@contextlib.contextmanager
def publish_settings(folder: Path, sets: Sequence[str]) -> Iterator[None]:
    """Let others see settings (``key=value``) in a folder while the block runs.

    Args:
        folder: The folder with the app's tables.
        sets: The settings.
    """
    path = folder / ANNOUNCED_FILE
    folder.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".new")
    written.write_text(json.dumps(list(sets)))
    written.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def published_settings(folder: Path) -> tuple[str, ...]:
    """Return the settings that are told of in a folder; none where nothing runs that tells any.

    Args:
        folder: The folder with the app's tables.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     with publish_settings(Path(name), ["kafka.bootstrap=127.0.0.1:9092"]):
        ...         inside = published_settings(Path(name))
        ...     inside, published_settings(Path(name))
        (('kafka.bootstrap=127.0.0.1:9092',), ())
    """
    try:
        found = json.loads((folder / ANNOUNCED_FILE).read_text())
    except (OSError, ValueError):
        return ()
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        return ()
    return tuple(found)


def demo_instead(app: str, root: Path) -> Path | None:
    """Return the folder of an app's last demo, where the app itself has written no tables; else ``None``.

    Args:
        app: Name of the app.
        root: Its ``storage.root``.
    """
    demo = demo_path(app)
    has_demo = (demo / "tables").is_dir() or bool(published_settings(demo))
    return demo if has_demo and not (root / "tables").is_dir() else None
