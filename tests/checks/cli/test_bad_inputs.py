"""Every bad input is refused: one line with the reason, exit code 2, no effect."""

import shlex
from pathlib import Path

import pytest

from tests.checks.cli.bad_inputs import BadInput, bad_inputs
from tests.checks.command import lockstep

ALL = list(bad_inputs())


@pytest.fixture(autouse=True)
def _files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DRIVERS", "drivers")
    Path("directory").mkdir()
    Path("w.jsonl").write_text('{"id": "0", "prompt_len": 1, "max_tokens": 4}\n', encoding="utf-8")
    Path("broken.jsonl").write_text('{"id": "1", \n', encoding="utf-8")
    Path("link").symlink_to("w.jsonl")
    Path("loop").symlink_to("loop")
    for name in ("c.toml", "file", "mine.py", "r.json"):
        Path(name).touch()


def contents() -> dict[str, bytes | None]:
    return {path.name: path.read_bytes() if path.is_file() else None for path in Path().iterdir()}


@pytest.mark.parametrize("bad", ALL, ids=[case.name for case in ALL])
def test_a_bad_input_is_refused_in_one_line_and_nothing_is_done(bad: BadInput) -> None:
    if bad.content is not None:
        Path("FILE").write_bytes(bad.content)
    before = contents()

    ran = lockstep(*shlex.split(bad.command))

    assert (ran.code, ran.out) == (2, "")
    *usage, line = ran.err.splitlines()
    assert bad.word in line
    assert line.startswith("lockstep: ") or usage[0].startswith("Usage: ")
    assert contents() == before
