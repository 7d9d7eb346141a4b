"""Where what takes long is kept from one call to the next."""

import os
from pathlib import Path
from tempfile import gettempdir


def kept_folder(kind: str, digest: str) -> Path:
    """The folder for things of this kind and of these sources: the user's cache, else a temporary.

    Raises:
        OSError: neither can be written to.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    for parent in (home / "lockstep", Path(gettempdir()) / f"lockstep-{os.getuid()}"):
        folder = parent / kind / digest
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise OSError(f"neither {home} nor {gettempdir()} can be written to")
