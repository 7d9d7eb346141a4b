"""A driver of a release into which one defect is put back: `driver.py sendnn CHOSEN`.

It is run by the Python of the release's environment. CHOSEN is a file with the name of a defect of
`sendnn.toml`, read again before each episode, so that one process tries all defects; with an
empty file the release is unchanged. A defect replaces some tokens of one function, named by their
numbers, without comments and line ends: nothing of the release's source stands here.
"""

# mypy: disable-error-code="import-not-found"

import inspect
import sys
import tomllib
from collections.abc import Callable
from hashlib import blake2b
from importlib import import_module
from io import StringIO
from pathlib import Path
from textwrap import dedent, indent
from tokenize import COMMENT, generate_tokens
from typing import Any

from lockstep_driver import Json, serve

DRIVERS = {"sendnn": "Sendnn", "vllm_v1": "VllmV1"}  # the class of each module


def put_back(defect: Json, table: Json) -> Callable[[], None]:
    """Put the defect into its function; return a function that removes it.

    Raises:
        ValueError: the function is not the one whose tokens were counted.
    """
    *names, function = defect["at"].split(".")
    holder = import_module(table["modules"][defect["at"].split(".")[0]])
    for name in names:
        holder = getattr(holder, name)
    as_it_is = vars(holder)[function]
    plain = inspect.unwrap(getattr(as_it_is, "__func__", as_it_is))
    source = dedent(inspect.getsource(plain))
    if blake2b(source.encode(), digest_size=4).hexdigest() != table["sources"][defect["at"]]:
        raise ValueError(f"{defect['at']} is another than the one whose tokens were counted")
    setattr(holder, function, _compiled(_changed(source, defect), function, plain, holder))
    return lambda: setattr(holder, function, as_it_is)


def _changed(source: str, defect: Json) -> str:
    """The source with the defect in it."""
    first, end = defect["tokens"]
    places = _places(source)
    begin, behind = places[first][0], places[end - 1][1]
    return f"{source[:begin]}{defect['new']} {source[behind:]}"


def _places(source: str) -> list[tuple[int, int]]:
    """Where each token begins and ends."""
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    return [
        (lines[token.start[0] - 1] + token.start[1], lines[token.end[0] - 1] + token.end[1])
        for token in generate_tokens(StringIO(source).readline)
        if token.string.strip() and token.type != COMMENT
    ]


def _compiled(source: str, function: str, plain: Any, holder: Any) -> Any:
    """The function of this source, in the module of the plain one and in its class."""
    made: Json = {}
    code = f"def make(__class__):\n{indent(source, '    ')}\n    return {function}\n"
    exec(compile(code, plain.__code__.co_filename, "exec"), plain.__globals__, made)
    return made["make"](holder)


def with_defects(name: str, chosen: Path) -> type:
    """The driver of a release, with the chosen defect in each of its episodes."""
    released: Any = getattr(import_module(name), DRIVERS[name])
    table = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))

    class WithDefect(released):  # type: ignore[misc]
        undo: Callable[[], None] = staticmethod(lambda: None)

        def start(self, config: Json) -> None:
            """Put the chosen defect back, and no other, then begin the episode."""
            self.undo()
            defect = chosen.read_text(encoding="utf-8")
            self.undo = put_back(table[defect], table) if defect else lambda: None
            super().start(config)

    return WithDefect


if __name__ == "__main__":
    serve(with_defects(sys.argv[1], Path(sys.argv[2])))
