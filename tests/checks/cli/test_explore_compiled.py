"""`lockstep explore --using compiled`: output, files and refusals."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from typing import Any

import pytest

from checks.cores import beside
from checks.explore.compiled import IS_INSTALLED
from tests.checks.command import lockstep


def _compile_after_few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled machine is made after 20 states, and the reference waits until it is ready."""

    @contextmanager
    def waiting() -> Iterator[Executor]:
        with beside() as pool:
            submit = pool.submit

            def submit_and_wait(*work: Any) -> Future[Any]:
                done = submit(*work)
                wait([done])
                return done

            monkeypatch.setattr(pool, "submit", submit_and_wait)
            yield pool

    monkeypatch.setattr("checks.explore.exploring.beside", waiting)
    monkeypatch.setattr("checks.explore.exploring._FEW_STATES", 20)


def test_counts_are_those_of_the_reference_and_the_sample_is_printed() -> None:
    plain, compiled = (
        json.loads(lockstep("explore", "eviction", "--using", using, "--json", "-").out)
        for using in ("reference", "compiled")
    )

    (plain,), (compiled,) = plain["instances"], compiled["instances"]
    for key in ("states", "transitions", "depth", "actions", "outcome"):
        assert plain[key] == compiled[key]
    assert (plain["using"], compiled["using"]) == ("reference", "compiled")
    assert plain["sampled"] == {}
    assert {*compiled["rules"], *compiled["sampled"]} == {*plain["rules"]}
    assert "SPY-VOL-1" in compiled["rules"]
    assert compiled["sampled"]["SPY-CHK-3"] > 100
    assert "LIF-6" in compiled["rules"]
    said = " ".join(lockstep("explore", "eviction", "--using", "compiled").out.split())
    assert re.search(r"compiled: \d+ rules hold, \d+ not seen, \d+ on 826 edges", said)


def test_of_many_states_the_compiled_machine_goes_through_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = json.loads(lockstep("explore", "odd length, exact", "--json", "-").out)
    _compile_after_few_states(monkeypatch)
    many = json.loads(lockstep("explore", "odd length, exact", "--json", "-").out)
    bounded = lockstep("explore", "odd length, exact", "--max-states", 10, "--json", "-")

    (few,), (many,) = few["instances"], many["instances"]
    assert (few["using"], many["using"]) == ("reference", "compiled")
    for key in ("states", "transitions", "depth", "actions", "outcome", "violations", "witnesses"):
        assert few[key] == many[key]  # the sample holds all states, they are few
    assert json.loads(bounded.out)["instances"][0]["using"] == "reference"


def test_what_needs_the_reference_has_it_however_many_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _compile_after_few_states(monkeypatch)
    for options in (["--order", "dfs"], ["--expect", "recorded"]):
        ran = lockstep("explore", "odd length, exact", *options, "--json", "-")

        assert json.loads(ran.out)["instances"][0]["using"] == "reference"


def test_a_bound_ends_it_and_is_named() -> None:
    ran = lockstep("explore", "exact, four requests", "--using", "compiled", "--max-states", 1_100)

    assert ran.code == 3
    assert "incomplete (max_states)" in ran.out
    assert "1 not judged" in " ".join(ran.out.split())  # LIF-6 speaks of the whole graph


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["exact", "--record"], "--record"),
        (["exact", "--order", "dfs"], "--order"),
        (["exact", "--fingerprints", "--resume", "saved"], "--fingerprints"),
        (["--set", "policy=vllm-v1", "lookahead"], "vllm-v1"),
    ],
)
def test_what_it_cannot_do_is_refused(options: list[str], reason: str) -> None:
    ran = lockstep("explore", *options, "--using", "compiled")

    assert ran.code == 2
    assert reason in ran.err


def test_what_was_stopped_goes_on_with_the_same_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    _compile_after_few_states(monkeypatch)
    explore = ("explore", "exact", "--json", "-")
    whole = json.loads(lockstep(*explore).out)["instances"][0]

    stopped = lockstep(*explore, "--resume", "saved", "--max-states", 200)
    resumed = json.loads(lockstep(*explore, "--resume", "saved").out)["instances"][0]

    assert stopped.code == 3
    assert json.loads(stopped.out)["instances"][0]["states"] < whole["states"]
    for key in ("using", "states", "transitions", "depth", "actions", "sampled", "outcome"):
        assert resumed[key] == whole[key]


def test_only_the_same_machine_and_instance_resume_a_file() -> None:
    assert lockstep("explore", "exact", "--using", "compiled", "--resume", "saved").code == 0

    other = lockstep("explore", "layout", "--using", "compiled", "--resume", "saved")
    reference = lockstep("explore", "exact", "--using", "reference", "--resume", "saved")

    assert (other.code, reference.code) == (2, 2)
    assert "about" in other.err
    assert "file" in reference.err


def test_with_fingerprints_it_says_how_probably_a_state_was_missed() -> None:
    exact, fingerprinted = (
        json.loads(lockstep("explore", "documented", *options, "--json", "-").out)
        for options in (["--using", "compiled"], ["--fingerprints"])
    )

    (exact,), (fingerprinted,) = exact["instances"], fingerprinted["instances"]
    for key in ("states", "transitions", "depth", "actions", "violations"):
        assert exact[key] == fingerprinted[key]
    assert exact["chances_of_a_miss"] is None
    states, edges = fingerprinted["states"], fingerprinted["transitions"]
    found_again = edges + 1 - states
    assert fingerprinted["chances_of_a_miss"] == [states**2 / 2**64, states * found_again / 2**64]
    ran = lockstep("explore", "eviction", "--fingerprints")
    assert "a state missed with a probability of" in " ".join(ran.out.split())


def test_without_numba_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checks.policies.spyre.compiled.support.IS_INSTALLED", False)

    ran = lockstep("explore", "documented", "--using", "compiled")

    assert IS_INSTALLED
    assert ran.code == 2
    assert "pip install 'lockstep-schedulers[fast]'" in ran.err
