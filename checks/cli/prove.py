"""`lockstep prove`: prove or refute claims for every length."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

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
    match_prefixes,
    on_option,
    out_option,
    plain_table,
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
from checks.cli.outputs import NEW_DIRECTORY, Command
from checks.ending import ended, keeping_results
from checks.evidence import PROVEN, claim_of, proofs_of, recorded, write_record
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Of, Proof, Second, Verdict
from checks.proofs.scenario import breaks_in_a_run, write_scenario
from checks.words import counted

_COLUMNS = ("obligation", "says", "for", "of", "verdict", ">seconds", ">size")


@frozen
class Solving:
    """The time limit, seed, second solver and export directory of the proofs."""

    seconds: float
    seed: int
    second: str | None
    export: Path | None


@click.command(cls=Command)
@click.argument("names", nargs=-1, metavar="[OBLIGATION …]")
@gathered(
    "solving",
    Solving,
    click.option(
        "--time",
        "seconds",
        type=SECONDS,
        default=60,
        show_default=True,
        help="Give up on an obligation after S seconds of the processor's time.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**32 - 1),
        default=0,
        show_default=True,
        help="Of the solver.",
    ),
    click.option(
        "--second", type=click.Choice(["cvc5"]), help="Ask a second solver, too (an extra)."
    ),
    click.option(
        "--export", type=NEW_DIRECTORY, help="Write each question there, SMT-LIB; proven if unsat."
    ),
)
@gathered(
    "baseline",
    Baseline,
    click.option("--record", is_flag=True, help="Keep the verdicts with the project."),
    on_option("obligations"),
    expect_option,
)
@out_option
@json_option
def prove(
    names: tuple[str, ...],
    solving: Solving,
    baseline: Baseline,
    out_path: Path,
    output: Output,
) -> int:
    """Prove or refute, for every length, what the formulas of the specification claim.

    OBLIGATION is an id or the beginning of several: PRV-PAD-1, PRV-ADM. Some claims of the texts
    are false and stated as they stand; a refutation prints its numbers, and a run that shows it is
    written with the command that replays it. Evidence about what the code no longer does is stale.
    An obligation that cites others is proven if they are, so they are proven, too.

    Exit code 0: all are proven; 1: one is refuted; 3: one is stale or vacuous, the solver gave up
    on it, or it rests on such a one, which is no answer. Known refutations beside such a one exit
    with 3, a refutation that is not expected with 1.
    """
    from checks.proofs.prover import proofs_as_they_come, settled  # which loads the solver
    from checks.proofs.second import require_second

    wanted = match_prefixes(names, OBLIGATIONS, "OBLIGATION")
    second, export = solving.second, solving.export
    if second is not None:
        require_second()
    expected = None if baseline.expect is None else _expected(baseline.expect)
    if export is not None:
        export.mkdir(parents=True, exist_ok=True)
    asking = {"second": second is not None, "export": export}
    finished = []
    with progress_bar("obligations", len(wanted)) as show, keeping_results():
        for proof in proofs_as_they_come(wanted, solving.seconds, solving.seed, **asking):
            finished.append(proof)
            show(len(finished), proof.obligation)
    proofs = settled(wanted, finished)
    screen = output.screen
    columns = [*_COLUMNS, *filter(None, [second])]
    screen.print(plain_table(columns, [_row(proof, second) for proof in proofs]))
    for proof in proofs:
        _print_detail(screen, proof, out_path)
    _print_stale(screen, proofs)
    screen.print(_total(proofs))
    if second is not None:
        answers = Counter(proof.second for proof in proofs)
        counts = ", ".join(f"{answer} on {answers[answer]}" for answer in Second)
        screen.print(f"{second}: {counts}")
    if not_tried := [id_ for id_ in wanted if id_ not in {proof.obligation for proof in proofs}]:
        screen.print(f"not decided: {', '.join(not_tried)}")
    if baseline.record and ended():
        screen.print("not recorded: not all was proven")
    elif baseline.record:
        _keep(proofs, screen)
    report: Json = {"obligations": [proof.as_mapping() for proof in proofs]}
    cases = [_case(proof) for proof in proofs]
    if expected is not None:
        verdicts = obligation_verdicts(report["obligations"])
        return expected.compared(verdicts, lambda name: name in wanted).end(output, report, cases)
    return output.end(_exit_code(proofs), report, cases)


def _exit_code(proofs: Sequence[Proof]) -> int:
    """Violated for an unexpected refutation, else incomplete for an undecided obligation."""
    refuted = [proof for proof in proofs if proof.verdict is Verdict.REFUTED]
    undecided = any(proof.verdict in _UNDECIDED for proof in proofs)
    unexpected = any(not proof.is_as_expected for proof in refuted)
    return exit_code(violated=unexpected or (refuted and not undecided), incomplete=undecided)


_UNDECIDED = (Verdict.UNKNOWN, Verdict.VACUOUS, Verdict.STALE)


def _expected(expect: str) -> Expected:
    """The verdicts on record, or in a report."""

    def on_record() -> Verdicts:
        return {name: proof["verdict"] for name, proof in recorded(PROVEN).items()}

    return expected_verdicts(
        expect, "prove", on_record, lambda report: obligation_verdicts(report["obligations"])
    )


def obligation_verdicts(obligations: Iterable[Json]) -> Verdicts:
    """The verdicts of a report, by obligation."""
    return {
        obligation["obligation"]: UNDECIDED
        if obligation["verdict"] in _UNDECIDED
        else obligation["verdict"]
        for obligation in obligations
    }


def _case(proof: Proof) -> Case:
    about, verdict = OBLIGATIONS[proof.obligation], proof.verdict
    numbers = ", ".join(f"{name} = {value}" for name, value in proof.numbers.items())
    undecided = verdict in _UNDECIDED
    return Case(
        suite=about.bounds,
        name=about.id,
        status=status_of(violated=verdict is Verdict.REFUTED, undecided=undecided),
        says=about.sentence,
        found=f"{verdict}: {proof.reason or numbers}" if proof.reason or numbers else "",
    )


def _keep(proofs: Sequence[Proof], screen: Console) -> None:
    """Update the record of these obligations, unless a verdict is unexpected."""
    from checks.cli.referee import write_referees_page  # which loads the solver

    unexpected = [proof.obligation for proof in proofs if not proof.is_as_expected]
    if unexpected:
        screen.print(f"not recorded: {', '.join(unexpected)} came out otherwise than expected")
        return
    kept = recorded(PROVEN) | proofs_of(proofs)
    record = {id_: kept[id_] | claim_of(id_) for id_ in OBLIGATIONS if id_ in kept}
    write_record(record, PROVEN)
    write_chapters()
    write_referees_page()
    screen.print(f"recorded: {PROVEN.name}")


def _row(proof: Proof, second: str | None) -> list[str]:
    about = OBLIGATIONS[proof.obligation]
    surprise = "" if proof.is_as_expected else f", expected {about.expected}"
    verdict, seconds = f"{proof.verdict}{surprise}", f"{proof.seconds:.2f}"
    last = [] if second is None else [proof.second]
    bounds = f"{about.where}: {about.bounds}" if about.where else about.bounds
    what = "every run" if about.of is Of.MACHINE else "formula"
    return [about.id, about.sentence, bounds, what, verdict, seconds, f"{proof.size:,}", *last]


def _print_detail(screen: Console, proof: Proof, out_path: Path) -> None:
    if proof.verdict is Verdict.REFUTED:
        numbers = ", ".join(f"{name} = {value}" for name, value in proof.numbers.items())
        surprise = "" if proof.is_as_expected else ", which is not expected,"
        screen.print(f"{proof.obligation} is refuted{surprise} by {numbers}")
        path = _written_run(proof, out_path)
        if path is not None:
            screen.print(f"  replay: lockstep replay {path}")
            screen.print(f"  look at it: lockstep view {path}")
    if proof.reason and proof.verdict is not Verdict.STALE:
        screen.print(f"{proof.obligation} is {proof.verdict}: {proof.reason}")


def _written_run(proof: Proof, out_path: Path) -> Path | None:
    """Write a run in which the numbers of a refutation break a rule; None if there is none."""
    about = OBLIGATIONS[proof.obligation]
    if proof.is_as_expected or breaks_in_a_run(about, proof.numbers):
        return write_scenario(about, proof.numbers, out_path)
    return None


def _print_stale(screen: Console, proofs: Sequence[Proof]) -> None:
    """Print each reason once, with the obligations that it makes stale."""
    for reason in dict.fromkeys(proof.reason for proof in proofs if proof.verdict is Verdict.STALE):
        ids = ", ".join(proof.obligation for proof in proofs if proof.reason == reason)
        screen.print(f"stale: {ids}: {reason}")


def _total(proofs: Sequence[Proof]) -> str:
    counts = Counter(_phrase(proof) for proof in proofs)
    counts.setdefault(Verdict.UNKNOWN, 0)
    shown = ", ".join(f"{counts[phrase]} {phrase}" for phrase in _PHRASES if phrase in counts)
    return f"{counted(len(proofs), 'obligation')}: {shown}"


_PROVEN = {Of.MACHINE: "proven of every run of the machine", Of.FORMULA: "proven of the formula"}
_PHRASES = (*_PROVEN.values(), *(verdict for verdict in Verdict if verdict != Verdict.PROVEN))


def _phrase(proof: Proof) -> str:
    """The verdict; a proof also says whether it is of the formula or of every run."""
    if proof.verdict is not Verdict.PROVEN:
        return proof.verdict
    return _PROVEN[OBLIGATIONS[proof.obligation].of]
