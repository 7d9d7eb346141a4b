"""The Python runtime of live examples: interpreter, reference and rules in one script.

The script contains the interpreter (the package `pyodide`, locked in `web/`), its standard library,
the project's sources and the packages that they need. A page fetches nothing from the network and
works from file://.
"""

import io
import json
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from fcntl import LOCK_EX, flock
from gzip import compress
from importlib.metadata import files
from pathlib import Path, PurePath
from zipfile import ZIP_DEFLATED, ZipFile

from checks.export.files import as_line, new_file
from checks.export.pages.assets import WEB, read
from checks.export.pages.situation import Json
from spec.core.errors import InputError

RUNTIME = "runtime.js"
ROOT = Path(__file__).parents[3]
_CHECKS = __name__.rpartition(".export.")[0]  # an installation puts it into another package
MODULE = f"{_CHECKS}.harness.views.live"  # the one that runs in the browser
# The project's modules that a live example imports, and the packages that they import.
_OURS = (
    *("spec", "reference", "engine/core", "engine/workloads"),
    *("checks/export", "checks/explore", "checks/harness", "checks/policies"),
)
_ALONE = (
    *("__init__.py", "checks/__init__.py", "checks/registry.py", "checks/remembered.py"),
    "engine/__init__.py",
)
_EXCLUDED = {"compiled", "paging", "driver", "web"}
_PACKAGES = ("attrs", "cattrs", "typing_extensions")
_KINDS = {".py", ".toml"}


def write_runtime(directory: Path) -> Path:
    """Write `runtime.js` into the directory.

    Raises:
        InputError: npm is missing, or cannot install the interpreter.
        OSError: the file cannot be written.
    """
    path = directory / RUNTIME
    with new_file(path) as file:
        file.write(f"document.currentScript.lockstep = {as_line(_parts())};\n")
    return path


def _parts() -> Json:
    interpreter = _interpreter()
    packed = {
        "pyodide": "pyodide.mjs",
        "asm": "pyodide.asm.mjs",
        "wasm": "pyodide.asm.wasm",
        "stdlib": "python_stdlib.zip",
    }
    return {
        "worker": read("worker.js"),
        "lock": _without_packages(interpreter / "pyodide-lock.json"),
        "module": MODULE,
        "sources": b64encode(sources()).decode(),
        **{name: _packed((interpreter / file).read_bytes()) for name, file in packed.items()},
    }


def _packed(content: bytes) -> str:
    return b64encode(compress(content, 9, mtime=0)).decode()


def _without_packages(path: Path) -> str:
    """The interpreter's lock file without packages: nothing is installed from it."""
    lock = json.loads(path.read_text(encoding="utf-8"))
    return as_line({"info": lock["info"], "packages": {}})


def _interpreter() -> Path:
    """The folder of the interpreter's package; installs it from the lock file if it is missing."""
    own = WEB / "runtime"  # separate from the tools, so that it installs alone
    folder = own / "node_modules" / "pyodide"
    with (own / "package-lock.json").open("rb") as lock:
        flock(lock, LOCK_EX)  # another process may be installing it
        if not (folder / "pyodide.asm.wasm").exists():
            _install_packages(own)
    return folder


def _install_packages(folder: Path) -> None:
    command = ["npm", "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InputError("npm", str(error), "npm, which installs the interpreter") from None
    if done.returncode:
        raise InputError("npm ci", done.stderr.strip()[-300:], "the packages of its lock file")


def sources() -> bytes:
    """A zip of the project's modules and of the packages that they need."""
    made = io.BytesIO()
    with ZipFile(made, "w", ZIP_DEFLATED) as archive:
        for name, path in sorted((*_files(), *_packages())):
            archive.writestr(name, path.read_bytes())
    return made.getvalue()


def _files() -> Iterator[tuple[str, Path]]:
    """The project's modules, by the path under which they are imported."""
    base = _CHECKS.rpartition("checks")[0].replace(".", "/")
    for room in _OURS:
        for path in (ROOT / room).rglob("*"):
            own = path.relative_to(ROOT)
            if path.suffix in _KINDS and _EXCLUDED.isdisjoint(own.parts):
                yield f"{base}{own.as_posix()}", path
    for name in _ALONE if base else _ALONE[1:]:
        yield f"{base}{name}", ROOT / name


def _packages() -> Iterator[tuple[str, Path]]:
    for name in _PACKAGES:
        for path in files(name) or ():
            if PurePath(path).suffix == ".py":
                yield str(path), Path(str(path.locate()))
