"""The cache of this user: compiled code and other results that take long to make.

Code is loaded from the cache, so a folder is used only if this user owns it and no other user can
write to it.
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
_MAKERS = ("llvmlite", "numba", "numpy", "z3-solver")  # their versions are part of a folder's name


def kept_folder(kind: str, digest: str) -> Path:
    """The folder for files of a kind, which depend on the sources with this digest.

    It is below `LOCKSTEP_CACHE`, the user's cache directory, or a folder of this user among the
    temporary ones: the first that is private. If none is, it is a new folder that is removed when
    this process ends.

    Raises:
        OSError: no folder can be made.
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
    """The places where the cache may be, the best first."""
    own = os.environ.get(CACHE_VARIABLE)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    temporary = Path(gettempdir()) / f"lockstep-{os.geteuid()}"
    return [*([Path(own)] if own else []), home / "lockstep", temporary]


def _is_private(folder: Path) -> bool:
    """True if only this user can and could write to the folder, which is made if it is missing.

    Permissions of others to read are taken away. A folder that others can write to is not used:
    files of theirs may be in it.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or others_write:
            return False
        if stat.S_IMODE(status.st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _fresh() -> Path:
    """A new folder, which processes that this one starts use, too."""
    folder = mkdtemp(prefix="lockstep-")
    os.environ[CACHE_VARIABLE] = folder
    atexit.register(_remove, folder, os.getpid())
    return Path(folder)


def _remove(folder: str, owner: int) -> None:
    """Remove the folder, unless this process is a fork of its owner."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _makers() -> str:
    """A digest of the machine's kind and of the versions of the packages that make the files."""
    versions = [platform.machine()]
    for package in _MAKERS:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    return blake2b("\n".join(versions).encode(), digest_size=4).hexdigest()


# --- damaged files -------------------------------------------------------------------------


def sealed(content: bytes) -> bytes:
    """The content with its digest at the end, written as a comment of Python."""
    return content + _seal(content)


def unsealed(content: bytes) -> bytes | None:
    """The content that was sealed; None if it is damaged."""
    whole, seal = content[:-_SEAL_BYTES], content[-_SEAL_BYTES:]
    return whole if _seal(whole) == seal else None


def _seal(content: bytes) -> bytes:
    return b"\n# " + blake2b(content, digest_size=16).hexdigest().encode()


_SEAL_BYTES = len(_seal(b""))
