"""The walk through the core: notebook and page are the same; what runs in memory says what stands there."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from millrace_apps.recipes.catalogue.notebook import PAGE, page, printed, read


def test_the_page_is_the_notebook() -> None:
    assert PAGE.read_text("utf-8") == page(read()), "python -m millrace_apps.recipes.catalogue.notebook"


def test_the_part_in_memory_says_what_stands_there() -> None:
    """Without Jupyter: what is printed, and the value of a cell's last line where it is an expression."""
    import ast
    from pprint import pformat

    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in read().cells if cell.cell_type == "code"]
    memory = [cell for cell in cells if "spark" not in cell.source]
    assert len(memory) >= 8
    for cell in memory[:8]:
        body = ast.parse(cell.source).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(ast.Module(body, []), "cell", "exec", dont_inherit=True), names)  # noqa: S102
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
                if value is not None:
                    print(pformat(value, width=79, sort_dicts=False))
        assert said.getvalue().split() == printed(cell).split(), cell.source
