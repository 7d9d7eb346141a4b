"""Refuted claims: the smallest numbers that refute each, and a run of the reference with them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from attrs import frozen

from checks.cores import on_all_cores
from checks.evidence import PROVEN, recorded
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Numbers
from checks.proofs.scenario import write_scenario


@frozen
class Refuted:
    """A refuted claim. `trace`: the file of a run in which its numbers break a rule; or None."""

    id: str
    numbers: Numbers
    trace: Path | None

    @property
    def in_words(self) -> str:
        """The numbers by name."""
        return ", ".join(f"{name} = {value}" for name, value in self.numbers.items())


def refuted_claims(directory: Path) -> list[Refuted]:
    """Every claim that is refuted on record, proven again for its numbers; writes the traces."""
    return [*on_all_cores(partial(_refuted, directory=directory), _refuted_on_record())]


def _refuted_on_record() -> Iterator[str]:
    return (id_ for id_, proof in recorded(PROVEN).items() if proof["verdict"] == "refuted")


def _refuted(id_: str, directory: Path) -> Refuted:
    from checks.proofs.prover import prove  # which loads the solver

    obligation = OBLIGATIONS[id_]
    numbers = prove(obligation).numbers
    return Refuted(id_, numbers, write_scenario(obligation, numbers, directory))
