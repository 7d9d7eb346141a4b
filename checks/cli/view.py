"""`lockstep view`: write a file of steps as one HTML page."""

from pathlib import Path

import click

from checks.cli import exit_code
from checks.cli.common import Output, json_option
from checks.cli.outputs import NEW_FILE, PATH, Command
from checks.export.files import new_file
from checks.export.pages.markup import page
from checks.harness.views.viewing import document_of_file
from checks.words import counted


@click.command(cls=Command)
@click.argument("file", type=PATH)
@click.option(
    "--out", type=NEW_FILE, help="The page.  [default: FILE's name, with .html, in this folder]"
)
@json_option
def view(file: Path, out: Path | None, output: Output) -> int:
    """Write FILE as one page to look at, step by step, with the verdict of every rule.

    FILE is a trace, a counterexample, a recording, or what `fuzz` or `conform` found. The page
    needs nothing but a browser: attach it to an issue, open it from a disk. Keys: the arrows, Home,
    End, PageUp and PageDown go through the steps, n and p from event to event; the step is in the
    address. What the file says is taken again by the reference; of a recording or a finding both
    sides stand beside each other.
    """
    out = out or Path(f"{file.stem}.html")
    document = document_of_file(file)
    with new_file(out) as written:
        written.write(page(document))
    count = document["overview"]["count"]
    broken = sum(map(len, document["overview"]["broken"].values()))
    output.screen.print(
        f"written: {out} ({counted(count, 'step')}, {counted(broken, 'broken rule')})"
    )
    report = {"file": str(file), "page": str(out), "steps": count, "broken": broken}
    return output.end(exit_code(violated=False), report, [])
