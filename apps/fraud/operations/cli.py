"""`millrace fraud …`: the commands of the fraud app."""

from __future__ import annotations

import typer

from millrace_apps.fraud.cases.cli import app as cases
from millrace_apps.fraud.operations.changes_cli import app as changes
from millrace_apps.fraud.operations.forget_cli import forget
from millrace_apps.fraud.operations.lists_cli import app as lists
from millrace_apps.fraud.operations.model_cli import app as models
from millrace_apps.fraud.operations.model_cli import older as older_models
from millrace_apps.fraud.operations.rates_cli import app as rates
from millrace_apps.fraud.operations.respond_cli import respond
from millrace_apps.fraud.operations.rules_cli import app as rules
from millrace_apps.fraud.operations.serve_cli import app as serve
from millrace_apps.fraud.operations.serve_cli import served
from millrace_apps.fraud.operations.tokens_cli import app as tokens

app = typer.Typer(no_args_is_help=True, help="Fraud: rules, lists, rates, tokens, cases, models.")
app.add_typer(rules, name="rules")
app.add_typer(lists, name="lists")
app.add_typer(changes, name="changes")
app.add_typer(rates, name="rates")
app.command()(forget)
app.add_typer(tokens, name="tokens")
app.add_typer(cases, name="cases")
app.add_typer(models, name="model")
app.command()(respond)
app.add_typer(serve)  # without a name: one command
app.add_typer(served, name="served")
app.add_typer(older_models)  # without a name: train, promote, … stand beside the others
