"""Metrics of runs that are short enough to be worked out by hand."""

import pickle
import tracemalloc
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from checks.cli.configuration import read_settings
from checks.export.figures import token_figures
from checks.policies.spyre.work import spyre_work
from engine.core.clock import CostModel, Work
from engine.core.metrics import RELATIVE_ERROR, Distribution, Metrics, Spread, Summary
from engine.workloads import read_workload
from reference.core.block_pool import empty_pool
from reference.spyre.machine import SpyreMachine
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.spyre.state import Sequence, State
from tests.requests import request

EXAMPLES = Path(__file__).parents[2] / "examples"


def config(**more: object) -> SpyreConfig:
    """Blocks of 4 and chunks of 12 tokens; a prefill step takes 8 units, a decode step 1."""
    small = {"block_size": 4, "chunk_size": 12, "max_model_len": 64, "num_blocks": 40}
    return SpyreConfig.from_mapping(small | more)


def steps_of(config: SpyreConfig, requests: Iterable[Request]) -> Iterator[Step]:
    """The run of these requests; an idle step lasts one unit."""
    machine = SpyreMachine.of(config, requests)
    state, time, index = machine.initial(), 0.0, 0
    coming = dict(machine.ctx.requests)
    lasts = {"prefill": config.prefill_time, "decode": config.decode_time, "idle": 1.0}
    while coming or not state.is_idle:
        for name, asked in list(coming.items()):
            if asked.arrival <= index and (asked.arrival_time or 0) <= time:
                state = machine.arrive(state, name)
                del coming[name]
        leaving = [
            row.id for row in state.present if machine.ctx.requests[row.id].abort_at == index
        ]
        for name in leaving:
            state = machine.abort(state, name)
        step = evolve(machine.step(state, index=index, time=time), aborted=tuple(leaving))
        yield step
        state, time, index = step.after, time + lasts[step.kind], index + 1


def metrics_of(config: SpyreConfig, requests: Iterable[Request]) -> Metrics[Step]:
    cost = CostModel.from_mapping({}, config)
    by_id = {asked.id: asked for asked in requests}
    limit = config.max_batch_tkv_limit
    return Metrics(by_id, cost, partial(spyre_work, config), volume_limit=limit)


def measured(config: SpyreConfig, *requests: Request) -> Summary:
    metrics = metrics_of(config, requests)
    for step in steps_of(config, requests):
        metrics.observe(step)
    return metrics.summary()


def only(value: float) -> Spread:
    return Spread(1, value, value, value, value, value)


# --- latencies -----------------------------------------------------------------------------------


def test_one_request_alone() -> None:
    # Its prefill takes from 0 to 8 and yields a token, two decode steps end at 9 and 10.
    summary = measured(config(), request("a", prompt_len=6, max_tokens=3))

    assert (summary.requests, summary.finished, summary.unfinished) == (1, 1, 0)
    assert summary.steps == {"prefill": 1, "decode": 2, "idle": 0}
    assert (summary.prompt_tokens, summary.output_tokens) == (6, 3)
    assert (summary.ttft_steps, summary.ttft_units) == (only(1), only(8))
    assert (summary.itl_steps, summary.itl_units) == (Spread(2, 1, 1, 1, 1, 1),) * 2
    assert (summary.end_to_end_steps, summary.end_to_end_units) == (only(3), only(10))
    assert (summary.duration_units, summary.output_tokens_per_unit) == (10, 0.3)


def two_requests(**more: object) -> Summary:
    """Steps: prefill a (ends at 8), decode a (9), prefill b (17), decode both (18)."""
    return measured(config(**more), request("a", 9, 3), request("b", 2, 2))


def test_waiting_for_a_turn_counts_as_latency() -> None:
    summary = two_requests()

    # First tokens: a at 8 in its first step, b at 17 in the third.
    assert summary.ttft_units == Spread(2, 12.5, 8, 17, 17, 17)
    assert summary.ttft_steps == Spread(2, 2, 1, 3, 3, 3)
    # a: tokens at 8, 9 and 18; b: at 17 and 18.
    assert summary.itl_units == Spread(3, 11 / 3, 1, 9, 9, 9)
    assert summary.itl_steps == Spread(3, 4 / 3, 1, 2, 2, 2)
    assert summary.end_to_end_units == Spread(2, 18, 18, 18, 18, 18)
    assert summary.waits == {"SPY-PRI-3": 1}


