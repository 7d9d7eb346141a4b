"""Makes the wheel: of the folders of the checkout one package, `lockstep`.

In a checkout `spec`, `reference`, `engine` and `checks` are packages of their own. Installed under
these names they would collide with those of others, so the wheel has `lockstep.spec` and so on, and
every import in it says so. Editable installations stay as the checkout is.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "lockstep"
ROOMS = ("spec", "reference", "engine", "checks")
_DATA = ("examples",)  # copied as they are
_NOT_OURS = {"__pycache__", "node_modules"}
# A module of ours in a list of settings: the extension that the book's links come from.
_IN_A_LIST = re.compile(rb"^( *- )(?=checks\.)", re.MULTILINE)
_BY_NAME = ("import_module", "find_spec", "__import__")  # calls that take the name of a module


class OnePackage(BuildHookInterface[Any]):
    """The build hook of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Have the files of the one package built in, unless the installation is editable."""
        if version == "editable":
            return
        self._made = TemporaryDirectory()
        root, made = Path(self.root), Path(self._made.name)
        for path, name in files(root):
            target = made / name
            target.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes()
            if path.suffix == ".py":
                content = moved(content, str(path))
            target.write_bytes(content)
        build_data["force_include"][str(made)] = "/"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was made for the wheel."""
        if version != "editable":
            self._made.cleanup()


def files(root: Path) -> Iterator[tuple[Path, str]]:
    """Each file of a checkout that is installed, and its path in the wheel."""
    for folder in (PACKAGE, *ROOMS, *_DATA):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_file() and _NOT_OURS.isdisjoint(path.parts):
                yield path, name if folder == PACKAGE else f"{PACKAGE}/{name}"


def moved(source: bytes, path: str) -> bytes:
    """The module with its imports of ours as they are inside the one package.

    Lines stay where they are, and nothing else changes.

    Raises:
        ValueError: it imports, or names in a call, a module of ours in a way that cannot be moved.
    """
    places = sorted(_places(ast.parse(source), path), reverse=True)
    lines = source.splitlines(keepends=True)
    for line, column, pattern, replacement in places:
        before, after = lines[line - 1][:column], lines[line - 1][column:]
        lines[line - 1] = before + re.sub(pattern, replacement, after, count=1)
    return b"".join(lines)


def _places(tree: ast.Module, path: str) -> Iterator[tuple[int, int, bytes, bytes]]:
    """Line, column in bytes, what stands there, and what is to stand there instead."""
    inside = PACKAGE.encode()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(level=0, module=str(name)) if _is_ours(name):
                yield node.lineno, node.col_offset, rb"^from\s+", b"from " + inside + b"."
            case ast.Import(names=[ast.alias(name=name, asname=None)]) if name in ROOMS:
                replacement = b"from " + inside + b" import "
                yield node.lineno, node.col_offset, rb"^import\s+", replacement
            case ast.Import(names=names):
                for one in names:
                    if _is_ours(one.name) and one.asname is None:
                        raise _cannot_be_moved(path, node)
                    if _is_ours(one.name):
                        yield one.lineno, one.col_offset, rb"^", inside + b"."
            case ast.Call(func=function, args=[first, *_]) if ast.unparse(function).endswith(
                _BY_NAME
            ) and _is_ours(_beginning(first)):
                raise _cannot_be_moved(path, node)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in ROOMS


def _beginning(argument: ast.expr) -> str:
    """The text with which an argument begins, as far as it stands in the source."""
    match argument:
        case (
            ast.Constant(value=str(text))
            | ast.JoinedStr(values=[ast.Constant(value=str(text)), *_])
        ):
            return text
    return ""


def _cannot_be_moved(path: str, node: ast.AST) -> ValueError:
    line = getattr(node, "lineno", "?")
    allowed = "from … import …, import … as …, or a name made of __package__"
    return ValueError(f"{path}:{line}: {ast.unparse(node)} cannot be moved; write {allowed}")
