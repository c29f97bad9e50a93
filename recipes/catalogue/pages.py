"""Brings ``docs/concepts`` up to date: the output on each recipe's page, and the index of the pages.

``python -m millrace_apps.recipes.catalogue.pages`` writes what has changed; a test says when that is to be
done.
"""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from pathlib import Path
from typing import Final

from millrace_apps.recipes.catalogue import Recipe, catalogue

PAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "concepts"
_BLOCK: Final = re.compile(r"^```text\n\$ millrace recipe run .*?\n```$", re.MULTILINE | re.DOTALL)

_INDEX: Final = """\
# Recipes

One short file per concept, to run, to read and to change. Each page has a picture, what one sees, and what to
try. This list is made by `python -m millrace_apps.recipes.catalogue.pages`.

```text
millrace recipe list                                   what there is
millrace recipe show running-balance                   the source
millrace recipe run running-balance                    in memory, in milliseconds
millrace recipe run running-balance --engine spark     the same, as a streaming query on this machine
```

In memory unless a recipe is about Spark's own part: one changes a line and sees at once what it does. Both
engines say the same lines; a test holds them to it. A recipe is a script, to be copied:
`python recipes/running_balance.py`, or `… running_balance.py spark`, runs the file.

[`play`](../writing-a-process.md#9-playing-it-in-memory-or-on-spark) runs a topology over events at hand. A
job gives the same topology, or the same process, a stream: `keyed(dataframe, by="user", …)`. Each item of the
list is a micro-batch: an event, or a list of events that come together.

How to read the output: `in` is an event, `out` a record of the main output, any other word a side output; the
time is the event time. A batch begins with the watermark that the batches before it have made, by which its
events are judged. What it ends with brings more (timers, windows that are over, events that waited): that
stands behind the batch's own events.

A way to begin: [running-balance](running-balance.md), [filter-and-count](filter-and-count.md),
[late-data](late-data.md), [all-windows](all-windows.md), [reminder](reminder.md),
[order-steps](order-steps.md), [windowless-join](windowless-join.md), [exactly-once](exactly-once.md).

{list}

What the words mean: [Concepts](../concepts.md). How to write one's own:
[Writing a process](../writing-a-process.md).
"""


def output(recipe: Recipe) -> str:
    """Return what a recipe prints in memory."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        recipe.run("memory")
    return said.getvalue().strip()


def page(recipe: Recipe, text: str) -> str:
    """Return a recipe's page with its output as it is; of one that needs Spark, as it stands."""
    if "memory" not in recipe.engines:
        return text
    block = f"```text\n$ millrace recipe run {recipe.name}\n{output(recipe)}\n```"
    return _BLOCK.sub(lambda _: block, text)


def index(recipes: dict[str, Recipe]) -> str:
    """Return the index of all pages."""
    lines: list[str] = []
    for r in recipes.values():
        lines += _lines(f"- [{r.name}]({r.name}.md): {r.about}") + _lines(f"  *{r.teaches}*")
    return _INDEX.replace("{list}", "\n".join(lines))


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Write what has changed."""
    found = catalogue()
    wanted = {PAGES / "README.md": index(found)}
    for recipe in found.values():
        path = PAGES / f"{recipe.name}.md"
        wanted[path] = page(recipe, path.read_text("utf-8"))
    for path, text in wanted.items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(f"written: {path.name}")


if __name__ == "__main__":
    main()
