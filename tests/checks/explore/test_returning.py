"""Clients that come back: finitely many states, and runs without end that replay."""

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from checks.explore.counterexample import write_counterexample
from checks.explore.exploring import explore_instance
from checks.explore.instance import Instance, title_of
from checks.explore.model import STEP
from checks.explore.policy import machine_of
from checks.explore.properties import properties_of
from checks.explore.returning import folded, forgotten, is_gone, original, unrolled
from checks.explore.search import explore
from checks.export.trace.reading import read_trace
from checks.harness.campaigns.replaying import replay_of
from checks.registry import POLICIES
from reference.core.block_pool import empty_pool
from spec.spyre.variants import Queue
from spec.vllm_v1.records import Sequence, State

INSTANCES = {
    title_of(instance): instance for policy in POLICIES for instance in machine_of(policy).instances
}
OVERTAKING = INSTANCES["open, exact, overtaking"]


def _row(request_id: str, arrival: int) -> Sequence:
    return Sequence(request_id, prompt_len=2, arrival=arrival)


STATE = State(
    pool=empty_pool([1]),
    waiting=(_row("1", 5), _row("2", 3)),
    draining=(_row("3", 0),),
    finished=frozenset({"0"}),
    aborted=frozenset({"3"}),
    unreported=frozenset({"0", "3"}),
)


def test_a_request_is_forgotten_everywhere_and_the_others_keep_their_order() -> None:
    after = forgotten(STATE, ["0"])

    assert (after.finished, after.aborted, after.unreported) == tuple(
        map(frozenset, ("", "3", "3"))
    )
    assert [(row.id, row.arrival) for row in after.waiting] == [("1", 2), ("2", 1)]


def test_a_request_whose_blocks_are_still_written_to_is_not_gone() -> None:
    assert [is_gone(STATE, id_) for id_ in "0123"] == [True, False, False, False]


def test_each_time_is_a_request_of_its_own_to_which_the_same_may_happen() -> None:
    instance = evolve(OVERTAKING, aborts=frozenset("0"), external={"0": 4})

    own = unrolled(instance, ["arrive 0", "step", "arrive 1", "abort 0", "arrive 0", "arrive 0"])

    assert [request.id for request in own.requests] == ["0", "0#2", "0#3", "1", "2", "3"]
    first, third = own.requests[0].prompt, own.requests[2].prompt
    assert (third.tokens(), third.length) == (first.tokens(), first.length)
    assert own.aborts == {"0", "0#2", "0#3"}
    assert not own.returning
    assert own.external == {"0": 4, "0#2": 4, "0#3": 4}
    assert original("step, 0#12 accepts 2 and 1#2/1 ends") == "step, 0 accepts 2 and 1/1 ends"


def test_folded_states_have_original_names_and_none_that_is_gone() -> None:
    later = evolve(
        STATE,
        waiting=(_row("1#2", 9), _row("2", 8)),
        finished=frozenset({"0", "1", "0#2"}),
        unreported=frozenset({"3"}),
    )

    assert folded(later) == folded(STATE)
    assert folded(evolve(later, waiting=later.waiting[::-1])) != folded(STATE)


@pytest.fixture
def lasso(tmp_path: Path) -> Path:
    """A run in which request 2 waits while 0 and 1 are served again and again."""
    exploration = explore_instance(OVERTAKING)
    (finding,) = exploration.findings
    path = tmp_path / "lasso.jsonl"
    write_counterexample(exploration, finding, path)
    return path


def test_a_starvation_is_a_run_of_new_requests_that_goes_round_once_more(lasso: Path) -> None:
    trace = read_trace(lasso)

    assert [*trace.requests] == ["0", "0#2", "0#3", "1", "1#2", "1#3", "2", "3"]
    assert trace.header["returning"] == ["0", "1", "2", "3"]
    assert trace.violation is not None
    assert trace.violation.loop == len(trace.steps) - 4  # those of a round
    assert all("2" in line["waiting"] for line in trace.steps)
    assert replay_of(trace).confirms


def test_a_run_that_does_not_come_round_is_no_starvation(lasso: Path) -> None:
    lines = lasso.read_text(encoding="utf-8").splitlines()
    last = json.loads(lines[-1])
    last["violation"]["loop"] += 1
    lasso.write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n", encoding="utf-8")

    assert not replay_of(read_trace(lasso)).confirms


def test_those_who_come_back_are_told_apart() -> None:
    # 0 and 1 differ in nothing: if one starved while the other is served, it would have to show.
    model = machine_of("spyre").model(OVERTAKING)
    (state,) = model.initial()
    first, second = (next(_arrivals(model, state, id_)) for id_ in "01")

    assert model.canonical(first) != model.canonical(second)


def _arrivals(model: Any, state: Any, request_id: str) -> Any:
    return (edge.state for edge in model.successors(state) if edge.action == f"arrive {request_id}")


def test_a_closed_instance_has_the_same_states_where_no_client_comes_back() -> None:
    def states(instance: Instance[Any]) -> int:
        return explore_instance(instance).result.states

    once = evolve(OVERTAKING, returning=frozenset())
    assert states(once) < states(OVERTAKING)
    assert explore_instance(once).findings == ()


def _starved_where_loads_are(fair: int | None) -> list[str]:
    """The violations of liveness; `fair`: the fairness class of loads, if it is another one."""
    model: Any = machine_of("vllm-v1").model(INSTANCES["vllm-v1, open, async load"])
    between = model.between
    if fair is not None:
        model = evolve(
            model, between=lambda state: (evolve(edge, fair=fair) for edge in between(state))
        )
    properties = properties_of(model)
    result = explore(model, properties.eventually, keep_going=True)
    return [violation.found for violation in result.violations]


def test_a_load_ends_while_steps_and_arrivals_continue() -> None:
    assert _starved_where_loads_are(fair=None) == []


@pytest.mark.parametrize("fair", [0, STEP], ids=["of none", "of the steps"])
def test_without_a_condition_of_its_own_a_load_need_not_end(fair: int) -> None:
    # 1 is served and returns again and again.
    (found,) = _starved_where_loads_are(fair)

    assert found.startswith("request 0: ")


def _always(_queue: Queue, _refusal: str) -> bool:
    return True


def test_what_is_served_starves_where_the_queue_steps_over_what_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Queue, "steps_over", _always)
    model = machine_of("spyre").model(INSTANCES["open, exact"])
    properties = properties_of(model)

    found = explore(model, properties.eventually, keep_going=True).violations

    assert [violation.rule for violation in found] == ["LIF-6"]
