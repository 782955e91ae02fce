"""Loaded by every Python that is started with this folder in PYTHONPATH: counts the tasks that judges are given.

A batch that is lost with its judge leaves no trace in a store; to say how many rows a fault made a judge read again,
each batch is noted as it begins, one line `pid rows` in the file that TRUSTJUDGE_BATCHES names.
"""

import importlib.abc
import importlib.machinery
import os
import sys

_JUDGES = {
    "trustjudge_ray.judging.scripted": "ScriptedJudge",
    "trustjudge_ray.judging.vllm_engine": "VllmJudge",
}


class _Noting(importlib.abc.MetaPathFinder):
    """Finds the modules of _JUDGES as usual and wraps their judge's `judge`."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in _JUDGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                _note(getattr(module, _JUDGES[fullname]))

            spec.loader.exec_module = exec_module
        return spec


def _note(judge):
    read = judge.judge

    def noted(self, tasks):
        with open(os.environ["TRUSTJUDGE_BATCHES"], "a") as batches:
            batches.write(f"{os.getpid()} {len(tasks)}\n")
        return read(self, tasks)

    judge.judge = noted


if os.environ.get("TRUSTJUDGE_BATCHES"):
    sys.meta_path.insert(0, _Noting())
