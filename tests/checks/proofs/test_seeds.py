"""Verdicts do not hang on what the solver happens to try first."""

import pytest

from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.prover import prove_all


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 5))
def test_every_verdict_is_the_same_with_another_seed_of_the_solver(seed: int) -> None:
    """Seed 0 is the one on record; with others a proof takes up to 25 times as long."""
    verdicts = {
        proof.obligation: proof.verdict for proof in prove_all([*OBLIGATIONS], 300, seed=seed)
    }
    assert verdicts == {name: told.expected for name, told in OBLIGATIONS.items()}
