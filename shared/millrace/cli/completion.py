"""`millrace completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


class Shell(StrEnum):
    """The shells that can be completed in."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print what lets a shell complete commands and options.

    Add it to what the shell reads when it starts: ~/.bashrc, ~/.zshrc, or a file in
    ~/.config/fish/completions. Example: `millrace completion bash`
    """
    from typer import completion as of_typer

    script = of_typer.get_completion_script(  # type: ignore[attr-defined]
        prog_name="millrace", complete_var="_MILLRACE_COMPLETE", shell=shell.value
    )
    typer.echo(script)
