"""Calls `start` as soon as a script has imported `torch`: the command copies this file as `sitecustomize.py` before all others."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


class _After(importlib.abc.Loader):
    """Loads a module as its own loader does, and calls something afterwards."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        module.__spec__.loader = module.__loader__ = self._loader
        importlib.import_module("railnet_dryrun").start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _After(spec.loader)
        return spec


def _others() -> None:
    """Runs the `sitecustomize` that this one stands before, where there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# Only in the ranks' own processes: what they start, such as workers that load data, computes nothing.
if os.environ.get("RAILNET_DRYRUN") and os.environ.get("RAILNET_DRYRUN_PROCESS", str(os.getpid())) == str(os.getpid()):
    os.environ["RAILNET_DRYRUN_PROCESS"] = str(os.getpid())
    sys.meta_path.insert(0, _Finder())
_others()
