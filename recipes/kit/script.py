"""Start a recipe from its own file: ``python recipes/running_balance.py [--engine spark]``."""

from __future__ import annotations

import sys
from pathlib import Path


def script(file: str) -> None:
    """Run the recipe in this file, as ``millrace recipe run`` does.

    The file is imported again under its own name, since what a script defines is out of the reach of
    Spark's workers.
    """
    from millrace.cli import main

    sys.argv[:1] = ["millrace", "recipe", "run", Path(file).stem]
    main()
