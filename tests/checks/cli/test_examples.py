"""`lockstep examples`: the files of the README, and nothing is written over."""

from pathlib import Path

import pytest

from checks.cli.examples import EXAMPLES
from tests.checks.command import lockstep


def test_examples_are_written_and_run() -> None:
    written = lockstep("examples")

    assert written.code == 0
    files = [one for one in EXAMPLES.rglob("*") if one.is_file()]
    assert set(written.out.split()) == {f"examples/{one.relative_to(EXAMPLES)}" for one in files}
    ran = lockstep("run", "examples/first.jsonl", "--config", "examples/first.toml")
    assert (ran.code, lockstep("examples").code) == (0, 0)


@pytest.mark.parametrize("content", [b"mine", b"\xff"])
def test_another_file_of_the_same_name_stays(content: bytes) -> None:
    Path("mine").mkdir()
    Path("mine/tiny.toml").write_bytes(content)

    refused = lockstep("examples", "--out", "mine")

    assert refused.code == 2
    assert "--out: found 'mine/tiny.toml'; allowed: a place without another file" in refused.err
    assert [one.name for one in Path("mine").iterdir()] == ["tiny.toml"]
