"""A search that is stopped, saved, loaded and resumed ends as if it had never stopped."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from checks.explore.bounds import Bounds
from checks.explore.checkpoint import Checkpoint, CheckpointError, load, save
from checks.explore.model import Always, Eventually, Property, StateT, Witness
from checks.explore.result import Outcome, Result
from checks.explore.search import Order, explore
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


def _stopped(model: Counter, expansions: int = 3) -> Checkpoint[int]:
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
        save(resumed.checkpoint, path, "mutex of 3")
        resumed = explore(
            model,
            PROPERTIES,
            WITNESSES,
            order=order,
            resume=load(path, "mutex of 3"),
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
    checkpoint = _stopped(Counter(9))
    checkpoint.store.seconds += 100

    assert explore(Counter(9), [], resume=checkpoint).seconds > 100


def test_checkpoint_is_used_up_by_resuming(tmp_path: Path) -> None:
    checkpoint = _stopped(Counter(9))
    explore(Counter(9), [], resume=checkpoint)

    again = refusal(CheckpointError, explore, Counter(9), [], resume=checkpoint)
    with pytest.raises(CheckpointError, match="used up"):
        save(checkpoint, tmp_path / "late", "counter")

    expected = "checkpoint: found 'used up'; allowed: to be resumed once; save and load it"
    assert again == expected
    assert list(tmp_path.iterdir()) == []


def test_search_with_other_settings_is_refused_and_the_checkpoint_still_good() -> None:
    checkpoint = _stopped(Counter(9))
    small = Always[int]("small", lambda _: None)

    def refused(*properties: Property[int], order: Order = "bfs") -> str:
        return refusal(
            CheckpointError, explore, Counter(9), properties, order=order, resume=checkpoint
        )

    assert refused(order="dfs") == "checkpoint, order: found 'bfs'; allowed: 'dfs'"
    assert refused(small) == "checkpoint, properties: found (); allowed: ('small',)"
    assert explore(Counter(9), [], resume=checkpoint).outcome is Outcome.HOLDS


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "search"
    save(_stopped(Counter(9)), path, "counter to 9")
    return path


def _refusal(path: Path, fingerprint: str = "counter to 9") -> str:
    return refusal(CheckpointError, load, path, fingerprint).replace(str(path), "FILE")


def test_checkpoint_of_another_model_is_refused(saved: Path) -> None:
    assert _refusal(saved, "counter to 8") == (
        "FILE: fingerprint: found 'counter to 9'; allowed: 'counter to 8'"
    )


@pytest.mark.parametrize(
    ("damaged", "refusal"),
    [
        (lambda raw: raw.replace(b'"version": 2', b'"version": 3', 1), "version: found 3; allowed"),
        (lambda raw: raw.replace(b'"python": "3.', b'"python": "2.', 1), "python: found '2."),
        (lambda raw: raw[:-9], "content: found '.*'; allowed: a whole file$"),
    ],
    ids=["another version", "another Python", "truncated"],
)
def test_checkpoint_that_cannot_be_resumed_here_is_refused(
    saved: Path, damaged: Callable[[bytes], bytes], refusal: str
) -> None:
    saved.write_bytes(damaged(saved.read_bytes()))

    assert re.match(f"FILE: {refusal}", _refusal(saved), re.DOTALL)


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"", "FILE: header: found b''; allowed: one line of JSON"),
        (b"\x80\x05K\x01.", "FILE: header: found b'\\x80\\x05K\\x01.'; allowed: one line of JSON"),
        (b"[]\n", "FILE: format: found None; allowed: 'lockstep-checkpoint'"),
    ],
)
def test_file_that_is_no_checkpoint_is_refused(
    tmp_path: Path, content: bytes, refusal: str
) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)

    assert _refusal(path) == refusal


def test_directory_and_missing_file_are_refused(tmp_path: Path) -> None:
    assert (
        _refusal(tmp_path) == "FILE: file: found 'Is a directory'; allowed: a readable checkpoint"
    )
    assert "No such file or directory" in _refusal(tmp_path / "nothing")


def test_content_is_not_unpickled_unless_the_header_fits(tmp_path: Path) -> None:
    path = tmp_path / "trap"
    trap = b"cbuiltins\nexec\n(S'raise SystemExit'\ntR."
    path.write_bytes(b'{"format": "lockstep-checkpoint", "version": 2}\n' + trap)

    assert "python: found None" in _refusal(path)


def test_failed_save_leaves_the_older_file(saved: Path) -> None:
    whole = saved.read_bytes()
    checkpoint = _stopped(Counter(9))
    checkpoint.store.frontier.append((0, lambda: None))  # type: ignore[arg-type]

    with pytest.raises(Exception, match="lambda"):
        save(checkpoint, saved, "counter to 9")

    assert saved.read_bytes() == whole
    assert list(saved.parent.iterdir()) == [saved]
