"""A contract: one version of what the events of one name look like, and the file that says so in git."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from millrace.contracts.schema import json_schema
from millrace.errors import UserError
from millrace.runtime.apps import App, load_app
from millrace.runtime.installed import list_apps

#: Where an app keeps its contracts, beside its modules.
FOLDER: Final = "schemas"
_SUFFIX: Final = ".schema.json"
_NAME: Final = re.compile(r"([a-z][a-z0-9_-]*)\.v([1-9]\d{0,5})")


class ContractError(UserError):
    """A contract is named wrongly, is missing, or its file cannot be read."""


@dataclass(frozen=True, order=True)
class ContractName:
    """Name and version of a contract, written ``transaction.v1``.

    Attributes:
        name: What kind of event.
        version: Its version, from 1 on.
    """

    name: str
    version: int

    @classmethod
    def parse(cls, text: str) -> ContractName:
        """Return the name that a text writes.

        Raises:
            ContractError: It is not of this form.

        Example:
            >>> ContractName.parse("transaction.v1")
            ContractName(name='transaction', version=1)
        """
        found = _NAME.fullmatch(text)
        if not found:
            raise ContractError(f"'{text}' is no contract: name and version are written like transaction.v1")
        return cls(found[1], int(found[2]))

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self}{_SUFFIX}"

    def __str__(self) -> str:
        return f"{self.name}.v{self.version}"


@dataclass(frozen=True)
class Contract:
    """What an app's class says about one version of an event.

    Attributes:
        app: The app.
        name: Name and version.
        type: Class (or union of classes) of the events.
    """

    app: str
    name: ContractName
    type: Any

    def schema(self) -> dict[str, Any]:
        """Return its JSON Schema, made from the class."""
        identity = f"urn:millrace:{self.app}:{self.name.name}:{self.name.version}"
        return json_schema(self.type, identity=identity)


def contracts_of(app: App) -> list[Contract]:
    """Return the contracts that an app registers, in order of name and version.

    Raises:
        ContractError: One is named wrongly.
    """
    made = [Contract(app.name, ContractName.parse(text), tp) for text, tp in app.contracts.items()]
    return sorted(made, key=lambda contract: contract.name)


def load_contracts(app: str) -> list[Contract]:
    """Return the contracts of an installed app.

    Args:
        app: Its name.

    Raises:
        UnknownApp: There is no such app.
        ContractError: It registers none, or one is named wrongly.
    """
    found = contracts_of(load_app(app))
    if not found:
        raise ContractError(f"{app} registers no contracts: give its App contracts={{'name.v1': Class}}")
    return found


def folder_of(app: str) -> Path:
    """Return the folder in which an installed app keeps its contracts, whether it exists or not.

    Raises:
        UnknownApp: There is no such app.
        ContractError: The app's package is not in a folder.
    """
    load_app(app)  # refuses what is no app
    module = list_apps()[app].partition(":")[0]
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin or not Path(spec.origin).exists():
        raise ContractError(f"{module} is not installed as files: name the contracts' folder with --folder")
    return Path(spec.origin).parent / FOLDER


def stored(folder: Path) -> dict[ContractName, dict[str, Any]]:
    """Return the contracts in a folder, in order of name and version.

    Raises:
        ContractError: A file is named wrongly, or holds no JSON Schema.
    """
    found: dict[ContractName, dict[str, Any]] = {}
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        name = ContractName.parse(path.name.removesuffix(_SUFFIX))
        found[name] = read_schema(path)
    return dict(sorted(found.items()))


def read_schema(path: Path) -> dict[str, Any]:
    """Return the JSON Schema of a file.

    Raises:
        ContractError: It cannot be read, or is none.
    """
    import jsonschema

    try:
        schema = json.loads(path.read_text("utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
    except OSError as error:
        raise ContractError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ContractError(f"{path} is no JSON: {error}") from error
    except jsonschema.SchemaError as error:
        raise ContractError(f"{path} is no JSON Schema: {error.message}") from error
    if not isinstance(schema, Mapping):
        raise ContractError(f"{path} is no JSON Schema of events")
    return dict(schema)
