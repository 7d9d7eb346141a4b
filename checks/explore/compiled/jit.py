"""Plain functions that numba compiles if it is installed, and the cache of the compiled code.

Compiled code is cached for the next run under a digest of all its sources: numba itself does not
notice that a called function has changed. A damaged file is compiled again. Without numba, or with
`NUMBA_DISABLE_JIT=1`, the functions run as plain Python.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from checks.explore.compiled import IS_INSTALLED
from checks.export.checkpoint import sources_digest
from checks.export.kept import kept_folder, sealed, unsealed

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_PACKAGES = sorted(Path(__file__).parents[2].glob("policies/*/compiled"))


def _folder() -> Path:
    """The cache folder for code compiled from the present sources."""
    policies = [package.parent.name for package in _PACKAGES]
    own = [f"checks/policies/{policy}/compiled" for policy in policies]
    specified = ["spec/core", *(f"spec/{policy}" for policy in policies)]
    return kept_folder("compiled", sources_digest(*specified, "checks/explore/compiled", *own))


FOLDER = _folder()

if IS_INSTALLED:
    import numba
    from numba.core.caching import IndexDataCacheFile

    _njit: Any = numba.njit  # its types do not have all options

    _Files: Any = IndexDataCacheFile  # carries no types

    class _SealedFiles(_Files):  # type: ignore[misc]
        """Numba's cache files with a checksum: a damaged file counts as missing."""

        @contextmanager
        def _open_for_write(self, filepath: str) -> Iterator[BytesIO]:
            with super()._open_for_write(filepath) as file:
                content = BytesIO()
                yield content
                file.write(sealed(content.getvalue()))

        def _load_index(self) -> dict[Any, str]:
            index: dict[Any, str] = super()._load_index() if _is_whole(self._index_path) else {}
            return index

        def _load_data(self, name: str) -> Any:
            path = self._data_path(name)
            if not _is_whole(path):
                raise OSError(f"{path} is damaged")  # to numba like a file that is gone
            return super()._load_data(name)

    def _compiled(function: FunctionT, **options: bool) -> FunctionT:
        # Nothing is allocated, so no array needs a count of its holders (`_nrt`). Threads that
        # expand states at the same time need not wait for each other (`nogil`).
        numba.config.CACHE_DIR = str(FOLDER)  # type: ignore[attr-defined]
        made: FunctionT = _njit(cache=True, error_model="numpy", nogil=True, _nrt=False, **options)(
            function
        )
        if hasattr(made, "_cache"):  # not where functions stay Python
            made._cache._cache_file.__class__ = _SealedFiles
        return made

else:

    def _compiled(function: FunctionT, **_options: bool) -> FunctionT:
        return function


def entry(function: FunctionT) -> FunctionT:
    """The function, compiled at the first call with arguments of these types."""
    return _compiled(function)


def compiled(function: FunctionT) -> FunctionT:
    """The function, compiled together with its callers, which must be compiled functions too.

    Most of a function's compile time goes into the wrapper for calls from Python, left out here.
    """
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def generated_module(name: str, source: Callable[[], str]) -> ModuleType:
    """A module of generated source, generated once and cached next to its compiled code."""
    path = FOLDER / f"{name}.py"
    if not _is_whole(path):
        part = path.with_suffix(f".{os.getpid()}")  # whole before it has its name
        part.write_bytes(sealed(source().encode()))
        part.replace(path)
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # where numba looks for it when it loads what it compiled
    exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
    return module


def _is_whole(path: str | Path) -> bool:
    try:
        return unsealed(Path(path).read_bytes()) is not None
    except OSError:
        return False
