"""`lockstep bisect`: one recorded case on several releases."""

from pathlib import Path

import click

from checks.cli import exit_code
from checks.cli.ci import Case, status_of
from checks.cli.common import Output, json_option, plain_table
from checks.cli.outputs import PATH, Command
from checks.harness.recording import read_recording
from checks.releases.bisecting import tried, versions_of


@click.command(cls=Command)
@click.argument("case", type=PATH)
@click.option("--driver", default="sendnn", show_default=True, help="Whose releases.")
@click.option("--versions", required=True, metavar="FIRST..LAST", help="From which to which.")
@json_option
def bisect(case: Path, driver: str, versions: str, output: Output) -> int:
    """Run the recorded CASE on each installed release and tell where it differs.

    CASE is a file that `lockstep conform` wrote. Exit code 0: every release does as the reference;
    1: one of them does otherwise; 3: one of them is not installed and no other differs.
    """
    recording = read_recording(case)
    results = list(tried(recording, versions_of(driver, versions)))
    rows = [(one.environment.recipe.name, one.verdict) for one in results]
    output.screen.print(plain_table(("release", "outcome"), rows))
    report = {one.environment.recipe.version: one.outcome for one in results}
    code = exit_code(
        violated=any(one.differs for one in results),
        incomplete=any(one.outcome is None for one in results),
    )
    cases = [
        Case(
            suite=driver,
            name=one.environment.recipe.name,
            status=status_of(violated=one.differs, undecided=one.outcome is None),
            found=one.verdict,
        )
        for one in results
    ]
    content = {"case": str(case), "driver": driver, "releases": report}
    return output.end(code, content, cases)
