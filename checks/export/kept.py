"""The cache: what takes long to make is kept from one call to the next, where only we can write.

Code is loaded from there, so a folder counts only if this user owns it and no other user can write
into it.
"""

import atexit
import os
import platform
import shutil
import stat
import sys
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import gettempdir, mkdtemp

CACHE_VARIABLE = "LOCKSTEP_CACHE"
_MAKERS = ("llvmlite", "numba", "numpy", "z3-solver")  # whose versions show in what is kept


def kept_folder(kind: str, digest: str) -> Path:
    """The folder for things of this kind and of these sources, made by this Python.

    It is below `LOCKSTEP_CACHE`, the user's cache, or a folder of this user among the temporary
    ones; the first that is private, else a fresh one that goes with this process.

    Raises:
        OSError: no folder can be made at all.
    """
    name = f"{digest}-{sys.implementation.cache_tag}-{_makers()}"
    for place in _places():
        folder = place / kind / name
        if all(map(_is_private, (place, folder.parent, folder))):
            return folder
    folder = _fresh() / kind / name
    folder.mkdir(parents=True, mode=0o700)
    return folder


def _places() -> list[Path]:
    """Where the cache may be, the best place first."""
    own = os.environ.get(CACHE_VARIABLE)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    temporary = Path(gettempdir()) / f"lockstep-{os.geteuid()}"
    return [*([Path(own)] if own else []), home / "lockstep", temporary]


def _is_private(folder: Path) -> bool:
    """True if the folder is there, made now if need be, and was only ever written to by us.

    What others may read is closed to them. What they could write to is never taken: something of
    theirs may lie in it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        others_wrote = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or others_wrote:
            return False
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _fresh() -> Path:
    """A new folder; processes that this one starts have it, too."""
    folder = mkdtemp(prefix="lockstep-")
    os.environ[CACHE_VARIABLE] = folder
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, owner: int) -> None:
    """Remove the folder, unless this process only inherits it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _makers() -> str:
    """A digest of the machine and of the versions of what makes things to keep."""
    said = [platform.machine()]
    for package in _MAKERS:
        try:
            said.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            said.append(f"no {package}")
    return blake2b("\n".join(said).encode(), digest_size=4).hexdigest()


# --- files that are whole -------------------------------------------------------------------------


def sealed(content: bytes) -> bytes:
    """The content with its digest at the end: a comment, where the content is Python."""
    return content + _seal(content)


def unsealed(content: bytes) -> bytes | None:
    """What was sealed; None if it is damaged."""
    said, seal = content[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
    return said if _seal(said) == seal else None


def _seal(content: bytes) -> bytes:
    return b"\n# " + blake2b(content, digest_size=16).hexdigest().encode()


_SEAL_BYTES = len(_seal(b""))