def test_fourths_of_requests_end_with_their_longest_prompt() -> None:
    lengths = (1, 2, 3, 4, 5, 6, 6, 6)
    requests = [request(str(index), length, 1) for index, length in enumerate(lengths)]
    alike = [request(str(index), 3, 1) for index in range(9)]

    fourths = measured(config(), *requests).ttft_by_prompt
    assert {longest: spread.count for longest, spread in fourths.items()} == {2: 2, 4: 2, 6: 4}
    assert [*measured(config(), *alike).ttft_by_prompt] == [3]
    assert measured(config()).ttft_by_prompt == {}


def test_a_request_arrives_at_its_own_moment_in_the_middle_of_a_step() -> None:
    # b comes at 2.5, is seen when step 1 begins at 8, and has its token at 17.
    summary = measured(config(), request("a", 9, 3), request("b", 2, 1, arrival_time=2.5))

    assert summary.ttft_units == Spread(2, 11.25, 8, 14.5, 14.5, 14.5)
    assert summary.ttft_steps == Spread(2, 1.5, 1, 2, 2, 2)


def test_requests_that_did_not_finish_have_no_end() -> None:
    # a leaves with two tokens, b before it had any, c never comes.
    requests = [
        request("a", 6, 9, abort_at=2),
        request("b", 6, 9, abort_at=1),
        request("c", 6, 9, arrival=99),
    ]
    metrics = metrics_of(config(), requests)
    for step in steps_of(config(), requests):
        if step.index < 4:
            metrics.observe(step)
    summary = metrics.summary()

    assert (summary.finished, summary.aborted, summary.unfinished) == (0, 2, 1)
    assert (summary.prompt_tokens, summary.output_tokens) == (6, 2)
    assert summary.ttft_units == only(8)
    assert summary.end_to_end_units == Spread(0)
    assert summary.duration_units == 9  # the idle steps that follow do not count


# --- padding, cache, volume ----------------------------------------------------------------------


def test_padding_of_decode_is_what_the_batch_addresses_beyond_its_tokens() -> None:
    summary = two_requests()

    # First decode: a alone, 10 tokens. Second: a with 11 and b with 3, both padded to 11.
    assert (summary.decode_volume, summary.decode_padding_tokens) == (10 + 22, 8)
    assert summary.decode_padding_share == 0.25
    assert (summary.peak_volume, summary.peak_batch) == (22, 2)
    assert summary.volume_limit == 131_072
    assert summary.tkv_jumps == 1  # b, from 2 to 11


def test_cached_tokens_are_reused_or_computed_again() -> None:
    # Prompts of 5 blocks, 4 of them shared, in chunks of 2 blocks after 1 block of padding: the
    # second request skips two chunks, so 3 blocks, and computes the fourth again.
    def prompt(name: str) -> Prompt:
        return Prompt.of_parts([("system", 16), (name, 4)])

    requests = [Request(id=name, prompt=prompt(name), max_tokens=1) for name in "ab"]
    summary = measured(config(chunk_size=8), *requests)

    assert (summary.prompt_tokens, summary.prefill_tokens) == (40, 40)
    assert (summary.reused_tokens, summary.recomputed_tokens) == (12, 4)
    assert summary.prefix_hit_rate == 0.3


def test_waits_are_counted_by_the_rule_that_refused() -> None:
    # Never more than 20 tokens of volume: b waits until a has gone, three decode steps. The first
    # of them is owed to interleaving.
    summary = measured(config(max_batch_tkv_limit=20), request("a", 8, 4), request("b", 8, 4))

    assert summary.waits == {"SPY-PRI-3": 1, "SPY-VOL-4": 2}


# --- the summary ---------------------------------------------------------------------------------


def test_what_is_kept_does_not_grow_with_the_run() -> None:
    row = Sequence("a", prefill_len=4, computed=5)
    state = State(empty_pool([1]), decoding=(row,))
    metrics = metrics_of(config(), [request("a", 4, 60)])

    def size_after(steps: range) -> int:
        for index in steps:
            metrics.observe(
                Step(
                    index=index,
                    time=index * 1.1,
                    kind="decode",
                    before=state,
                    after=state,
                    batch=(row,),
                    outputs={"a": [1]},
                )
            )
        return len(pickle.dumps(metrics))

    assert size_after(range(1_000, 3_000)) <= size_after(range(1_000)) + 50


