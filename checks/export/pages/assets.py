"""The viewer script, joined from its sources, and scripts that carry documents."""

from functools import cache
from pathlib import Path

from checks.export.files import as_line, new_file
from checks.export.pages.situation import Json

WEB = Path(__file__).with_name("web")
SOURCES = (
    *("dom", "film", "chart", "rows", "picture", "panels", "fragment", "steps"),
    *("form", "live"),
)  # each may use the sources before it
SCRIPT = "lockstep.js"


def read(name: str) -> str:
    """A source file."""
    return (WEB / "src" / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """The viewer script: all sources and the style in one scope."""
    style = as_line(read("lockstep.css"))
    parts = "\n".join(read(f"{name}.js") for name in SOURCES)
    return f'(() => {{\n"use strict";\nconst STYLE = {style};\n{parts}}})();\n'


def write_assets(directory: Path) -> Path:
    """Write the viewer script `lockstep.js` into the directory.

    Raises:
        OSError: the file cannot be written.
    """
    path = directory / SCRIPT
    with new_file(path) as file:
        file.write(script())
    return path


def as_script(document: Json) -> str:
    """The document as a script for the `src` of an element; loads from file:// as well."""
    return f"document.currentScript.lockstep = {as_line(document)};\n"
