"""`lockstep bisect` with two releases that are the template, one of them faulty."""

from pathlib import Path

import pytest

from tests.checks.command import lockstep

pytestmark = pytest.mark.usefixtures("toys")


@pytest.fixture
def case() -> str:
    """A case in which 1.1 differs."""
    assert lockstep("conform", "toy==1.1", "--episodes", 1).code == 1
    return str(next(Path("findings").glob("*.jsonl")))


def test_the_release_that_differs_is_named_and_other_spans_are_answered(case: str) -> None:
    ran = lockstep("bisect", case, "--driver", "toy", "--versions", "1.0..1.2")

    lines = [line.strip().split(maxsplit=1) for line in ran.out.splitlines()]
    assert (ran.code, ran.err) == (1, "")
    assert lines[1] == ["toy==1.0", "not installed"]
    assert lines[2] == ["toy==1.1", "divergence after 0 equal steps: scheduled"]
    assert lines[3][1].startswith("as the reference in ")

    right = lockstep("bisect", case, "--driver", "toy", "--versions", "1.2..1.2")
    unknown = lockstep("bisect", case, "--driver", "toy", "--versions", "1.0..1.0")

    assert right.code == 0
    assert unknown.code == 3  # not installed is no answer
    for span, says in (
        ("1.0..9", "--versions: found '1.0..9'; allowed: FIRST..LAST out of 1.0, 1.1, 1.2"),
        ("1.2..1.0", "--versions: found '1.2..1.0'; allowed: the older release in front"),
    ):
        refused = lockstep("bisect", case, "--driver", "toy", "--versions", span)
        assert (refused.code, refused.out, says in refused.err) == (2, "", True)
