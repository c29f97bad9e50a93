"""What recipes are written with: a stream of steps, an engine to play it on, times as a clock shows them."""

from millrace.host.system import Tick
from millrace_apps.recipes.kit.files import committed_batches, delta_rows, write_batches
from millrace_apps.recipes.kit.killing import hang, killed_child
from millrace_apps.recipes.kit.play import Control, Restart
from millrace_apps.recipes.kit.run import Results, Run
from millrace_apps.recipes.kit.script import script
from millrace_apps.recipes.kit.session import start_session
from millrace_apps.recipes.kit.text import at

__all__ = [
    "Control",
    "Restart",
    "Results",
    "Run",
    "Tick",
    "at",
    "committed_batches",
    "delta_rows",
    "hang",
    "killed_child",
    "script",
    "start_session",
    "write_batches",
]
