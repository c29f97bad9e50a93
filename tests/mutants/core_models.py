"""Mutants of models: exports, files, exchange, gates, what workers import."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

_CORE: Final = "shared/millrace/models"
_ROOM: Final = "tests/unit/millrace/models"
_EXPORTS: Final = (f"{_ROOM}/test_exports.py",)
_RACE: Final = (f"{_ROOM}/test_exports.py::test_a_reader_never_sees_a_mixture_of_manifest_and_file",)
_LOADING: Final = (f"{_ROOM}/test_loading.py",)
_SERVING: Final = (f"{_ROOM}/test_serving.py",)
_GATES: Final = (f"{_ROOM}/test_gates.py",)
_COMMANDS: Final = (f"{_ROOM}/test_commands.py",)

MUTANTS: Final = (
    Mutant(
        "models: all versions have one file",
        f"{_CORE}/manifest.py",
        'return f"{self.sha256}.skops"',
        'return "model.skops"',
        "a manifest and the file that belongs to it",
        _RACE,
    ),
    Mutant(
        "models: a manifest is written where it is read",
        f"{_CORE}/exports.py",
        "                _write(place, said)\n",
        "                into = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)\n"
        "                os.write(into, said)\n"
        "                os.close(into)\n",
        "a manifest takes the place of another at once",
        _RACE,
    ),
    Mutant(
        "models: a file is named before it is there",
        f"{_CORE}/exports.py",
        "                self._put_file(manifest, data)\n"
        "                self._touch_named()\n"
        "                _write(place, said)\n",
        "                self._touch_named()\n"
        "                _write(place, said)\n"
        "                self._put_file(manifest, data)\n",
        "a file is complete before a manifest names it",
        _RACE,
    ),
    Mutant(
        "models: a file that is named no more goes at once",
        f"{_CORE}/exports.py",
        "        before = time.time() - KEPT_S\n",
        "        before = time.time() + KEPT_S\n",
        "files stay for those who are about to read them",
        _RACE,
    ),
    Mutant(
        "models: what was named until now counts as long forgotten",
        f"{_CORE}/exports.py",
        "                self._put_file(manifest, data)\n                self._touch_named()\n",
        "                self._put_file(manifest, data)\n",
        "files stay for those who are about to read them",
        _EXPORTS,
    ),
    Mutant(
        "models: a folder that is gone is an alias that was taken away",
        f"{_CORE}/exports.py",
        "            if not self.path.is_dir():\n",
        "            if False:\n",
        "a folder that is gone leaves the last model",
        (*_EXPORTS, *_SERVING),
    ),
    Mutant(
        "models: a manifest may be another model's",
        f"{_CORE}/exports.py",
        "        if manifest.name != self.name:\n",
        "        if False:\n",
        "a forged manifest is refused",
        _EXPORTS,
    ),
    Mutant(
        "models: a manifest is published that nobody can read",
        f"{_CORE}/exports.py",
        "        decoded(said)\n",
        "",
        "what is published can be read",
        _EXPORTS,
    ),
    Mutant(
        "models: a later form of manifest is read as this one",
        f"{_CORE}/manifest.py",
        "    if found.format != FORMAT:\n",
        "    if False:\n",
        "a later form is refused",
        _EXPORTS,
    ),
    Mutant(
        "models: a file is not held to its digest",
        f"{_CORE}/files.py",
        "    if (found := sha256_of(data)) != manifest.sha256:\n",
        "    if (found := sha256_of(data)) is None:\n",
        "a forged file is refused",
        _LOADING,
    ),
    Mutant(
        "models: a file is read before it is held to its manifest",
        f"{_CORE}/loading.py",
        "        check_bytes(manifest, data)\n",
        "",
        "damaged files are refused unread",
        _LOADING,
    ),
    Mutant(
        "models: a file may hold any type",
        f"{_CORE}/files.py",
        "        foreign = sorted(set(skops.io.get_untrusted_types(data=data)) - set(trusted))\n",
        "        trusted, foreign = skops.io.get_untrusted_types(data=data), []\n",
        "an unknown type is refused",
        _LOADING,
    ),
    Mutant(
        "models: a small file may unpack to anything",
        f"{_CORE}/files.py",
        "        if unpacked > UNPACKED_LIMIT:\n",
        "        if False:\n",
        "bounded size",
        _LOADING,
    ),
    Mutant(
        "models: a large file is read",
        f"{_CORE}/exports.py",
        "        if manifest.size > FILE_LIMIT:\n",
        "        if False:\n",
        "bounded size",
        _EXPORTS,
    ),
    Mutant(
        "models: features of any version will do",
        f"{_CORE}/loading.py",
        "        if manifest.features_version != self.features_version:\n",
        "        if False:\n",
        "a model of other features is refused",
        _LOADING,
    ),
    Mutant(
        "models: a broken version puts the last good one out of force",
        f"{_CORE}/serving.py",
        "            self._failed(error)\n            if self._now is None and",
        "            self._failed(error)\n            self._now = None\n            if self._now is None and",
        "the last good model goes on",
        _SERVING,
    ),
    Mutant(
        "models: a broken version is tried for ever",
        f"{_CORE}/serving.py",
        "            self._broken = found if isinstance(error, BrokenModel) else None\n",
        "            self._broken = None\n",
        "a broken version is tried once",
        _SERVING,
    ),
    Mutant(
        "models: a broken version is never tried again",
        f"{_CORE}/serving.py",
        "            elif found != self._broken:",
        "            elif self._broken is None or found.manifest != self._broken.manifest:",
        "files that are written anew are tried",
        _SERVING,
    ),
    Mutant(
        "models: a model that fails stays",
        f"{_CORE}/serving.py",
        "            if self._now is failed:\n                self._now, self._before = before, None\n",
        "            if False:\n                self._now, self._before = before, None\n",
        "a model that fails gives way",
        _SERVING,
    ),
    Mutant(
        "models: a score may be no number",
        f"{_CORE}/serving.py",
        " or not all(map(math.isfinite, values))",
        "",
        "a model whose scores are no numbers gives way",
        _SERVING,
    ),
    Mutant(
        "models: rows that no model can score put a model out of force",
        f"{_CORE}/serving.py",
        "            except Exception:  # these rows are what is wrong\n                return None\n",
        "            except Exception:  # these rows are what is wrong\n                scores = None\n",
        "rows are told from models",
        _SERVING,
    ),
    Mutant(
        "models: a worker that begins with a broken champion has none",
        f"{_CORE}/serving.py",
        "            if self._now is None and isinstance(error, BrokenModel):\n",
        "            if False:\n",
        "the champion of before is taken",
        _SERVING,
    ),
    Mutant(
        "models: nobody looks for another version",
        f"{_CORE}/serving.py",
        "        time.sleep(poll_s)\n        holder.poll()\n",
        "        time.sleep(poll_s)\n",
        "an alias is in force within two seconds",
        (f"{_ROOM}/test_serving.py::test_an_alias_that_is_set_is_in_force_within_two_seconds",),
    ),
    Mutant(
        "models: rows of a call may be scored by two models",
        f"{_CORE}/serving.py",
        "            return _scores(now.model, rows_of(now.model.inputs))\n",
        "            values = [v for row in rows_of(now.model.inputs)\n"
        "                      for v in _scores(self._now.model, [row]).values]\n"
        "            return Scores(values, now.model.version)\n",
        "all rows of a call are scored by one model",
        (f"{_ROOM}/test_serving.py::test_all_rows_of_a_call_are_scored_by_one_model_while_it_is_exchanged",),
    ),
    Mutant(
        "models: a gain that may be an accident is enough",
        f"{_CORE}/gates.py",
        "    passed = gain.low > gate.margin\n",
        "    passed = gain.high > gate.margin\n",
        "the whole interval is above the margin",
        _GATES,
    ),
    Mutant(
        "models: a gate has no margin",
        f"{_CORE}/gates.py",
        "    passed = gain.low > gate.margin\n",
        "    passed = gain.low > 0\n",
        "margins",
        _GATES,
    ),
    Mutant(
        "models: of errors the higher ones are better",
        f"{_CORE}/gates.py",
        '    sign = 1.0 if gate.better == "higher" else -1.0\n',
        "    sign = 1.0\n",
        "the direction of a measure",
        _GATES,
    ),
    Mutant(
        "models: few rows are enough",
        f"{_CORE}/gates.py",
        "        if found < least:\n",
        "        if False:\n",
        "a gate's least rows and groups",
        _GATES,
    ),
    Mutant(
        "models: rows are resampled one by one",
        f"{_CORE}/gates.py",
        "    of_group, place = np.unique(judged.groups, return_inverse=True)\n",
        "    of_group = place = np.arange(len(judged.groups))\n",
        "groups are resampled",
        _GATES,
    ),
    Mutant(
        "models: one gate of many is enough",
        f"{_CORE}/learner.py",
        "        if failed := [verdict.why for verdict in verdicts if not verdict.passed]:\n",
        "        if (failed := [v.why for v in verdicts if not v.passed]) and len(failed) > 1:\n",
        "what fails a gate is not promoted",
        _COMMANDS,
    ),
    Mutant(
        "models: a model that workers would refuse is promoted",
        f"{_CORE}/learner.py",
        "        self.load(version)\n        registry.tag(",
        "        registry.tag(",
        "a champion can be read",
        _COMMANDS,
    ),
    Mutant(
        "models: a promotion is not exported",
        f"{_CORE}/learner.py",
        "            registry.set_alias(CHALLENGER, None)\n        self.export((CHAMPION,))\n",
        "            registry.set_alias(CHALLENGER, None)\n",
        "workers have what the registry says",
        _COMMANDS,
    ),
    Mutant(
        "models: a damaged export is taken for a good one",
        f"{_CORE}/exports.py",
        "            return sha256_of(self.data(manifest)) == manifest.sha256\n",
        "            return (self.path / manifest.file).exists()\n",
        "a damaged file is written anew",
        (*_EXPORTS, *_COMMANDS),
    ),
    Mutant(
        "models: the newest version of a table is read whatever was asked for",
        f"{_CORE}/tables.py",
        "        table = DeltaTable(str(folder), version=version)\n",
        "        table = DeltaTable(str(folder))\n",
        "training sets as of a version",
        _COMMANDS,
    ),
    Mutant(
        "models: a job begins without its models",
        "shared/millrace/runtime/job.py",
        "            if self.app.begin is not None and (told := self.app.begin(self.settings)):\n",
        '            if False and (told := ""):\n',
        "a registry of before is exported",
        ("tests/unit/millrace/runtime/test_job.py::test_an_app_begins_once_before_its_query",),
    ),
    Mutant(
        "models: workers import MLflow",
        f"{_CORE}/serving.py",
        "import numpy as np\n",
        "import mlflow.version  # noqa: F401\nimport numpy as np\n",
        "no MLflow in workers",
        (f"{_ROOM}/test_workers.py", *_LOADING),
    ),
)
