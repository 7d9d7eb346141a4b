"""Plain functions that numba compiles where it is installed, and where what it made is kept.

What is compiled is kept for the next run, under a digest of all sources that it came from: numba
itself would not notice that a function called by another has changed. Without numba, or with
`NUMBA_DISABLE_JIT=1`, the same functions run as the Python that they are.
"""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from checks.export.checkpoint import sources_digest
from checks.export.kept import kept_folder

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_PACKAGES = sorted(Path(__file__).parents[2].glob("policies/*/compiled"))
IS_INSTALLED = find_spec("numba") is not None


def _folder() -> Path:
    """Where what was compiled of these sources is kept."""
    own = [f"checks/policies/{one.parent.name}/compiled" for one in _PACKAGES]
    return kept_folder("compiled", sources_digest("spec", "checks/explore/compiled", *own))


FOLDER = _folder()

if IS_INSTALLED:
    import numba

    _njit: Any = numba.njit  # its types do not have all options

    def _compiled(function: FunctionT, **options: bool) -> FunctionT:
        # Nothing is allocated, so no array needs a count of its holders (`_nrt`). Threads that
        # expand states at the same time need not wait for each other (`nogil`).
        numba.config.CACHE_DIR = str(FOLDER)  # type: ignore[attr-defined]
        made: FunctionT = _njit(cache=True, error_model="numpy", nogil=True, _nrt=False, **options)(
            function
        )
        return made

else:

    def _compiled(function: FunctionT, **_options: bool) -> FunctionT:
        return function


def entry(function: FunctionT) -> FunctionT:
    """The function, compiled when it is first called with arguments of these types."""
    return _compiled(function)


def compiled(function: FunctionT) -> FunctionT:
    """The function, compiled with whatever calls it: compiled functions, nothing else.

    What a function needs to be called from Python takes most of the time to compile it.
    """
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def module_of(name: str, source: Callable[[], str]) -> ModuleType:
    """A module of generated source, which is made once and kept next to what is compiled of it."""
    path = FOLDER / f"{name}.py"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")  # whole before it has its name
        part.write_text(source(), encoding="utf-8")
        part.replace(path)
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # where numba looks for it when it loads what it compiled
    spec.loader.exec_module(module)
    return module
