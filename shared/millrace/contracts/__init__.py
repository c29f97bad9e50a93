"""Contracts: what events look like, one JSON Schema per type and version in git, made from the classes."""

from millrace.contracts.check import Finding, check, generate
from millrace.contracts.compatibility import Break, Mode, breaks
from millrace.contracts.ddl import spark_ddl
from millrace.contracts.model import (
    Contract,
    ContractError,
    ContractName,
    contracts_of,
    folder_of,
    load_contracts,
    stored,
)
from millrace.contracts.schema import SchemaError, dumps, json_schema, meaning

__all__ = [
    "Break",
    "Contract",
    "ContractError",
    "ContractName",
    "Finding",
    "Mode",
    "SchemaError",
    "breaks",
    "check",
    "contracts_of",
    "dumps",
    "folder_of",
    "generate",
    "json_schema",
    "load_contracts",
    "meaning",
    "spark_ddl",
    "stored",
]
