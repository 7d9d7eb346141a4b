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
    "lockstep explore layout documented": 1,
    'lockstep explore "open, exact, overtaking"': 1,
    "lockstep replay": 1,
    "lockstep prove": 1,
    "lockstep run examples/first.jsonl --set policy=nano-vllm": 1,
}  # all others: 0


MOST_LINES, MOST_WORDS = 120, 900
# A shell block, and what the page shows of the output of its commands.
BLOCK = re.compile(r"```sh\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


def lockstep_commands(block: str) -> list[str]:
    """The `lockstep` lines of a shell block, in their order."""
    lines = (line.removeprefix("./bootstrap ") for line in block.splitlines())
    return [line for line in lines if line.startswith("lockstep ")]


@pytest.mark.parametrize("page", [README, pytest.param(COMMANDS, marks=pytest.mark.thorough)])
def test_the_commands_of_a_page_end_and_print_as_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert len([line for block, _ in blocks for line in lockstep_commands(block)]) >= 6
    for block, shown in blocks:
        printed = ""
        for line in lockstep_commands(block):
            ran = lockstep(*shlex.split(line)[1:])
            expected = next((code for name, code in EXPECTED.items() if line.startswith(name)), 0)
            assert ran.code == expected, f"{line}\n{ran.err}"
            printed += ran.out
        assert [line for line in shown.splitlines() if line not in printed] == []


def test_each_question_of_the_readme_has_a_command_and_what_it_prints() -> None:
    text = README.read_text(encoding="utf-8")
    (questions,) = re.findall(r"^## Four questions\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)

    assert len(re.findall(r"^\*\*.*\?\*\*", questions, re.MULTILINE)) == 4
    assert [bool(shown) for _, shown in BLOCK.findall(questions)] == [True] * 4


def test_the_readme_says_how_its_first_command_ends() -> None:
    text = " ".join(README.read_text(encoding="utf-8").split())
    (quoted,) = re.findall(r"ends with `(every rule holds.*?)`", text)
    (first, *_) = lockstep_commands(BLOCK.findall(README.read_text(encoding="utf-8"))[0][0])
    words = [str(ROOT / word) if "/" in word else word for word in shlex.split(first)[1:]]

    assert quoted in lockstep(*words).out


def test_the_readme_is_short() -> None:
    text = README.read_text(encoding="utf-8")

    assert len(text.splitlines()) <= MOST_LINES
    assert len(text.split()) <= MOST_WORDS
