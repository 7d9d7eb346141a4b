"""Plant a mutant in the running program: every function with the code gets the mutated code.

The existing function objects are changed, so that every module that imported, decorated or stored
one of them runs the mutant. It stays for the rest of the process.
"""

import gc
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from checks.mutants.operators import OPPOSITES
from checks.mutants.rooms import PACKAGE_PREFIX, ROOT
from checks.mutants.sites import Mutant, find_mutants, mutated
from spec.core import arithmetic

MUTANT = "LOCKSTEP_MUTANT"  # environment variable: the id of the mutant to plant in tests


def plant_named(id_: str) -> None:
    """Plant the mutant with this id.

    Raises:
        KeyError: there is no such mutant.
    """
    path = id_.partition(":")[0]
    source = (ROOT / path).read_text(encoding="utf-8")
    mutant = next((mutant for mutant in find_mutants(source, path) if mutant.id == id_), None)
    if mutant is None:
        raise KeyError(id_)
    plant(mutant)


def module_functions(path: str) -> list[FunctionType]:
    """Every existing function object of the module with this path.

    Raises:
        ImportError: the module cannot be imported.
    """
    _module(path)
    file = str(ROOT / path)
    gc.unfreeze()  # `get_objects` leaves out frozen objects
    functions = (item for item in gc.get_objects() if type(item) is FunctionType)
    return [function for function in functions if function.__code__.co_filename == file]


def _module(path: str) -> ModuleType:
    name = ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
    return import_module(f"{PACKAGE_PREFIX}{name}")


def plant(mutant: Mutant, functions: Iterable[FunctionType] | None = None) -> bool:
    """Plant the mutant; False if it does not change the program.

    `functions`: those of its module, if the caller has them.

    Raises:
        KeyError: there is no such mutant.
        ImportError: the module cannot be imported.
    """
    module, path = _module(mutant.path), ROOT / mutant.path
    for other in OPPOSITES:  # the module may not have imported it
        if hasattr(arithmetic, other):
            vars(module).setdefault(other, getattr(arithmetic, other))
    source = path.read_text(encoding="utf-8")
    right = compile(source, str(path), "exec")
    wrong = compile(mutated(source, mutant), str(path), "exec")
    changed = {old: new for old, new in _pairs(right, wrong) if not _is_same(old, new)}
    planted = 0
    for function in module_functions(mutant.path) if functions is None else functions:
        if function.__code__ in changed:
            function.__code__ = changed[function.__code__]
            planted += 1
    return planted > 0


def _pairs(right: CodeType, wrong: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Each function's code in the right and the wrong module, inner functions first."""
    right_codes, wrong_codes = _inside(right), _inside(wrong)
    if len(right_codes) == len(wrong_codes):
        for right_code, wrong_code in zip(right_codes, wrong_codes, strict=True):
            yield from _pairs(right_code, wrong_code)
            if right_code.co_freevars == wrong_code.co_freevars:
                yield right_code, wrong_code


def _inside(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _is_same(code: CodeType, other: CodeType) -> bool:
    """True if both codes are equal, apart from line numbers."""
    return (
        code.co_code == other.co_code
        and code.co_names == other.co_names
        and code.co_varnames == other.co_varnames
        and len(code.co_consts) == len(other.co_consts)
        and all(map(_is_same_constant, code.co_consts, other.co_consts))
    )


def _is_same_constant(constant: object, other: object) -> bool:
    if isinstance(constant, CodeType) and isinstance(other, CodeType):
        return _is_same(constant, other)
    return type(constant) is type(other) and constant == other
