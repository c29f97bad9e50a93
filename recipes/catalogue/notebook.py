"""Runs ``docs/walk.ipynb`` in Jupyter; writes its outputs, and ``docs/walk.md``, the same as a page.

``python -m millrace_apps.recipes.catalogue.notebook`` writes both; a test says when that is to be done.
Jupyter comes with the development environment only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOK: Final = DOCS / "walk.ipynb"
PAGE: Final = DOCS / "walk.md"
#: Seconds that a cell may take: the first one on Spark starts a JVM.
_MOST_S: Final = 300


def read(path: Path = NOTEBOOK) -> Any:
    """Return a notebook as it stands."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def executed(notebook: Any, folder: Path) -> Any:
    """Return a notebook with the outputs of a fresh run of it.

    Args:
        notebook: The notebook.
        folder: Where it runs.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell fails.
    """
    fresh = nbformat.from_dict(notebook)  # type: ignore[no-untyped-call]
    NotebookClient(fresh, timeout=_MOST_S, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in fresh.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for out in cell.outputs:
                out.pop("execution_count", None)
                if out.output_type == "execute_result":
                    out.execution_count = None
    fresh.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return fresh


def printed(cell: Any) -> str:
    """Return what a cell has printed, and the value of its last line."""
    return "".join(_texts(cell)).rstrip("\n")


def _texts(cell: Any) -> Iterator[str]:
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            yield output.text
        elif "text/plain" in output.get("data", {}):
            yield output.data["text/plain"] + "\n"


def page(notebook: Any) -> str:
    """Return a notebook as a page of the docs."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source.strip())
        else:
            parts.append(f"```python\n{cell.source.strip()}\n```")
            if text := printed(cell):
                parts.append(f"```text\n{text}\n```")
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(parts)) + "\n"


def main() -> None:
    """Run the notebook and write what has changed."""
    notebook = executed(read(), DOCS.parent)
    nbformat.write(notebook, NOTEBOOK)  # type: ignore[no-untyped-call]
    PAGE.write_text(page(notebook), "utf-8")
    print(f"written: {NOTEBOOK.name}, {PAGE.name}")


if __name__ == "__main__":
    main()
