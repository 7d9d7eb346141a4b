"""A search that is stopped, saved, loaded and resumed gives the result of one run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from checks.explore.bounds import Bounds
from checks.explore.checkpoint import Checkpoint
from checks.explore.model import Always, Eventually, Property, StateT, Witness
from checks.explore.result import Outcome, Result
from checks.explore.search import Order, explore
from checks.export.checkpoint import CheckpointError, load, save
from tests.checks.explore.toys import CRITICAL, TRYING, Counter, Drawn, Mutex, Processes, drawn
from tests.refusals import refusal

PROPERTIES: list[Property[Processes]] = [
    Always("alone", lambda state: "two" if state.count(CRITICAL) > 1 else None),
    Eventually("served", lambda state: TRYING in state, lambda state: CRITICAL in state),
]
WITNESSES = [Witness[Processes]("entered", lambda _, step: step.action.startswith("enter"))]


def _after(expansions: int) -> Callable[[], bool]:
    left = iter(range(expansions))
    return lambda: next(left, None) is None


def _plain(result: Result[StateT]) -> Result[StateT]:
    return evolve(result, seconds=0, bytes_per_state=0)


def _stopped(model: Counter, expansions: int = 3) -> Checkpoint:
    checkpoint = explore(model, [], stop=_after(expansions)).checkpoint
    assert checkpoint is not None
    return checkpoint


def test_stopped_search_is_incomplete() -> None:
    result = explore(Counter(9), [], stop=_after(3))

    assert (result.outcome, result.stopped_by) == (Outcome.INCOMPLETE, "stop")
    assert result.states == 4


def test_stopped_search_is_not_kept_waiting_by_liveness() -> None:
    """The run 0, 1, 0 refutes already, and the rest of the search finds it again."""
    never = Eventually[int]("never", lambda _: True, lambda _: False)
    model = Drawn(edges=((0, 1, True), (1, 0, True), (1, 2, True)))

    stopped = explore(model, [never], stop=_after(2))
    resumed = explore(model, [never], resume=stopped.checkpoint)

    assert stopped.outcome is Outcome.INCOMPLETE
    assert resumed.outcome is Outcome.VIOLATED


@pytest.mark.parametrize("order", ["bfs", "dfs"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_resumed_from_a_file_again_and_again_the_result_is_the_same(
    tmp_path: Path, order: Order, symmetric: bool
) -> None:
    model, path = Mutex(3, symmetric=symmetric), tmp_path / "search"
    whole = explore(model, PROPERTIES, WITNESSES, order=order)
    resumed = explore(model, PROPERTIES, WITNESSES, order=order, stop=_after(1))
    stops = 1

    while resumed.checkpoint is not None:
        save(path, {"processes": 3}, resumed.checkpoint)
        resumed = explore(
            model,
            PROPERTIES,
            WITNESSES,
            order=order,
            resume=load(path, {"processes": 3}, Checkpoint),
            stop=_after(1),
        )
        stops += 1

    assert stops == whole.states
    assert _plain(resumed) == _plain(whole)


@given(drawn(), st.integers(0, 6), st.sampled_from(["bfs", "dfs"]), st.booleans())
def test_any_search_resumes_to_the_same_result(
    model: Drawn, expansions: int, order: Order, keep_going: bool
) -> None:
    properties: list[Property[int]] = [
        Always("not 3", lambda state: "found" if state == 3 else None),
        Eventually("reaches 2", lambda state: state == 1, lambda state: state == 2),
    ]
    witnesses = [Witness[int]("to 4", lambda _, step: step.state == 4)]

    def search(**how: Any) -> Result[int]:
        return explore(model, properties, witnesses, order=order, keep_going=keep_going, **how)

    result = search(stop=_after(expansions))
    if result.checkpoint is not None:
        result = search(resume=result.checkpoint)

    assert _plain(result) == _plain(search())


def test_depth_bound_can_be_raised() -> None:
    model = Mutex(3, locked=False)
    bounded = explore(model, PROPERTIES, bounds=Bounds(max_depth=2))

    resumed = explore(model, PROPERTIES, resume=bounded.checkpoint)

    assert bounded.states < resumed.states
    assert _plain(resumed) == _plain(explore(model, PROPERTIES))


def test_seconds_of_all_parts_are_added() -> None:
    checkpoint = evolve(_stopped(Counter(9)), seconds=100)

    assert explore(Counter(9), [], resume=checkpoint).seconds > 100


def test_checkpoints_are_given_while_the_search_runs_and_each_resumes_to_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("checks.explore.bounds._TICK_SECONDS", 0)
    monkeypatch.setattr("checks.explore.bounds._KEPT_EVERY_SECONDS", 0)
    kept: list[Checkpoint] = []
    model = Mutex(3, locked=False)

    whole = explore(model, PROPERTIES, WITNESSES, keep_going=True, keep=kept.append)

    assert [sum(piece.taken for piece in checkpoint.pieces) for checkpoint in kept] == [
        *range(whole.states)
    ]
    for checkpoint in kept:
        resumed = explore(model, PROPERTIES, WITNESSES, keep_going=True, resume=checkpoint)
        assert _plain(resumed) == _plain(whole)


def test_states_are_not_judged_again_but_where_a_rule_was_broken() -> None:
    judged: list[int] = []

    def holds(state: int) -> str | None:
        judged.append(state)
        return "found" if state == 3 else None

    rules = [Always("judged", lambda state: judged.append(state)), Always("not 3", holds)]
    stopped = explore(Counter(9), rules, keep_going=True, stop=_after(6))
    judged.clear()
    resumed = explore(Counter(9), rules, keep_going=True, resume=stopped.checkpoint)

    assert [violation.rule for violation in resumed.violations] == ["not 3"]
    assert judged == [0, 0, 3, 3, 7, 8, 9]


def test_machine_that_takes_other_steps_by_now_is_refused() -> None:
    checkpoint = _stopped(Counter(9), 9)
    broken = explore(Counter(9), [LESS], keep_going=True, stop=_after(6)).checkpoint
    assert broken is not None

    def refused(limit: int, checkpoint: Checkpoint, *rules: Property[int]) -> str:
        how = {"keep_going": checkpoint.setup.keep_going, "resume": checkpoint}
        return refusal(CheckpointError, explore, Counter(limit), rules, **how)

    assert refused(7, checkpoint) == "checkpoint, states: found 10; allowed: 8"
    unbroken = evolve(LESS, holds=lambda _: None)
    assert refused(9, broken, unbroken) == "checkpoint, broken.less: found 2; allowed: nothing"


LESS = Always[int]("less", lambda state: None if state < 3 else "not less")


def test_checkpoint_that_asks_for_more_than_there_is_ends() -> None:
    checkpoint = _stopped(Counter(9))
    endless = evolve(checkpoint, pieces=(evolve(checkpoint.pieces[0], taken=10**18),))

    found = refusal(CheckpointError, explore, Counter(10**9), [], resume=endless)

    assert found == "checkpoint, states: found 4; allowed: 5"


def test_search_with_other_settings_is_refused_and_the_checkpoint_is_still_good() -> None:
    checkpoint = _stopped(Counter(9))
    small = Always[int]("small", lambda _: None)

    def refused(*properties: Property[int], order: Order = "bfs") -> str:
        return refusal(
            CheckpointError, explore, Counter(9), properties, order=order, resume=checkpoint
        )

    assert refused(order="dfs") == "checkpoint, order: found 'bfs'; allowed: 'dfs'"
    assert refused(small) == "checkpoint, properties: found (); allowed: ('small',)"
    assert explore(Counter(9), [], resume=checkpoint).outcome is Outcome.HOLDS


# --- in a file ------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "search"
    save(path, {"counter": {"to": 9}}, _stopped(Counter(9)))
    return path


def _refusal(path: Path, to: int = 9) -> str:
    found = refusal(CheckpointError, load, path, {"counter": {"to": to}}, Checkpoint)
    return found.replace(str(path), "FILE")


def test_checkpoint_of_another_model_is_refused_by_what_differs(saved: Path) -> None:
    assert _refusal(saved, to=8) == "FILE: about.counter.to: found 9; allowed: 8"


@pytest.mark.parametrize(
    ("old", "new", "refusal"),
    [
        ('"version": 3', '"version": 2', "version: found 2; allowed: 3"),
        ('"version": 3', '"version": 3.5', "version: found 3.5; allowed: 3"),
        ('"taken": 3', '"taken": -3', "content.pieces[0].taken: found -3; allowed: a whole"),
        ('"taken": 3', '"taken": 1e9', "content.pieces[0].taken: found 1000000000.0; allowed: a"),
        ('"states": 4', '"state": 4', "content.states: found nothing; allowed: a value"),
        ('"order": "bfs"', '"order": ["bfs"]', "content.setup.order: found ['bfs']; allowed: a t"),
        ('"seconds"', '"seconds": NaN, "x"', "file: found "),
    ],
)
def test_checkpoint_that_cannot_be_resumed_is_refused(
    saved: Path, old: str, new: str, refusal: str
) -> None:
    text = saved.read_text()
    assert old in text
    saved.write_text(text.replace(old, new))

    assert _refusal(saved).startswith(f"FILE: {refusal}")


def test_checkpoint_that_is_cut_off_anywhere_is_refused(saved: Path) -> None:
    whole = saved.read_bytes().rstrip()
    for length in range(0, len(whole), 7):
        saved.write_bytes(whole[:length])
        assert "allowed: a JSON object" in _refusal(saved)


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"", "file: found ''; allowed: a JSON object"),
        (b"\x80\x05K\x01.", "file: found '\ufffd\\x05K\\x01.'; allowed: a JSON object"),
        (b"[" * 10**6, "file: found '[[[["),
        (b"[]\n", "file: found '[]'; allowed: a JSON object"),
        (b"{}\n", "format: found None; allowed: 'lockstep-checkpoint'"),
    ],
    ids=["empty", "a pickle", "nested", "a list", "nothing"],
)
def test_file_that_is_no_checkpoint_is_refused(
    tmp_path: Path, content: bytes, refusal: str
) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)

    assert _refusal(path).startswith(f"FILE: {refusal}")


def test_directory_missing_file_and_what_never_ends_are_refused(tmp_path: Path) -> None:
    assert _refusal(tmp_path) == "cannot read FILE: is a directory"
    assert "no such file or directory" in _refusal(tmp_path / "nothing")
    assert "at most 50,000,000 bytes" in _refusal(Path("/dev/zero"))


def test_pickle_that_would_run_something_runs_nothing(tmp_path: Path) -> None:
    path, trap = tmp_path / "trap", tmp_path / "sprung"
    header = b'{"format": "lockstep-checkpoint", "version": 2, "python": "3.11", "fingerprint": ""}'
    path.write_bytes(header + b"\ncposix\nsystem\n(S'touch %s'\ntR." % bytes(trap))

    assert "allowed: a JSON object" in _refusal(path)
    assert not trap.exists()


def test_failed_save_leaves_the_older_file(saved: Path) -> None:
    whole = saved.read_bytes()

    with pytest.raises(TypeError, match="serializable"):
        save(saved, {"counter": {"to": 9}}, object())

    assert saved.read_bytes() == whole
    assert list(saved.parent.iterdir()) == [saved]