@pytest.mark.parametrize("how", ["finished", "aborted"])
def test_requests_that_have_left_are_forgotten(how: str) -> None:
    names = tuple(str(number) for number in range(200))
    metrics = metrics_of(config(), [request(name, 4, 1) for name in names])
    state = State(empty_pool([1]))

    unused = len(pickle.dumps(metrics))
    metrics.observe(Step(index=0, time=0.0, kind="idle", before=state, after=state))
    all_present = len(pickle.dumps(metrics))
    leaving: Any = {how: names}
    metrics.observe(Step(index=1, time=0.0, kind="decode", before=state, after=state, **leaving))
    none_present = len(pickle.dumps(metrics))

    assert unused < all_present
    assert none_present < unused + 200


@given(st.lists(st.integers(0, 20), min_size=1))
@example([*range(1, 100)])
@example([*range(1, 101)])
@example([*range(1, 102)])
@example([*range(1, 1_001)])
def test_percentiles_are_of_the_nearest_rank(values: list[int]) -> None:
    distribution = Distribution()
    for value in values:
        distribution.add(value)
    spread = distribution.spread()

    ranked = sorted(values)
    assert spread.count == len(values)
    for percentile, percent in ((spread.p50, 50), (spread.p90, 90), (spread.p99, 99)):
        assert percentile == ranked[-(-percent * len(values) // 100) - 1]
    assert spread.max == ranked[-1]
    assert spread.mean == pytest.approx(sum(values) / len(values))


@given(
    st.lists(st.integers(0, 10**6).map(lambda value: value / 64), min_size=1),
    st.integers(1, 3),
)
@example([0.0, 0.0, 1.0], 1)
def test_of_many_different_values_percentiles_are_within_a_thousandth(
    values: list[float], most_values: int
) -> None:
    distribution, exact = Distribution(most_values), Distribution()
    for value in values:
        distribution.add(value)
        exact.add(value)
    spread, due = distribution.spread(), exact.spread()

    assert spread.exact == (len({*values}) <= most_values)
    assert (spread.count, spread.max) == (due.count, due.max)
    assert spread.mean == pytest.approx(due.mean)
    for name in ("p50", "p90", "p99"):
        assert getattr(spread, name) == pytest.approx(getattr(due, name), rel=1.01 * RELATIVE_ERROR)
    assert sum(distribution.counts().values()) == len(values)
    assert sorted(distribution.counts()) == list(distribution.counts())


def test_memory_of_a_distribution_is_bounded() -> None:
    small, large = Distribution(100), Distribution(100)
    tracemalloc.start()
    for number in range(2_000):
        small.add(1 + number / 7)
    before = tracemalloc.get_traced_memory()[0]
    for number in range(40_000):
        large.add(1 + number % 2_000 / 7.3 + number / 10**6)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert large.spread().count == 40_000
    assert grown < 200_000  # bytes


# --- blocks that are swapped and copied -----------------------------------------------------------


def test_transfers_add_up_by_kind_where_steps_have_them() -> None:
    asked, swaps = request("a", prompt_len=6, max_tokens=3), {"swapped_out": 2, "swapped_in": 0}
    metrics: Metrics[Step] = Metrics(
        {asked.id: asked}, CostModel(), lambda step: Work(kind=step.kind, transfers=swaps)
    )
    for step in steps_of(config(), [asked]):
        metrics.observe(step)
    summary = metrics.summary()

    assert summary.transfers == {"swapped_out": 6, "swapped_in": 0}
    rows = {"blocks swapped out": "6", "blocks swapped in": "0"}
    assert token_figures(summary).setbacks == {"preemptions": "0", **rows}
    assert token_figures(summary).compared == {"largest step, tokens": "6", **rows}
    assert measured(config(), asked).transfers == {}


# --- the example of the README --------------------------------------------------------------------


def test_the_first_example_shows_waits_hits_jumps_and_an_abort() -> None:
    shown: Any = read_settings(EXAMPLES / "first.toml").config
    summary = measured(shown, *read_workload(EXAMPLES / "first.jsonl").requests)

    assert (summary.requests, summary.finished, summary.aborted) == (7, 6, 1)
    assert summary.waits["SPY-VOL-4"] == 25
    assert (summary.reused_tokens, summary.recomputed_tokens) == (320, 64)
    assert (summary.tkv_jumps, summary.peak_batch, summary.peak_volume) == (6, 3, 948)
