"""A driver of a release into which one defect is put back: `driver.py sendnn CHOSEN`.

It is run by the Python of the release's environment. CHOSEN is a file with the name of a defect of
`sendnn.toml`, which is read anew before each episode, so that one process tries them all; with
nothing in it the release is as it is. A defect replaces a piece of the source of one function.
"""

# mypy: disable-error-code="import-not-found"

import inspect
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from lockstep_driver import Json, serve

DRIVERS = {"sendnn": "Sendnn", "vllm_v1": "VllmV1"}  # the class of each module


def put_back(defect: Json, modules: Json) -> Callable[[], None]:
    """Change the function that the defect is in; what undoes it is returned."""
    *names, function = defect["at"].split(".")
    holder = import_module(modules[defect["at"].split(".")[0]])
    for name in names:
        holder = getattr(holder, name)
    as_it_is = vars(holder)[function]
    setattr(holder, function, changed(holder, as_it_is, function, defect))
    return lambda: setattr(holder, function, as_it_is)


def changed(holder: Any, as_it_is: Any, function: str, defect: Json) -> Any:
    """The function with the defect, in its own module and class."""
    plain = inspect.unwrap(getattr(as_it_is, "__func__", as_it_is))
    source = dedent(inspect.getsource(plain))
    if source.count(defect["old"]) != 1:
        raise ValueError(
            f"{defect['at']} has {defect['old']!r} {source.count(defect['old'])} times"
        )
    body = indent(source.replace(defect["old"], defect["new"]), "    ")
    made: Json = {}
    code = f"def make(__class__):\n{body}\n    return {function}\n"
    exec(compile(code, defect["at"], "exec"), plain.__globals__, made)
    return made["make"](holder)


def with_defects(name: str, chosen: Path) -> type:
    """The driver of a release, with the chosen defect in each of its episodes."""
    released: Any = getattr(import_module(name), DRIVERS[name])
    table = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
    modules = table.pop("modules")

    class WithDefect(released):  # type: ignore[misc]
        undo: Callable[[], None] = staticmethod(lambda: None)

        def start(self, config: Json) -> None:
            """Put back what is chosen, and nothing else, then begin the episode."""
            self.undo()
            defect = chosen.read_text(encoding="utf-8")
            self.undo = put_back(table[defect], modules) if defect else lambda: None
            super().start(config)

    return WithDefect


if __name__ == "__main__":
    serve(with_defects(sys.argv[1], Path(sys.argv[2])))
