"""The former name of :mod:`millrace.checkpoints`, for one version: its modules are found by it, and told."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_TODAY = "millrace.checkpoints"


class _Former(MetaPathFinder, Loader):
    """Finds modules by their former names: each is the same one, not a second."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module comes from; ``None``: it is none of the former package."""
        return ModuleSpec(fullname, self) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of today."""
        today = _TODAY + spec.name.removeprefix(__name__)
        found = import_module(today)
        warnings.warn(f"{spec.name} is the former name of {today}: import that", FutureWarning, stacklevel=2)
        self._specs[spec.name] = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it has been executed, and is of its name of today."""
        former = getattr(module.__spec__, "name", "")
        module.__spec__ = self._specs.pop(former)


sys.meta_path.append(_Former())
