"""The README's commands are run as they stand there."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from attrs import fields

from spec.config import Config
from tests.checks.command import lockstep

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXPECTED = {
    "lockstep explore documented": 1,
    "lockstep replay": 1,
    "lockstep prove": 1,
}  # all others: 0
SLOW = ("lockstep explore", "lockstep prove")  # run by tests of checks/evidence and checks/prove


def commands() -> list[str]:
    """The `lockstep` lines of the README's shell blocks, in their order, without comments."""
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    ours = [line.removeprefix("./bootstrap ") for line in lines if "lockstep" in line]
    return [line for line in ours if line not in SLOW]


def test_the_readme_commands_end_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    assert len(commands()) >= 6
    for line in commands():
        ran = lockstep(*shlex.split(line)[1:])
        expected = next((code for name, code in EXPECTED.items() if line.startswith(name)), 0)
        assert ran.code == expected, f"{line}\n{ran.err}"


def test_the_readme_quotes_what_the_first_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    ran = lockstep(*shlex.split(commands()[0])[1:])
    quoted = re.search(r"```text\n(.*?)\n```", README, flags=re.DOTALL)
    assert quoted is not None
    assert quoted[1] in ran.out


@pytest.mark.parametrize("key", [key.name for key in fields(Config)])
def test_the_configuration_table_names_every_key(key: str) -> None:
    assert f"`{key}`" in README
