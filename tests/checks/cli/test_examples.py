"""`lockstep examples`: the files of the README, and nothing is written over."""

from pathlib import Path

import pytest

from checks.cli.examples import EXAMPLES
from tests.checks.command import lockstep


def test_examples_are_written_and_run() -> None:
    written = lockstep("examples")

    assert written.code == 0
    files = [path for path in EXAMPLES.rglob("*") if path.is_file()]
    assert set(written.out.split()) == {f"examples/{path.relative_to(EXAMPLES)}" for path in files}
    ran = lockstep("run", "examples/first.jsonl", "--config", "examples/first.toml")
    assert (ran.code, lockstep("examples").code) == (0, 0)


@pytest.mark.parametrize("content", [b"mine", b"\xff"])
def test_another_file_of_the_same_name_stays(content: bytes) -> None:
    Path("mine").mkdir()
    Path("mine/tiny.toml").write_bytes(content)

    refused = lockstep("examples", "--out", "mine")

    assert refused.code == 2
    assert "--out: found 'mine/tiny.toml'; allowed: a place without another file" in refused.err
    assert [path.name for path in Path("mine").iterdir()] == ["tiny.toml"]
