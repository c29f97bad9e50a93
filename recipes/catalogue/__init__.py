"""The catalogue of recipes, read from their modules; `millrace recipe` stands on it."""

from __future__ import annotations

import ast
import difflib
import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from millrace.errors import UserError
from millrace_apps import recipes

#: Where a recipe runs unless it says otherwise; on the first one unless another is asked for.
ENGINES: Final = ("memory", "spark")


class UnknownRecipe(UserError):
    """There is no recipe of that name, or not on that engine."""


@dataclass(frozen=True)
class Recipe:
    """One recipe, as its source tells of it; the module is imported when it is needed.

    Attributes:
        name: Its name on the command line, e.g. ``running-balance``.
        path: The file.
        about: What it shows, in a line.
        teaches: The concepts that one meets in it.
        engines: Where it runs; on the first one unless another is asked for.
    """

    name: str
    path: Path
    about: str
    teaches: str
    engines: tuple[str, ...]

    @property
    def module(self) -> ModuleType:
        """The module it stands in."""
        return importlib.import_module(f"millrace_apps.recipes.{self.path.stem}")

    @property
    def source(self) -> str:
        """Its source."""
        return self.path.read_text("utf-8")

    def run(self, engine: str | None = None) -> Any:
        """Run it: it prints what it shows.

        Args:
            engine: The engine; ``None``: the first that it runs on.

        Returns:
            What its ``main`` returns: what was played, or what it has found.

        Raises:
            UnknownRecipe: It does not run on the one that is wanted.
        """
        chosen = self.engine(engine)
        return self.module.main(chosen) if self.engines == ENGINES else self.module.main()

    def engine(self, wanted: str | None) -> str:
        """Return the engine to run it on.

        Raises:
            UnknownRecipe: It does not run on the one that is wanted.
        """
        for engine in self.engines:
            if wanted in (None, engine):
                return engine
        raise UnknownRecipe(f"{self.name} runs on {' and '.join(self.engines)}, not on '{wanted}'")


def catalogue() -> dict[str, Recipe]:
    """Return all recipes by name."""
    paths = sorted(Path(recipes.__path__[0]).glob("*.py"))
    found = [_read(path) for path in paths if not path.stem.startswith("_")]
    return {recipe.name: recipe for recipe in found}


def _read(path: Path) -> Recipe:
    """Read what a module says of itself, without running it: some import Spark."""
    tree = ast.parse(path.read_text("utf-8"))
    said = {
        target.id: ast.literal_eval(statement.value)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and target.id in ("TEACHES", "ENGINES")
    }
    about = (ast.get_docstring(tree) or "").partition("\n")[0]
    engines = said.get("ENGINES", ENGINES)
    return Recipe(path.stem.replace("_", "-"), path, about, said["TEACHES"], engines)


def find(name: str) -> Recipe:
    """Return the recipe of this name.

    Raises:
        UnknownRecipe: There is none; the message names the nearest.
    """
    found = catalogue()
    wanted = name.replace("_", "-").removesuffix(".py")
    if wanted in found:
        return found[wanted]
    near = difflib.get_close_matches(wanted, found, n=1)
    hint = f"did you mean {near[0]}?" if near else "millrace recipe list names them"
    raise UnknownRecipe(f"there is no recipe '{name}': {hint}")
