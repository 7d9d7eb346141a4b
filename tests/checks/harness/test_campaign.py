"""Episodes for a time: counted from the first, never none."""

from checks.conformance.campaign import TimedEpisodes


def test_the_clock_stands_still_until_the_first_episode_is_asked_for() -> None:
    timed = TimedEpisodes(1.0)
    assert timed.passed_seconds == 0
    next(iter(timed))
    assert timed.passed_seconds > 0


def test_there_is_one_episode_however_short_the_time() -> None:
    assert list(TimedEpisodes(1e-9)) == [0]


def test_episodes_go_on_until_the_time_has_passed() -> None:
    timed = TimedEpisodes(0.01)
    episodes = list(timed)
    assert episodes == list(range(len(episodes)))
    assert timed.passed_seconds >= timed.seconds
