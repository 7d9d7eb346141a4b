"""`lockstep bisect`: one recorded case on several releases, or commits."""

from pathlib import Path

import click

from checks.cli import exit_code
from checks.cli.ci import Case, status_of
from checks.cli.common import Output, err, json_option, plain_table, print_lines
from checks.cli.outputs import PATH, Command
from checks.harness.campaigns.recording import read_recording
from checks.harness.system import Json
from checks.releases.bisecting import release_environments, tried
from checks.releases.commits import TriedCommit, Walk
from spec.core.errors import InputError


@click.command(cls=Command)
@click.argument("case", type=PATH)
@click.option("--driver", default="sendnn", show_default=True, help="Whose releases.")
@click.option("--versions", metavar="FIRST..LAST", help="From which to which release.")
@click.option(
    "--git",
    "commits",
    type=(PATH, str),
    metavar="PATH FIRST..LAST",
    help="Commits of the repository at PATH instead; --driver may be a file in it.",
)
@json_option
def bisect(
    case: Path,
    driver: str,
    versions: str | None,
    commits: tuple[Path, str] | None,
    output: Output,
) -> int:
    """Run the recorded CASE on each installed release and say where it differs.

    CASE is a file that `lockstep conform` wrote. Exit code 0: every release does as the reference;
    1: one of them does otherwise; 3: one of them is not installed and no other differs. With --git
    the first commit is looked for that differs from FIRST in whether it shows what was found when
    CASE was recorded; the exit code is 1 if LAST shows it, else 0.
    """
    if (versions is None) == (commits is None):
        raise InputError("--versions", versions, "one of --versions and --git")
    if commits is not None:
        return _among_commits(case, driver, *commits, output)
    recording = read_recording(case)
    results = list(tried(recording, release_environments(driver, versions or "")))
    rows = [(result.environment.recipe.name, result.verdict) for result in results]
    output.screen.print(plain_table(("release", "outcome"), rows))
    report = {result.environment.recipe.version: result.outcome for result in results}
    code = exit_code(
        violated=any(result.differs for result in results),
        incomplete=any(result.outcome is None for result in results),
    )
    cases = [
        Case(
            suite=driver,
            name=result.environment.recipe.name,
            status=status_of(violated=result.differs, undecided=result.outcome is None),
            found=result.verdict,
        )
        for result in results
    ]
    content = {"case": str(case), "driver": driver, "releases": report}
    return output.end(code, content, cases)


def _among_commits(case: Path, driver: str, repository: Path, span: str, output: Output) -> int:
    """Find the first commit with another outcome of the case."""

    def print_trial(trial: TriedCommit) -> None:
        err.print(f"{trial.commit}: {trial.verdict}", markup=False, soft_wrap=True)

    walk = Walk(repository, driver, read_recording(case), print_trial)
    first = walk.first_other(span)
    trials = list(walk.tried.values())
    last = trials[1]  # the last commit is tried second
    rows = [(str(trial.commit), trial.verdict) for trial in trials]
    output.screen.print(plain_table(("commit", "outcome"), rows))
    first_line = "no commit changes that" if first is None else f"first other: {first.commit}"
    print_lines(output.screen, first_line)
    report = {trial.commit.id: trial.outcome for trial in trials}
    content: Json = {"case": str(case), "driver": driver, "releases": report}
    content["first"] = None if first is None else first.commit.id
    cases = [
        Case(
            suite=driver,
            name=str(last.commit),
            status=status_of(violated=last.differs),
            found=f"{last.verdict}; {first_line}",
        )
    ]
    return output.end(exit_code(violated=last.differs), content, cases)
