"""A mutant in the running program: every function that has the code gets the wrong one.

The code is put into the functions that are there, so that every module that imported, decorated or
stored one of them sees it. It stays for the rest of the process.
"""

import gc
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from checks.mutants.operators import OPPOSITES
from checks.mutants.rooms import INSTALLED_IN, ROOT
from checks.mutants.sites import Mutant, mutants_of, mutated
from spec.core import arithmetic

MUTANT = "LOCKSTEP_MUTANT"  # the environment variable that has the id of one to be planted in tests


def plant_named(id_: str) -> None:
    """Put the mutant of this id in.

    Raises:
        KeyError: there is none.
    """
    path = id_.partition(":")[0]
    source = (ROOT / path).read_text(encoding="utf-8")
    mutant = next((one for one in mutants_of(source, path) if one.id == id_), None)
    if mutant is None:
        raise KeyError(id_)
    plant(mutant)


def functions_of(path: str) -> list[FunctionType]:
    """Every function that there is of the module with this path, however it is kept.

    Raises:
        ImportError: the module cannot be imported.
    """
    _module(path)
    file = str(ROOT / path)
    gc.unfreeze()  # what is frozen is not among the objects
    functions = (one for one in gc.get_objects() if type(one) is FunctionType)
    return [one for one in functions if one.__code__.co_filename == file]


def _module(path: str) -> ModuleType:
    name = ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
    return import_module(f"{INSTALLED_IN}{name}")


def plant(mutant: Mutant, functions: Iterable[FunctionType] | None = None) -> bool:
    """Put the mutant in; False if the program is the same with it.

    `functions`: those of its module, where they are known.

    Raises:
        KeyError: there is no such mutant.
        ImportError: the module cannot be imported.
    """
    module, path = _module(mutant.path), ROOT / mutant.path
    for other in OPPOSITES:  # which the module need not have imported
        if hasattr(arithmetic, other):
            vars(module).setdefault(other, getattr(arithmetic, other))
    source = path.read_text(encoding="utf-8")
    right = compile(source, str(path), "exec")
    wrong = compile(mutated(source, mutant), str(path), "exec")
    changed = {old: new for old, new in _pairs(right, wrong) if not _is_same(old, new)}
    planted = 0
    for function in functions_of(mutant.path) if functions is None else functions:
        if function.__code__ in changed:
            function.__code__ = changed[function.__code__]
            planted += 1
    return planted > 0


def _pairs(right: CodeType, wrong: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The code of everything that is defined in the module, on both sides, the inner ones first."""
    inner, other = _inside(right), _inside(wrong)
    if len(inner) == len(other):
        for one, two in zip(inner, other, strict=True):
            yield from _pairs(one, two)
            if one.co_freevars == two.co_freevars:
                yield one, two


def _inside(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def _is_same(one: CodeType, other: CodeType) -> bool:
    """True if both do the same, wherever their lines are."""
    return (
        one.co_code == other.co_code
        and one.co_names == other.co_names
        and one.co_varnames == other.co_varnames
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_is_same_constant, one.co_consts, other.co_consts))
    )


def _is_same_constant(one: object, other: object) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return _is_same(one, other)
    return type(one) is type(other) and one == other
