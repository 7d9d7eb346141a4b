"""A driver of a policy without a machine: it runs, and is not compared."""

from pathlib import Path

import pytest

from tests.checks.command import lockstep
from tests.checks.harness.driver.files import STEP, TEMPLATE

OWN = [
    ('"name": "template"', '"policy": "mine", "name": "template"'),
    (" = config\n", ' = {"max_num_seqs": 8, "block_size": 16, "chunk_size": 256}\n'),
]


def unmodelled(*changes: tuple[str, str]) -> Path:
    """The template as the driver of a policy of its own, changed further."""
    text = TEMPLATE.read_text(encoding="utf-8")
    for old, new in (*OWN, *changes):
        assert old in text
        text = text.replace(old, new)
    path = Path("mine.py")
    path.write_text(text, encoding="utf-8")
    return path


def test_a_trial_serves_three_requests_and_names_the_fields_of_its_records() -> None:
    ran = lockstep("driver", "check", unmodelled())

    assert ran.code == 0
    assert ran.out == (
        "template: toy 1.0\n"
        "  mine has no machine yet: nothing is compared\n"
        "  abilities: abort\n"
        "  fields of a step: before, decoding, finished, kind, outputs, paused, prefilling, "
        "running, scheduled, waiting\n"
        "  3 requests served in 8 steps\n"
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("raise SystemExit('out of memory')", "it ended with code 1\nout of memory"),
        ("1 / len(self.decoding)", "; it raised ZeroDivisionError: division by zero (mine.py:"),
        ("self.waiting = []", "  0 requests served in 0 steps\n"),
    ],
)
def test_a_trial_in_which_a_request_is_not_served_fails(change: str, says: str) -> None:
    ran = lockstep("driver", "check", unmodelled((STEP, f"{STEP}        {change}\n")))

    assert ran.code in (1, 2)
    assert says in ran.out + ran.err


@pytest.mark.parametrize("command", [("conform",), ("fuzz", "--target")])
def test_an_unmodelled_release_is_not_compared(command: tuple[str, ...]) -> None:
    ran = lockstep(*command, unmodelled())

    assert ran.code == 2
    assert ran.err == (
        "lockstep: driver's policy: found 'mine'; allowed: spyre, nano-vllm, vllm-v1, vllm-v0; "
        "no other has a machine yet to compare a driver with\n"
    )
