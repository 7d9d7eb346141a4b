"""A stopped search, in memory or in a file, to be resumed with exactly the same counts.

The file is a header line in JSON and a Python pickle. It is **not portable and not a format for
exchange**: reading a pickle can run any code, so open only files that you wrote yourself. The
header is read and compared first; nothing of the rest is touched unless it fits.
"""

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any, BinaryIO, Generic

from attrs import define, fields, frozen

from checks.explore.model import StateT
from checks.explore.store import Store
from spec.core.errors import InputError

FORMAT, VERSION = "lockstep-checkpoint", 2
_HEADER_BYTES_MAX = 100_000


class CheckpointError(InputError):
    """A checkpoint that cannot be read or belongs to another search."""


@frozen
class Setup:
    """What must be the same in the search that resumes."""

    order: str
    keep_going: bool
    properties: tuple[str, ...]
    witnesses: tuple[str, ...]


@define
class Checkpoint(Generic[StateT]):
    """Where a search stopped. Resuming takes the store over, so it can be resumed once."""

    setup: Setup
    _store: Store[StateT] | None

    @property
    def store(self) -> Store[StateT]:
        """The store.

        Raises:
            CheckpointError: a search was resumed from this checkpoint already.
        """
        if self._store is None:
            raise CheckpointError("checkpoint", "used up", "to be resumed once; save and load it")
        return self._store

    def take(self, setup: Setup) -> Store[StateT]:
        """Hand the store over to a search.

        Raises:
            CheckpointError: used up, or made by a search with another setup.
        """
        for key in (field.name for field in fields(Setup)):
            require_equal(f"checkpoint, {key}", getattr(self.setup, key), getattr(setup, key))
        store, self._store = self.store, None
        return store


def require_equal(field: str, found: object, allowed: object) -> None:
    """Raise unless both are equal.

    Raises:
        CheckpointError: they differ.
    """
    if found != allowed:
        raise CheckpointError(field, found, repr(allowed))


def save(checkpoint: Checkpoint[Any], path: Path, fingerprint: str) -> None:
    """Write a checkpoint; an older file at the path is replaced only once the new one is whole.

    `fingerprint` says which model and configuration this is; `load` wants the same one.

    Raises:
        OSError: the file cannot be written.
        CheckpointError: the checkpoint was resumed from already.
    """
    store = checkpoint.store
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(json.dumps(_header(fingerprint)).encode() + b"\n")
            pickle.dump((checkpoint.setup, store), file, pickle.HIGHEST_PROTOCOL)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load(path: Path, fingerprint: str) -> Checkpoint[Any]:
    """Read a checkpoint. Unpickles: only for files that you wrote yourself.

    Raises:
        CheckpointError: unreadable, damaged, of another version of the format or of Python, or
            with another fingerprint.
    """
    try:
        with path.open("rb") as file:
            _require_header(file, fingerprint)
            return Checkpoint(*_unpickled(file))
    except OSError as error:
        raise CheckpointError("file", error.strerror, "a readable checkpoint").at(path) from error
    except CheckpointError as error:
        raise error.at(path) from error.__cause__


def _header(fingerprint: str) -> dict[str, object]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "fingerprint": fingerprint,
    }


def _require_header(file: BinaryIO, fingerprint: str) -> None:
    line = file.readline(_HEADER_BYTES_MAX)
    try:
        header = json.loads(line)
    except ValueError as error:
        raise CheckpointError("header", line[:40], "one line of JSON") from error
    found = header if isinstance(header, dict) else {}
    for key, expected in _header(fingerprint).items():
        require_equal(key, found.get(key), expected)


def _unpickled(file: BinaryIO) -> tuple[Setup, Store[Any]]:
    try:
        setup, store = pickle.load(file)
    except Exception as error:  # a damaged pickle can raise anything
        raise CheckpointError(
            "content", f"{type(error).__name__}: {error}", "a whole file"
        ) from error
    return setup, store
