"""CPU time of a benchmark: all that it started counts, also what has ended."""

from __future__ import annotations

import subprocess
import sys

import psutil

from millrace_apps.benchmarks.cpu import CpuMeter, cpu_by_part, cpu_seconds, part_of

#: What the busy child uses at least, s. Processes are billed in ticks of 10 ms.
_USED_S = 0.4
_BUSY = f"import time\nwhile time.process_time() < {_USED_S}: pass\nprint('done', flush=True)\ninput()"


def test_what_a_child_used_stays_when_it_and_its_parent_have_ended() -> None:
    meter = CpuMeter()
    before = meter.sample()
    # The child of a child, whose parent does not wait for it: nobody is told what it used.
    middle = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_BUSY!r}]); input()"
    with subprocess.Popen(
        [sys.executable, "-c", middle], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "done\n"
        during = meter.sample()
        (grandchild,) = psutil.Process(parent.pid).children()
        parent.kill()
        parent.wait()
        grandchild.kill()
        grandchild.wait(10)
    assert during["workers"] - before["workers"] > _USED_S - 0.05
    after = meter.sample()
    assert after["workers"] >= during["workers"]
    assert after["spark"] == before["spark"]


def test_time_of_a_benchmark_never_goes_back() -> None:
    looks = [cpu_seconds() for _ in range(3)]
    assert looks == sorted(looks)
    assert cpu_by_part()["driver"] > 0
    assert part_of(psutil.Process(), psutil.Process().pid) == "driver"
    assert part_of(psutil.Process(), 0) == "workers"
