"""`--expect`: compare the verdicts of a command with those on record, or in an earlier report.

A CI pipeline stays green while known refutations stay refuted, and turns red if a verdict changes,
for better or worse.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import click
from attrs import asdict, evolve, frozen
from rich.console import Console

from checks.cli import exit_code
from checks.cli.ci import Case
from checks.cli.common import Output, print_lines
from checks.cli.envelope import Json, read_report
from checks.cli.outputs import NAME_OR_FILE

RECORDED = "recorded"
UNDECIDED = "incomplete"  # no verdict: neither as expected nor a difference

Verdicts: TypeAlias = Mapping[str, str]  # by claim: "documented: SPY-VOL-1" is "refuted"

expect_option = click.option(
    "--expect",
    type=NAME_OR_FILE,
    metavar=f"[{RECORDED}|REPORT]",
    help="Exit code 0 if every verdict is the one on record, or in this report; 1 if one differs.",
)


@frozen
class Baseline:
    """`record`: verdicts go on record. `expect`: the source of the expected verdicts, or None."""

    record: bool
    expect: str | None


@frozen
class Difference:
    """A verdict that differs from the expected one; None: there is no verdict."""

    name: str
    expected: str | None
    found: str | None

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.name}: not judged, expected {self.expected}"
        return f"{self.name}: {self.found}, expected {self.expected or 'no verdict'}"


@frozen
class Compared:
    """The result of a comparison with the verdicts of `source`.

    `equal`: the number of equal verdicts. `undecided`: names without a verdict now. `not_compared`:
    the number of verdicts in the source that this run does not cover or that are undecided there.
    """

    source: str
    equal: int
    differences: Sequence[Difference]
    undecided: Sequence[str]
    not_compared: int

    @property
    def exit_code(self) -> int:
        """The exit code of a command that compares its verdicts."""
        return exit_code(violated=self.differences, incomplete=self.undecided or not self.equal)

    def as_mapping(self) -> Json:
        """The result as fields of a report."""
        differences = [asdict(difference) for difference in self.differences]
        return asdict(self) | {"differences": differences, "undecided": [*self.undecided]}

    def cases(self, cases: Iterable[Case]) -> list[Case]:
        """The cases, failed if their verdict (by key or name) is not the expected one."""
        wrong = {difference.name: str(difference) for difference in self.differences}
        held: list[Case] = []
        for case in cases:
            text = wrong.get(case.key, wrong.get(case.name))
            if text is not None:
                held.append(evolve(case, status="failed", found=text))
            else:
                held.append(evolve(case, status="passed") if case.status == "failed" else case)
        gone = (difference for difference in self.differences if difference.found is None)
        return held + [
            Case(suite=self.source, name=difference.name, status="failed", found=str(difference))
            for difference in gone
        ]

    def end(self, output: Output, report: Json, cases: Iterable[Case]) -> int:
        """Print the differences and write the report with them; returns the exit code."""
        self._print(output.screen)
        return output.end(
            self.exit_code, report | {"expected": self.as_mapping()}, self.cases(cases)
        )

    def _print(self, screen: Console) -> None:
        """Print each difference, and the totals."""
        for difference in self.differences:
            print_lines(screen, f"not as expected: {difference}")
        parts = [f"{self.equal:,} verdicts as expected", f"{len(self.differences):,} otherwise"]
        if self.undecided:
            parts.append(f"{len(self.undecided):,} undecided")
        if self.not_compared:
            parts.append(f"{self.not_compared:,} not compared")
        print_lines(screen, f"{self.source}: {', '.join(parts)}")


@frozen
class Expected:
    """The expected verdicts, and their source."""

    source: str
    verdicts: Verdicts

    def compared(self, verdicts: Verdicts, is_requested: Callable[[str], bool]) -> Compared:
        """Compare with the verdicts of this run.

        An expected name for which `is_requested` is true must have a verdict.
        """
        expected = {
            name: verdict
            for name, verdict in self.verdicts.items()
            if name in verdicts or is_requested(name)
        }
        names = [
            name
            for name in {**expected, **verdicts}
            if UNDECIDED not in (expected.get(name), verdicts.get(name))
        ]
        differences = [
            Difference(name, expected.get(name), verdicts.get(name))
            for name in names
            if expected.get(name) != verdicts.get(name)
        ]
        was_decided = {name for name, verdict in expected.items() if verdict != UNDECIDED}
        return Compared(
            source=self.source,
            equal=len(names) - len(differences),
            differences=differences,
            undecided=[
                name for name in verdicts if verdicts[name] == UNDECIDED and name in was_decided
            ],
            not_compared=len(self.verdicts) - len(was_decided),
        )


def expected_verdicts(
    expect: str,
    command: str,
    on_record: Callable[[], Verdicts],
    of_report: Callable[[Json], Verdicts],
) -> Expected:
    """The verdicts that `--expect` names.

    Raises:
        InputError: the file is no report of this command.
    """
    if expect == RECORDED:
        return Expected("on record", on_record())
    return Expected(expect, of_report(read_report(Path(expect), command)))
