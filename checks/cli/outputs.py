"""Files that a command reads and writes: looked at, all together, before it does anything."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from checks.export.files import refuse_unwritable
from spec.core.errors import InputError, cannot

STANDARD_OUTPUT = "-"


class _NewFile(click.ParamType[Path]):
    """A file that a command writes in the end: refused before its work if that will not do."""

    name = "path"

    def convert(
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        path = Path(value)
        if str(path) != STANDARD_OUTPUT:
            refuse_unwritable(path)
        return path


class _NewDirectory(click.ParamType[Path]):
    """A directory that a command makes when it has something to put there; the same."""

    name = "path"

    def convert(
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        path = Path(value)
        option = "directory" if param is None else param.opts[0]
        try:
            there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
            if not there.is_dir():
                raise InputError(option, str(path), "a directory, or what can become one")
            TemporaryFile(dir=there).close()
        except (OSError, ValueError) as error:  # ValueError: a null character in the name
            raise cannot("write", path, error, InputError) from None
        return path


class _Input(click.Path):
    """A file that a command reads."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)


class _NameOrFile(click.types.StringParamType):
    """The name of something, or a file that is it."""


PATH = _Input()
NAME_OR_FILE = _NameOrFile()
NEW_FILE = _NewFile()
KEPT_FILE = _NewFile()
"""A file that is read, if it is there, and written."""
NEW_DIRECTORY = _NewDirectory()


class Command(click.Command):
    """A command that refuses to write over what it reads, or two files into one."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            InputError: an output is an input, or another output.
        """
        seen: dict[object, tuple[str, bool]] = {}
        for param, path in sorted(_files(ctx), key=lambda one: _is_output(one[0])):
            here = _identity(path)
            other, is_output = seen.get(here, ("", False))
            if other and (is_output or _is_output(param)):
                allowed = f"another file than that of {other}"
                raise InputError(_shown(param), str(path), allowed)
            seen[here] = _shown(param), _is_output(param)
        return super().invoke(ctx)


def _files(ctx: click.Context) -> Iterator[tuple[click.Parameter, Path]]:
    """The files that options and arguments name, as far as it matters which is which."""
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(param.type, _Input | _NameOrFile | _NewFile) and one is not None:
                path = Path(one)
                if str(path) == STANDARD_OUTPUT or _may_be_a_file(path):
                    yield param, path


def _may_be_a_file(path: Path) -> bool:
    """Not so: a terminal, a pipe, the null device, a name that no file can have."""
    try:
        return path.is_file() or not path.exists()
    except (OSError, ValueError):
        return False


def _is_output(param: click.Parameter) -> bool:
    return isinstance(param.type, _NewFile)


def _identity(path: Path) -> object:
    """Equal for equal files, by whatever name."""
    if path.is_file():
        found = path.stat()
        return found.st_dev, found.st_ino
    return str(path) if str(path) == STANDARD_OUTPUT else os.path.realpath(path)


def _shown(param: click.Parameter) -> str:
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
