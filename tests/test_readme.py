"""The commands of the README and of the chapter on the command run unchanged."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.checks.command import lockstep

ROOT = Path(__file__).parents[1]
README, COMMANDS = ROOT / "README.md", ROOT / "spec" / "chapters" / "commands.md"
EXPECTED = {
    "lockstep explore documented": 1,
    'lockstep explore "open, exact, overtaking"': 1,
    "lockstep replay": 1,
    "lockstep prove": 1,
    "lockstep run examples/first.jsonl --set policy=nano-vllm": 1,
}  # all others: 0


def commands(page: Path) -> list[str]:
    """The `lockstep` lines of the page's shell blocks, in their order."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line.removeprefix("./bootstrap ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("lockstep ")]


@pytest.mark.parametrize("page", [README, pytest.param(COMMANDS, marks=pytest.mark.thorough)])
def test_the_commands_of_a_page_end_as_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    assert len(commands(page)) >= 6
    for line in commands(page):
        ran = lockstep(*shlex.split(line)[1:])
        expected = next((code for name, code in EXPECTED.items() if line.startswith(name)), 0)
        assert ran.code == expected, f"{line}\n{ran.err}"


def test_the_readme_quotes_what_the_first_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    ran = lockstep(*shlex.split(commands(README)[0])[1:])
    (quoted,) = re.findall(
        r"```text\n(every rule holds.*?)\n```", README.read_text(encoding="utf-8")
    )
    assert quoted in ran.out
