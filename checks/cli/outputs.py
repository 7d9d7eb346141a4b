"""Input and output files of a command, checked together before it starts."""

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
    """An output file; a path that cannot be written is refused before the command works."""

    name = "path"

    def convert(
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        path = Path(value)
        if str(path) != STANDARD_OUTPUT:
            refuse_unwritable(path)
        return path


class _NewDirectory(click.ParamType[Path]):
    """An output directory, created when needed; refused like an output file."""

    name = "path"

    def convert(
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        path = Path(value)
        option = "directory" if param is None else param.opts[0]
        try:
            there = next(
                parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists()
            )
            if not there.is_dir():
                raise InputError(option, str(path), "a directory, or what can become one")
            TemporaryFile(dir=there).close()
        except (OSError, ValueError) as error:  # ValueError: a null character in the name
            raise cannot("write", path, error, InputError) from None
        return path


class _Input(click.Path):
    """An input file."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)


class _NameOrFile(click.types.StringParamType):
    """A name, or a file."""


PATH = _Input()
NAME_OR_FILE = _NameOrFile()
NEW_FILE = _NewFile()
KEPT_FILE = _NewFile()
"""A file that is read if it exists, and written."""
NEW_DIRECTORY = _NewDirectory()


class Command(click.Command):
    """A command that refuses an output file that is also an input or another output."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            InputError: an output is an input, or another output.
        """
        seen: dict[object, tuple[str, bool]] = {}
        for param, path in sorted(_files(ctx), key=lambda pair: _is_output(pair[0])):
            here = _identity(path)
            other, is_output = seen.get(here, ("", False))
            if other and (is_output or _is_output(param)):
                allowed = f"another file than that of {other}"
                raise InputError(_shown(param), str(path), allowed)
            seen[here] = _shown(param), _is_output(param)
        return super().invoke(ctx)


def _files(ctx: click.Context) -> Iterator[tuple[click.Parameter, Path]]:
    """The input and output files that options and arguments name, except devices and pipes."""
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(param.type, _Input | _NameOrFile | _NewFile) and item is not None:
                path = Path(item)
                if str(path) == STANDARD_OUTPUT or _may_be_a_file(path):
                    yield param, path


def _may_be_a_file(path: Path) -> bool:
    """False for a terminal, a pipe, the null device, and a name that no file can have."""
    try:
        return path.is_file() or not path.exists()
    except (OSError, ValueError):
        return False


def _is_output(param: click.Parameter) -> bool:
    return isinstance(param.type, _NewFile)


def _identity(path: Path) -> object:
    """A value that is equal for two paths of the same file."""
    if path.is_file():
        status = path.stat()
        return status.st_dev, status.st_ino
    return str(path) if str(path) == STANDARD_OUTPUT else os.path.realpath(path)


def _shown(param: click.Parameter) -> str:
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
