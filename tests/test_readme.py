"""The README's commands are run as they stand there."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from attrs import fields

from checks.registry import POLICIES, claims_of
from tests.checks.command import lockstep

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXPECTED = {
    "lockstep explore documented": 1,
    'lockstep explore "open, exact, overtaking"': 1,
    "lockstep replay": 1,
    "lockstep prove": 1,
    "lockstep run examples/first.jsonl --set policy=nano-vllm": 1,
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


def table_of(policy: str) -> dict[str, str]:
    """The default of each key, as the table of a policy's keys has it."""
    tables = [block for block in README.split("\n\n") if block.startswith("| key | default |")]
    (table,) = (one for one in tables if f'| `policy` | `"{policy}"` |' in one)
    rows = (row.split(" | ") for row in table.splitlines()[2:])
    shown: dict[str, str] = {}
    for keys, defaults, _ in rows:
        named = re.findall(r"`([^`]+)`", keys)
        values = defaults.split(", ") if len(named) == 2 else [defaults] * len(named)
        shown |= zip(named, values, strict=True)
    return shown


def as_shown(value: object) -> str:
    """A default as the tables write it."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'`"{value}"`'
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)
    raise AssertionError(value)


@pytest.mark.parametrize("policy", POLICIES)
def test_table_of_a_policy_has_every_key_with_its_default(policy: str) -> None:
    shown = {key: one for key, one in table_of(policy).items() if not key.startswith("cost.")}

    keys = {key.name: key.default for key in fields(claims_of(policy).config)}
    assert shown.keys() == keys.keys()
    fixed = {key: default for key, default in keys.items() if default is not None}
    assert {key: shown[key] for key in fixed} == {
        key: as_shown(default) for key, default in fixed.items()
    }
