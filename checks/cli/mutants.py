"""`lockstep mutants`: mutation testing of the specification, the references and the engines."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import inf
from random import Random
from time import monotonic
from typing import Any

import click
from attrs import frozen
from rich.console import Console

from checks.chapters import write_chapters
from checks.cli import exit_code
from checks.cli.ci import Case, status_of
from checks.cli.common import (
    SECONDS,
    Output,
    gathered,
    json_option,
    plain_table,
    print_lines,
    progress_bar,
)
from checks.cli.envelope import Json
from checks.cli.expect import (
    UNDECIDED,
    Baseline,
    Expected,
    Verdicts,
    expect_option,
    expected_verdicts,
)
from checks.cli.outputs import Command
from checks.evidence import MUTATED, recorded, write_record
from checks.mutants.equivalents import (
    Experiment,
    equivalents,
    experiments,
    refuse_stale,
    write_experiments,
)
from checks.mutants.keeping import Kept, KeptOutcomes, fingerprint
from checks.mutants.killing import SAME
from checks.mutants.record import Recorded, digest, outcomes_on_record, renewed
from checks.mutants.report import COLUMNS, UNNOTICED, Findings, kill_means, lines
from checks.mutants.rooms import CORE, ROOMS, modules
from checks.mutants.running import Chosen, judged, noticed_by_tests
from checks.mutants.testing import refuse_without_tests
from checks.mutants.trials import STAGES
from checks.registry import POLICIES
from spec.core.errors import InputError


@frozen
class Selection:
    """The mutants that are tried."""

    patterns: tuple[str, ...]
    rooms: tuple[str, ...]
    policies: tuple[str, ...]
    untried: bool
    overlooked: bool
    listed: bool
    sample: int | None
    seed: int


@frozen
class Effort:
    """The time for trying mutants, and the checks that try them."""

    seconds: float | None
    tests: bool
    thorough: bool


@click.command(cls=Command)
@gathered(
    "selection",
    Selection,
    click.argument("patterns", nargs=-1, metavar="[PATTERN …]"),
    click.option(
        "--room", "rooms", multiple=True, type=click.Choice([*ROOMS]), help="Only of these."
    ),
    click.option(
        "--policy",
        "policies",
        multiple=True,
        metavar=f"[{'|'.join([*POLICIES, CORE])}]",
        help="Only of these.",
    ),
    click.option("--untried", is_flag=True, help="Only without an outcome of this program."),
    click.option("--overlooked", is_flag=True, help="Only what no trial notices, on record."),
    click.option("--equivalents", "listed", is_flag=True, help="Only of the list of equivalents."),
    click.option("--sample", type=click.IntRange(1), help="Draw N of them."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of the draw."),
)
@gathered(
    "effort",
    Effort,
    click.option("--time", "seconds", type=SECONDS, help="Begin none after S seconds."),
    click.option(
        "--tests", is_flag=True, help="Run the project's tests on what the rules overlook."
    ),
    click.option("--thorough", is_flag=True, help="Explore the largest instances, too."),
)
@gathered(
    "baseline",
    Baseline,
    click.option("--record", is_flag=True, help="Keep what was found with the project."),
    expect_option,
)
@click.option("--list", "list_", is_flag=True, help="List the mutants and stop.")
@json_option
def mutants(
    selection: Selection, effort: Effort, baseline: Baseline, list_: bool, output: Output
) -> int:
    """Make the program wrong in one place after the other and see which check notices.

    PATTERN is a part of a mutant's id: spec/spyre/padding.py:volume.
    Formulas of the claims, transitions and steps of the references and decisions of the engines are
    mutated: a comparison off by one, a term dropped, arguments swapped, a statement skipped. Each
    is tried with what exploring, random cases and proofs say of the right program; it is killed if
    a rule falls that held, or one that is refuted, or witnessed, is so no more, or if two systems
    differ. The column "rule" counts the kills that name a rule.

    Work that ended early goes on where it was, as long as nothing that its outcomes depend on has
    changed. An outcome on record is stale if something has.

    Exit code 0: some trial notices every mutant that is not on the list of equivalents; 1: one is
    overlooked, or one on the list is noticed; 3: not all were tried.
    """
    refuse_unknown_policies(selection.policies)
    everything = all_mutants()
    reasons = equivalents()
    refuse_stale(reasons, {mutant.id for _, mutant in everything})
    if effort.tests:
        refuse_without_tests()
    on_record = outcomes_on_record(recorded(MUTATED))
    chosen = _selected(selection, everything, reasons, on_record)
    if list_:
        print_lines(output.screen, *(mutant.id for _, mutant in chosen))
        return 0
    expected = None if baseline.expect is None else _expected(baseline.expect, chosen)
    findings = _run(chosen, reasons, {} if selection.listed else reasons, effort)
    unfinished = len(chosen) - len(findings.outcomes)
    stale = len(_untried(chosen, on_record)) - sum(
        digest(it.id) not in on_record for _, it in chosen
    )
    _print(output.screen, findings, unfinished, stale)
    if baseline.record:
        write_experiments(_experiments(chosen, reasons))
        write_record(_renewed(findings, everything), MUTATED)
        write_chapters()
        output.screen.print(f"recorded: {MUTATED.name}")
    verdicts = {
        outcome.mutant.id: _verdict(kill_means(outcome)) for _, outcome in findings.outcomes
    }
    report: Json = {"seed": selection.seed, "chosen": len(chosen), "tried": len(findings.outcomes)}
    report["stale"] = stale
    report |= {"verdicts": verdicts, **findings.as_mapping()}
    cases = list(_cases(findings))
    if expected is None:
        code = exit_code(violated=findings.overlooked, incomplete=unfinished)
        return output.end(code, report, cases)
    ids = [mutant.id for _, mutant in chosen if mutant.id in expected.verdicts]  # others are new
    now = {id_: verdicts.get(id_, UNDECIDED) for id_ in ids}
    return expected.compared(now, lambda _: False).end(output, report, cases)


def refuse_unknown_policies(policies: Sequence[str]) -> None:
    """Raise InputError if one of them is neither a policy nor `CORE`."""
    for policy in policies:
        if policy not in (*POLICIES, CORE):
            raise InputError("--policy", policy, ", ".join([*POLICIES, CORE]))


@cache
def all_mutants() -> Chosen:
    """The mutants of all rooms."""
    return tuple((module, mutant) for module in modules() for mutant in module.mutants())


def _expected(expect: str, chosen: Chosen) -> Expected:
    """The expected verdict on each of these mutants, on record or in a report.

    Stale outcomes on record are expected, too.
    """

    def on_record() -> Verdicts:
        recorded_outcomes = outcomes_on_record(recorded(MUTATED))
        by_id = {mutant.id: recorded_outcomes.get(digest(mutant.id)) for _, mutant in chosen}
        return {
            id_: _verdict(outcome.means) for id_, outcome in by_id.items() if outcome is not None
        }

    return expected_verdicts(expect, "mutants", on_record, lambda report: report["verdicts"])


def _verdict(means: str) -> str:
    """The verdict on a mutant; one that only tests notice counts as overlooked."""
    return "overlooked" if means in UNNOTICED else "same" if means == SAME else "noticed"


def _untried(
    chosen: Chosen, on_record: Mapping[str, Recorded], experiments: Mapping[str, str] | None = None
) -> Chosen:
    """The mutants without an outcome of the current program on record.

    `experiments`: for equivalents, those on which not all trials were made.
    """

    def is_known(policy: str, id_: str) -> bool:
        if experiments is not None:
            said = experiments[id_]
            return said.startswith(f"{fingerprint(policy)}: no difference") and ";" not in said
        outcome = on_record.get(digest(id_))
        return outcome is not None and outcome.fingerprint == fingerprint(policy)

    return [(module, it) for module, it in chosen if not is_known(module.policy, it.id)]


def _experiments(chosen: Chosen, reasons: Mapping[str, str]) -> dict[str, str]:
    """By id, the trials so far on each chosen equivalent that nothing killed."""
    notes = KeptOutcomes()
    by_id = {
        mutant.id: Experiment(
            fingerprint(module.policy), [notes.of(stage, mutant) for stage in range(len(STAGES))]
        )
        for module, mutant in chosen
        if mutant.id in reasons
    }
    return {id_: str(it) for id_, it in by_id.items() if it.is_begun and it.killed is None}


def _cases(findings: Findings) -> Iterator[Case]:
    """A CI case for each tried mutant; overlooked ones fail."""
    overlooked = {outcome.mutant.id for outcome in findings.overlooked}
    for module, outcome in findings.outcomes:
        text = "\n".join(lines(outcome)) if outcome.mutant.id in overlooked else ""
        yield Case(
            suite=module.group,
            name=outcome.mutant.id,
            status=status_of(violated=text),
            says=outcome.mutant.change,
            found=text,
        )


def _selected(
    selection: Selection,
    everything: Chosen,
    reasons: Mapping[str, str],
    on_record: Mapping[str, Recorded],
) -> Chosen:
    """The selected mutants; `reasons`: of equivalents, by id; `known`: outcomes on record."""
    chosen = _named(selection, everything)
    if selection.listed:
        chosen = [(module, mutant) for module, mutant in chosen if mutant.id in reasons]
    if selection.untried:
        chosen = _untried(chosen, on_record, experiments() if selection.listed else None)
    if selection.overlooked:
        unnoticed = {id_ for id_, outcome in on_record.items() if outcome.means in UNNOTICED}
        left = [(module, mutant) for module, mutant in chosen if mutant.id not in reasons]
        chosen = [(module, mutant) for module, mutant in left if digest(mutant.id) in unnoticed]
    if selection.sample is not None and selection.sample < len(chosen):
        drawn = Random(selection.seed).sample(range(len(chosen)), selection.sample)
        chosen = [chosen[index] for index in sorted(drawn)]
    return chosen


def _named(selection: Selection, everything: Chosen) -> Chosen:
    """The mutants of the selected rooms and policies whose id contains a selected pattern."""
    patterns, rooms, policies = selection.patterns, selection.rooms, selection.policies
    chosen = [
        (module, mutant)
        for module, mutant in everything
        if (not rooms or module.room in rooms)
        and (not policies or module.policy in policies)
        and (not patterns or any(it in mutant.id for it in patterns))
    ]
    if not chosen:
        raise InputError("PATTERN", " ".join(patterns), "parts of the ids of mutants; see --list")
    return chosen


def _run(
    chosen: Chosen,
    reasons: Mapping[str, str],
    untested: Mapping[str, str],
    effort: Effort,
) -> Findings:
    """Try the mutants with a progress bar; those in `untested` are not run against the tests."""
    until = inf if effort.seconds is None else monotonic() + effort.seconds
    with progress_bar("mutants", len(chosen)) as show:
        outcomes = [
            *judged(
                chosen,
                show,
                thorough=effort.thorough,
                until=until,
                try_all=Kept().tried,
                notes=KeptOutcomes(),
            )
        ]
        if effort.tests:
            notes = KeptOutcomes("tests")
            outcomes = [*noticed_by_tests(outcomes, untested, show, until=until, notes=notes)]
    return Findings(outcomes, reasons)


def _renewed(findings: Findings, everything: Chosen) -> dict[str, Any]:
    """The record, updated with the findings."""
    ids: dict[str, list[str]] = {}
    for module, mutant in everything:
        ids.setdefault(module.group, []).append(mutant.id)
    return dict(sorted(renewed(recorded(MUTATED), findings, ids, fingerprint).items()))


def _print(screen: Console, findings: Findings, unfinished: int, stale: int) -> None:
    """Print the scores, the overlooked mutants, wrong equivalents, and stale outcomes."""
    screen.print(plain_table(COLUMNS, (score.row() for score in findings.scores())))
    for outcome in findings.overlooked:
        print_lines(screen, *lines(outcome))
    if unfinished:
        were = "mutant was" if unfinished == 1 else "mutants were"
        print_lines(screen, f"incomplete: {unfinished:,} {were} not tried to the end")
    if stale:
        says = "outcome is stale: it is" if stale == 1 else "outcomes are stale: they are"
        print_lines(screen, f"on record: {stale:,} {says} of another program; see --untried")
