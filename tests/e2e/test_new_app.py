"""A new app's demo, installed as a third party's: broker, generator, Spark, Delta, and every check holds."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from millrace.scaffold.writing import new_app


def test_the_demo_of_a_new_app_holds(tmp_path: Path) -> None:
    repository, dist, site = tmp_path / "parcels", tmp_path / "dist", tmp_path / "site"
    new_app("parcels", repository)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)]
    subprocess.run(build, cwd=repository, check=True, capture_output=True, timeout=120)
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as archive:
        archive.extractall(site)
    environment = os.environ | {"PYTHONPATH": str(site)}
    demo = [sys.executable, "-m", "millrace", "demo", "parcels", "--duration", "40s", "--rate", "200"]
    done = subprocess.run(
        demo, cwd=repository, env=environment, capture_output=True, text=True, timeout=420, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "all checks hold" in done.stdout
