"""Each wrong version in `third_table.toml` makes another run of the one that stands beside it."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = ("checks", "engine", "lockstep", "reference", "spec")
TABLE = tomllib.loads(Path(__file__).with_name("third_table.toml").read_text())["change"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in a directory of its own, in which a change may be made."""
    root = tmp_path_factory.mktemp("copy")
    for room in ROOMS:
        shutil.copytree(ROOT / room, root / room, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def trace_of(root: Path, row: dict[str, Any]) -> str:
    """What each step of the row's run does, as the program in `root` writes it."""
    requests = [
        {key: value for key, value in request.items() if key != "times"}
        for request in row["requests"]
        for _ in range(request.get("times", 1))
    ]
    lines = [json.dumps({"id": str(place), **request}) for place, request in enumerate(requests)]
    Path("requests.jsonl").write_text("\n".join(lines) + "\n")
    chosen = [f"--set={key}={as_text(value)}" for key, value in row["config"].items()]
    command = ["run", "requests.jsonl", "--using", "reference", "--trace", "trace.jsonl", *chosen]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return Path("trace.jsonl").read_text()


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("row", TABLE, ids=[row["id"] for row in TABLE])
def test_the_change_makes_another_run(row: dict[str, Any], copy: Path) -> None:
    file = copy / row["file"]
    text = file.read_text()
    assert text.count(row["old"]) == 1
    file.write_text(text.replace(row["old"], row["new"]))
    try:
        assert trace_of(copy, row) != trace_of(ROOT, row)
    finally:
        file.write_text(text)
