"""`lockstep prove`: claims for every length, proven or refuted."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from checks.chapters import write_chapters
from checks.cli import exit_code
from checks.cli.ci import Case, status_of
from checks.cli.common import (
    SECONDS,
    Output,
    beginning_with,
    json_option,
    out_option,
    plain_table,
    progress_bar,
)
from checks.cli.outputs import Command
from checks.ending import ended, keeping_results
from checks.evidence import PROVEN, proofs_of, recorded, write_record
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Proof, Verdict
from checks.proofs.scenario import write_scenario

_COLUMNS = ("obligation", "says", "for", "verdict", ">seconds", ">size")


@click.command(cls=Command)
@click.argument("names", nargs=-1, metavar="[OBLIGATION …]")
@click.option("--thorough", is_flag=True, help="Also the obligations that take minutes.")
@click.option(
    "--time",
    "seconds",
    type=SECONDS,
    default=None,
    help="Give up on an obligation after S seconds.  [default: 60, thorough ones 600]",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of the solver."
)
@click.option("--record", is_flag=True, help="Keep the verdicts with the project.")
@out_option
@json_option
def prove(
    names: tuple[str, ...],
    thorough: bool,
    seconds: float | None,
    seed: int,
    record: bool,
    out_path: Path,
    output: Output,
) -> int:
    """Prove or refute, for every length, what the formulas of the specification claim.

    OBLIGATION is an id or the beginning of several: PRV-PAD-1, PRV-ADM. Some claims of the texts
    are false and stated as they stand; a refutation prints its numbers, and a run that shows it is
    written with the command that replays it. Evidence about what the code no longer does is stale.
    Exit code 0: all are proven; 1: one is refuted; 3: one is stale, or the solver gave up on it,
    which is no answer.
    """
    from checks.proofs.prover import proofs_as_they_come  # which loads the solver

    wanted = [
        id_
        for id_ in beginning_with(names, OBLIGATIONS, "OBLIGATION")
        if thorough or names or not OBLIGATIONS[id_].thorough
    ]
    proofs = []
    with progress_bar("obligations", len(wanted)) as show, keeping_results():
        for proof in proofs_as_they_come(wanted, seconds, seed):
            proofs.append(proof)
            show(len(proofs), proof.obligation)
    proofs.sort(key=lambda proof: wanted.index(proof.obligation))
    screen = output.screen
    screen.print(plain_table(_COLUMNS, map(_row, proofs)))
    for proof in proofs:
        _print_detail(screen, proof, out_path)
    _print_stale(screen, proofs)
    screen.print(_total(proofs))
    if not_tried := [id_ for id_ in wanted if id_ not in {one.obligation for one in proofs}]:
        screen.print(f"not decided: {', '.join(not_tried)}")
    if record and ended():
        screen.print("not recorded: not all was proven")
    elif record:
        _keep(proofs, screen)
    verdicts = {proof.verdict for proof in proofs}
    code = exit_code(
        violated=Verdict.REFUTED in verdicts,
        incomplete=verdicts & {Verdict.UNKNOWN, Verdict.STALE},
    )
    report = {"obligations": [proof.as_mapping() for proof in proofs]}
    return output.end(code, report, [_case(proof) for proof in proofs])


def _case(proof: Proof) -> Case:
    about, verdict = OBLIGATIONS[proof.obligation], proof.verdict
    numbers = ", ".join(f"{name} = {value}" for name, value in proof.numbers.items())
    undecided = verdict in (Verdict.UNKNOWN, Verdict.STALE)
    return Case(
        suite=about.bounds,
        name=about.id,
        status=status_of(violated=verdict is Verdict.REFUTED, undecided=undecided),
        says=about.sentence,
        found=f"{verdict}: {proof.reason or numbers}" if proof.reason or numbers else "",
    )


def _keep(proofs: Sequence[Proof], screen: Console) -> None:
    """Renew the record of these obligations, unless one came out otherwise than expected."""
    unexpected = [proof.obligation for proof in proofs if not proof.is_as_expected]
    if unexpected:
        screen.print(f"not recorded: {', '.join(unexpected)} came out otherwise than expected")
        return
    kept = recorded(PROVEN) | proofs_of(proofs)
    write_record({one: kept[one] for one in OBLIGATIONS if one in kept}, PROVEN)
    write_chapters()
    screen.print(f"recorded: {PROVEN.name}")


def _row(proof: Proof) -> tuple[str, ...]:
    about = OBLIGATIONS[proof.obligation]
    surprise = "" if proof.is_as_expected else f", expected {about.expected}"
    verdict, seconds = f"{proof.verdict}{surprise}", f"{proof.seconds:.2f}"
    return about.id, about.sentence, about.bounds, verdict, seconds, f"{proof.size:,}"


def _print_detail(screen: Console, proof: Proof, out_path: Path) -> None:
    if proof.verdict is Verdict.REFUTED:
        numbers = ", ".join(f"{name} = {value}" for name, value in proof.numbers.items())
        screen.print(f"{proof.obligation} is refuted by {numbers}")
        path = write_scenario(OBLIGATIONS[proof.obligation], proof.numbers, out_path)
        if path is not None:
            screen.print(f"  replay: lockstep replay {path}")
    if proof.verdict is Verdict.UNKNOWN:
        screen.print(f"{proof.obligation} is unknown: {proof.reason}")


def _print_stale(screen: Console, proofs: Sequence[Proof]) -> None:
    """Each reason once, with all obligations that it makes stale."""
    for reason in dict.fromkeys(one.reason for one in proofs if one.verdict is Verdict.STALE):
        ids = ", ".join(one.obligation for one in proofs if one.reason == reason)
        screen.print(f"stale: {ids}: {reason}")


def _total(proofs: Sequence[Proof]) -> str:
    counts = {verdict: sum(proof.verdict is verdict for proof in proofs) for verdict in Verdict}
    if not counts[Verdict.STALE]:
        del counts[Verdict.STALE]
    by_verdict = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{len(proofs)} obligations: {by_verdict}"
