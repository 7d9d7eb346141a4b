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

    A file that is there already and says the same stays as it is; one that says something else is
    never written over.
    """
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.iterdir())}
    for name, text in texts.items():
        _refuse_other(out_path / name, text)
    out_path.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if not (out_path / name).exists():
            with new_file(out_path / name) as file:
                file.write(text)
        out.print(str(out_path / name))


def _refuse_other(path: Path, text: str) -> None:
    """Refuse to write over a file.

    Raises:
        InputError: the file is there and has another content.
    """
    if path.exists() and (not path.is_file() or path.read_text(encoding="utf-8") != text):
        raise InputError("--out", str(path), "a place without another file of that name")
