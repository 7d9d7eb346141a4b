"""The judge: the rules that a step breaks, and their messages."""

from collections.abc import Iterable

from attrs import evolve

from checks.harness.case import Case
from checks.harness.judging import Broken, Judge
from checks.harness.runs.serving import served
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step, context_of
from spec.spyre.rules import REGISTRY
from tests.requests import request

CONFIG = SpyreConfig(
    block_size=4, chunk_size=8, max_model_len=64, max_num_seqs=2, num_blocks=20, prefill_time=8
)


def steps_of(**more: int) -> list[Step]:
    return list(served(Case(CONFIG, (request("a", 9, 6, **more),))))


def judge() -> Judge:
    return Judge(context_of(CONFIG, [request("a", 9, 6)]))


def broken(steps: Iterable[Step]) -> list[Broken]:
    observed = judge()
    return [violation for step in steps for violation in observed.observe(step)]


def test_run_of_the_reference_breaks_no_rule() -> None:
    steps, all_rules = steps_of(), judge()

    assert [all_rules.observe(step) for step in steps] == [[]] * 7
    assert all_rules.judged == 7
    assert len(all_rules.rules) > 50


def test_planted_breach_is_reported_with_its_step_its_rule_and_what_was_found() -> None:
    *steps, last = steps_of()
    wrong = evolve(last, tkv=last.tkv + 1, volume=last.volume + 1)

    assert broken([*steps, wrong]) == [Broken(6, REGISTRY["SPY-TKV-2"], "tkv 15, rows reach 14")]


def test_request_that_goes_on_behind_its_end_of_sequence_is_seen() -> None:
    all_rules = Judge(context_of(CONFIG, [request("a", 9, 6, output_len=3)]))

    found = [
        (finding.step, finding.rule.id)
        for step in steps_of()
        for finding in all_rules.observe(step)
    ]

    assert found[0] == (3, "LIF-3")


def test_abort_that_loses_a_block_is_seen_in_the_state_before_the_step() -> None:
    """The step itself leaves the pool as it is: only the abort has touched it."""
    step = steps_of(abort_at=3)[-1]
    pool = evolve(step.before.pool, free=step.before.pool.free[1:])
    lossy = evolve(step, before=evolve(step.before, pool=pool), after=evolve(step.after, pool=pool))

    found = [(violation.step, violation.rule.id, violation.found) for violation in broken([lossy])]

    assert (3, "BLK-1", "19 free and 0 held of 20 blocks") in found
    assert "BLK-1" not in [violation.rule.id for violation in broken([step])]
