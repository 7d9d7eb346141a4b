"""`lockstep examples`: the workloads and configurations of the README, wherever it is installed."""

from pathlib import Path

import click

from checks.cli.common import directory_option, out
from checks.cli.outputs import Command
from checks.export.files import new_file
from spec.core.errors import InputError

EXAMPLES = Path(__file__).parents[2] / "examples"


@click.command(cls=Command)
@directory_option("--out", "out_path", default="examples", what="the files")
def examples(out_path: Path) -> None:
    """Write the example workloads and configurations into a directory.

    Recipes for CI systems are there, too, in `ci`. A file that is there already and says the same
    stays as it is; one that says something else is never written over.
    """
    texts = {
        out_path / path.relative_to(EXAMPLES): path.read_text(encoding="utf-8")
        for path in sorted(EXAMPLES.rglob("*"))
        if path.is_file()
    }
    for path, text in texts.items():
        if path.exists() and (not path.is_file() or path.read_bytes() != text.encode()):
            raise InputError("--out", str(path), "a place without another file of that name")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            with new_file(path) as file:
                file.write(text)
        out.print(str(path))
