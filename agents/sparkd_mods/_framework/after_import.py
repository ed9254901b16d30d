"""Do something right after a module was imported, without importing it."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]


class AfterImport(importlib.abc.MetaPathFinder):
    """Stands first in `sys.meta_path`; finds nothing itself, and lets go of a module once it was imported."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {}

    def call(self, name: str, hook: Hook) -> None:
        """Now if the module is there already, else when it is. What the hook raises, the import raises."""
        module = sys.modules.get(name)
        if module is not None:
            hook(module)
            return
        self._hooks.setdefault(name, []).append(hook)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._hooks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, lambda module: self._imported(fullname, module))
                return spec
        return None

    def _imported(self, name: str, module: ModuleType) -> None:
        for hook in self._hooks.pop(name, ()):
            hook(module)


class _Loader(importlib.abc.Loader):
    """The module's own loader, and `then` afterwards. It leaves no trace in the module."""

    def __init__(self, inner: importlib.abc.Loader, then: Hook) -> None:
        self._inner = inner
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._then(module)
