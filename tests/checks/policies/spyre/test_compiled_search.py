"""Searching the compiled graph: the counts of the reference, its counterexamples, its bounds."""

import numpy as np
import pytest
from attrs import evolve

from checks.evidence import EXPLORED, recorded
from checks.explore.bounds import Bounds
from checks.explore.compiled.edges import PARTITIONS, Edges
from checks.explore.compiled.search import DoesNotFitError, Known, Searched, search
from checks.explore.compiled.sketch import Sketch, chances_of_a_miss
from checks.explore.policy import machine_of
from checks.explore.properties import Properties, properties_of
from checks.explore.result import Progress
from checks.policies.spyre.compiled.model import SpyreCompiled
from checks.policies.spyre.compiled.names import GOALS, RULES
from checks.policies.spyre.compiled.support import unsupported
from checks.policies.spyre.model import spyre_model
from spec.spyre.state import State

BY_NAME = {
    instance.name: instance
    for instance in machine_of("spyre").instances
    if unsupported(instance) is None
}


def searched(
    name: str,
    bounds: Bounds | None = None,
    sample: int = 20,
    *,
    fingerprints: bool = False,
    cores: int = 1,
) -> Searched[State]:
    model = spyre_model(BY_NAME[name])
    compiled = SpyreCompiled(BY_NAME[name], model.ctx, words=5)
    properties = evolve(properties_of(model), witnesses=())
    known = Known(fingerprints, sample)
    return search(model, compiled, properties, bounds, known=known, cores=cores)


@pytest.mark.parametrize("name", BY_NAME)
def test_counts_and_counterexamples_are_those_on_record(name: str) -> None:
    record = recorded(EXPLORED)[name]

    found = searched(name, sample=3)

    counts = (found.states, found.transitions, found.depth)
    assert counts == (record["states"], record["transitions"], record["depth"])
    assert (found.stopped_by, found.difference) == (None, None)
    in_numbers = {*RULES, *GOALS}
    assert found.broken.keys() & in_numbers == record["violations"].keys() & in_numbers
    for rule in found.broken.keys() & in_numbers:
        kept = record["violations"][rule]
        assert found.broken[rule].found == kept["found"]
        assert len(found.broken[rule].counterexample.steps) == len(kept["actions"])


def test_rules_in_numbers_are_judged_on_every_edge_and_others_on_some() -> None:
    found = searched("exact, four requests", sample=10)

    assert {found.judged[rule] for rule in (*RULES, "LIF-6")} == {found.transitions}
    assert 10 <= found.judged["SPY-CHK-3"] < 200


@pytest.mark.parametrize("name", ["exact, four requests", "eviction", "odd length, exact"])
def test_with_fingerprints_the_same_is_found(name: str) -> None:
    exact, known = searched(name), searched(name, fingerprints=True)

    assert (known.by_depth, known.actions) == (exact.by_depth, exact.actions)
    assert known.transitions == exact.transitions
    assert known.broken.keys() & {*RULES} == exact.broken.keys() & {*RULES}
    for rule in known.broken.keys() & {*RULES}:  # found again, as states have no words any more
        assert known.broken[rule] == exact.broken[rule]
    assert {known.judged[rule] for rule in RULES} == {known.transitions}
    assert known.judged["SPY-CHK-3"] >= 20  # on states drawn from all depths
    assert exact.chances_of_a_miss is None


@pytest.mark.parametrize("fingerprints", [False, True])
@pytest.mark.parametrize("name", ["released", "odd length, exact"])
@pytest.mark.parametrize("bounds", [Bounds(), Bounds(max_states=2_000)])
def test_with_several_cores_the_same_is_found_in_the_same_order(
    name: str, bounds: Bounds, *, fingerprints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checks.explore.compiled.search._BATCH_STATES", 16)  # many in each depth

    alone, together = (
        searched(name, bounds, fingerprints=fingerprints, cores=cores) for cores in (1, 3)
    )

    assert evolve(together, seconds=0) == evolve(alone, seconds=0)


def test_fingerprints_take_twelve_bytes_a_state() -> None:
    sketch, random = Sketch(words=3), np.random.default_rng(0)
    for _ in range(100):
        edges = Edges.to(random.integers(0, 2**62, (1_000, 3)), np.zeros(1_000, np.int64))
        for partition in range(PARTITIONS):
            sketch.find(edges, partition)
        sketch.number(edges)
        sketch.keep(edges, 0)
        sketch.forget(sketch.count)

    assert sketch.count == 100_000
    assert sketch.bytes_per_state < 12
    assert chances_of_a_miss(10**9, 3 * 10**9) == pytest.approx((0.054, 0.108), rel=0.01)


def test_bounds_end_a_search_early() -> None:
    assert searched("exact, four requests", Bounds(max_states=1_500)).stopped_by == "max_states"
    assert searched("exact, four requests", Bounds(max_depth=3)).stopped_by == "max_depth"
    assert searched("exact, four requests", Bounds(max_seconds=0)).stopped_by == "max_seconds"


def test_a_caller_can_stop_it_and_sees_how_far_it_is() -> None:
    model, seen = spyre_model(BY_NAME["exact"]), list[Progress]()
    compiled = SpyreCompiled(BY_NAME["exact"], model.ctx)

    found = search(model, compiled, Properties(), progress=seen.append, stop=lambda: len(seen) == 3)

    assert found.stopped_by == "stop"
    assert [progress.depth for progress in seen] == [0, 1, 2]


def test_too_few_words_are_noticed() -> None:
    model = spyre_model(BY_NAME["eviction"])

    with pytest.raises(DoesNotFitError):
        search(model, SpyreCompiled(BY_NAME["eviction"], model.ctx, words=1), Properties())


def test_what_must_come_is_not_judged_where_equal_requests_are_merged() -> None:
    assert spyre_model(BY_NAME["alike"]).places is not None

    assert not {*GOALS} & {*searched("alike").judged}
    assert "LIF-6" in searched("exact").judged
