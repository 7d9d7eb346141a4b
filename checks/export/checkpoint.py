"""Files in which work that was stopped is kept: what it is about, how far it is, what it found.

JSON, `{"format": "lockstep-checkpoint", "version": 3, "about": {…}, "content": {…}}`. Nothing in
such a file is run, and what can be worked out again from its beginning does not stand in it. A file
is read only for the work that it is about, with the same sources of this program.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from checks.export.files import new_file
from checks.export.outside import file_content, json_object
from checks.export.trace.records import Json, converter, joined, structured
from engine.workloads.checked import NOTHING, brief
from spec.core.errors import InputError

FORMAT, VERSION = "lockstep-checkpoint", 3
_MOST_BYTES = 50_000_000
_ROOT = Path(__file__).parents[2]

ContentT = TypeVar("ContentT")


class CheckpointError(InputError):
    """A checkpoint that cannot be read or is about other work."""


def save(path: Path, about: Mapping[str, Any], content: Any) -> None:
    """Write a checkpoint; an older file at the path is replaced once the new one is whole.

    `about`: of JSON values, all that must be the same when the work goes on. `content`: a record.

    Raises:
        OSError: the file cannot be written.
    """
    written = {**_header(about), "content": converter().unstructure(content)}
    with new_file(path) as file:
        file.write(json.dumps(written, indent=1) + "\n")


def load(path: Path, about: Mapping[str, Any], content: type[ContentT]) -> ContentT:
    """Read the content of a checkpoint, a record of this class.

    Raises:
        CheckpointError: unreadable, cut off, of another version, or about other work.
    """
    try:
        found = json_object(file_content(path, _MOST_BYTES), "file")
        header = _header(about)
        require_equal("", {key: found.get(key) for key in header}, header)
        return structured(converter(), found.get("content"), content, "content")
    except InputError as error:
        raise CheckpointError(error.field, error.found, error.allowed).at(path) from None


@cache
def sources_digest(*parts: str, without: tuple[str, ...] = ()) -> str:
    """A digest of all modules and tables in these parts of the checkout: `spec`, or one file.

    Work that goes on under changed rules would end in a verdict on neither version. `without`:
    names of folders that are left out.
    """
    digest = blake2b(digest_size=8)
    for path in sorted(module for part in parts for module in _modules(part)):
        relative = path.relative_to(_ROOT)
        if not any(folder in relative.parts for folder in without):
            digest.update(str(relative).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def require_equal(field: str, found: Any, allowed: Any) -> None:
    """Raise unless both are equal; of objects and lists the first entry that differs is named.

    Raises:
        CheckpointError: they differ.
    """
    if isinstance(found, dict) and isinstance(allowed, dict):
        for key in allowed | found:
            require_equal(joined(field, key), found.get(key, NOTHING), allowed.get(key, NOTHING))
    elif _is_sequence(found) and _is_sequence(allowed) and len(found) == len(allowed):
        for index, (entry, due) in enumerate(zip(found, allowed, strict=True)):
            require_equal(joined(field, index), entry, due)
    elif type(found) is not type(allowed) or found != allowed:
        raise CheckpointError(field, brief(found), str(brief(repr(allowed))))


def _is_sequence(value: object) -> bool:
    return isinstance(value, list | tuple)


def _modules(part: str) -> Iterable[Path]:
    place = _ROOT / part
    return [place] if place.is_file() else [*place.rglob("*.py"), *place.rglob("*.toml")]


def _header(about: Mapping[str, Any]) -> Json:
    return {"format": FORMAT, "version": VERSION, "about": json.loads(json.dumps(about))}
