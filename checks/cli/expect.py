"""`--expect`: the verdicts of a command held against those on record, or in an earlier report.

So a pipeline is green while claims stay refuted that are known to be, and red as soon as a verdict
changes, to the better or to the worse.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import click
from attrs import asdict, evolve, frozen
from rich.console import Console

from checks.cli import exit_code
from checks.cli.ci import Case
from checks.cli.common import print_lines
from checks.cli.envelope import Json, read_report
from checks.cli.outputs import NAME_OR_FILE

RECORDED = "recorded"
UNDECIDED = "incomplete"  # no verdict: never as expected, and never a difference

Verdicts: TypeAlias = Mapping[str, str]  # by what it is on: "documented: SPY-VOL-1" is "refuted"

expect_option = click.option(
    "--expect",
    type=NAME_OR_FILE,
    metavar=f"[{RECORDED}|REPORT]",
    help="Exit code 0 if every verdict is the one on record, or in this report; 1 if one differs.",
)


@frozen
class Baseline:
    """Whether verdicts go on record, and which ones are expected."""

    record: bool
    expect: str | None


@frozen
class Difference:
    """A verdict that is not the expected one; None: there is none."""

    name: str
    expected: str | None
    found: str | None

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.name}: not judged, expected {self.expected}"
        return f"{self.name}: {self.found}, expected {self.expected or 'no verdict'}"


@frozen
class Compared:
    """What came of a comparison with the verdicts of `source`.

    `equal`: how many are as expected. `undecided`: names without a verdict now. `not_compared`:
    of the source, those that this run does not ask for or that were undecided there.
    """

    source: str
    equal: int
    differences: Sequence[Difference]
    undecided: Sequence[str]
    not_compared: int

    @property
    def exit_code(self) -> int:
        """Of a command that compares its verdicts."""
        return exit_code(violated=self.differences, incomplete=self.undecided or not self.equal)

    def as_mapping(self) -> Json:
        """All of it for a report."""
        differences = [asdict(one) for one in self.differences]
        return asdict(self) | {"differences": differences, "undecided": [*self.undecided]}

    def cases(self, cases: Iterable[Case]) -> list[Case]:
        """The cases, by key or name; those fail whose verdict is not the expected one."""
        wrong = {one.name: str(one) for one in self.differences}
        held: list[Case] = []
        for case in cases:
            text = wrong.get(case.key, wrong.get(case.name))
            if text is not None:
                held.append(evolve(case, status="failed", found=text))
            else:
                held.append(evolve(case, status="passed") if case.status == "failed" else case)
        gone = (one for one in self.differences if one.found is None)
        return held + [
            Case(suite=self.source, name=one.name, status="failed", found=str(one)) for one in gone
        ]

    def print_to(self, screen: Console) -> None:
        """Each difference, and the sum."""
        for one in self.differences:
            print_lines(screen, f"not as expected: {one}")
        parts = [f"{self.equal:,} verdicts as expected", f"{len(self.differences):,} otherwise"]
        if self.undecided:
            parts.append(f"{len(self.undecided):,} undecided")
        if self.not_compared:
            parts.append(f"{self.not_compared:,} not compared")
        print_lines(screen, f"{self.source}: {', '.join(parts)}")


@frozen
class Expected:
    """The verdicts that are expected, and where they stand."""

    source: str
    verdicts: Verdicts

    def compared(self, found: Verdicts, asked_for: Callable[[str], bool]) -> Compared:
        """Compare with what was found.

        A name that is expected and `asked_for` must have a verdict.
        """
        expected = {
            name: one for name, one in self.verdicts.items() if name in found or asked_for(name)
        }
        names = [
            name
            for name in {**expected, **found}
            if UNDECIDED not in (expected.get(name), found.get(name))
        ]
        differences = [
            Difference(name, expected.get(name), found.get(name))
            for name in names
            if expected.get(name) != found.get(name)
        ]
        was_decided = {name for name, one in expected.items() if one != UNDECIDED}
        return Compared(
            source=self.source,
            equal=len(names) - len(differences),
            differences=differences,
            undecided=[name for name in found if found[name] == UNDECIDED and name in was_decided],
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
