"""The episodes of a campaign: a number or a time, counted from the first, at least 1."""

import time

from checks.harness.campaigns.campaign import Batches


def test_the_clock_starts_with_the_first_episode() -> None:
    timed = Batches(1, None, 0.2)
    assert timed.passed_seconds == 0
    time.sleep(0.3)  # the drivers of the workers start
    batches = iter(timed)
    assert [list(next(batches)), list(next(batches))] == [[0], [1]]
    assert timed.passed_seconds > 0


def test_episodes_go_on_until_the_time_has_passed() -> None:
    timed = Batches(2, None, 0.01)
    episodes = [episode for batch in timed for episode in batch]
    assert episodes == list(range(len(episodes)))
    assert timed.passed_seconds >= timed.seconds


def test_so_many_episodes_are_run_in_batches_of_the_same_size() -> None:
    assert [list(batch) for batch in Batches(2, 5, 0)] == [[0, 1], [2, 3], [4]]
