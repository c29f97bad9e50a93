"""Default places of model registries and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_DATABASE: Final = "mlflow.db"
_EXPORTS: Final = "exported"


def default_uri(models: Path) -> str:
    """Return the registry in a folder.

    >>> default_uri(Path("/data/models"))
    'sqlite:////data/models/mlflow.db'
    """
    return f"sqlite:///{models.absolute() / _DATABASE}"


def default_exports(uri: str, models: Path) -> Path:
    """Return the folder of a registry's exports: beside its database, where it has one.

    Args:
        uri: The registry.
        models: Folder of the app's models, for any other registry.

    >>> default_exports("sqlite:////data/m/mlflow.db", Path("x")), default_exports("http://there", Path("/x"))
    (PosixPath('/data/m/exported'), PosixPath('/x/exported'))
    """
    path = sqlite_path(uri)
    return (models if path is None else path.parent).absolute() / _EXPORTS


def sqlite_path(uri: str) -> Path | None:
    """Return the file of a registry in SQLite; ``None`` for any other.

    >>> sqlite_path("sqlite:////data/mlflow.db"), sqlite_path("http://registry:5000")
    (PosixPath('/data/mlflow.db'), None)
    """
    prefix = "sqlite:///"
    return Path(uri.removeprefix(prefix)) if uri.startswith(prefix) else None
