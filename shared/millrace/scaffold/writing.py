"""Writes a new app: the templates beside this module, with its name put in."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from string import Template
from typing import Final

from millrace.errors import UserError

_TEMPLATES: Final = Path(__file__).parent / "template"
_SUFFIX: Final = ".tmpl"
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")


def new_app(name: str, folder: Path) -> list[Path]:
    """Write a complete small app.

    Args:
        name: Its name: lower-case letters, digits, dashes; its package has underscores in their place.
        folder: The folder that is made for it.

    Returns:
        The files, in the order of their paths.

    Raises:
        UserError: The name cannot be one, is taken, or the folder is not empty.
    """
    package = _package_of(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already: name another folder by --folder")
    words = {"name": name, "package": package, "distribution": name.replace("_", "-")}
    written = []
    for template in sorted(_TEMPLATES.rglob(f"*{_SUFFIX}")):
        parts = [package if part == "package" else part for part in template.relative_to(_TEMPLATES).parts]
        parts[-1] = parts[-1].removesuffix(_SUFFIX).replace("gitignore", ".gitignore")
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(template.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
        written.append(path)
    return sorted(written)


def _package_of(name: str) -> str:
    from millrace.runtime.installed import list_apps

    if not _NAME.fullmatch(name) or len(name) > 40:
        raise UserError(f"an app's name is lower-case letters, digits and dashes, at most 40, not {name!r}")
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or name in ("app", "tests"):
        raise UserError(f"{name} cannot be an app's name: it means something else in Python or here")
    if name in list_apps():
        raise UserError(f"there is an app {name} already: `millrace run {name}`")
    if importlib.util.find_spec(package) is not None:
        raise UserError(f"there is a Python package {package} already: take another name")
    return package
