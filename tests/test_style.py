"""The written style is enforced: lint, format and types, with the locked tools."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("tool", ["ruff check --quiet", "ruff format --quiet --diff", "mypy"])
def test_tool_finds_nothing(tool: str) -> None:
    """What is checked, and by which rules, stands in pyproject.toml."""
    command = [sys.executable, "-m", *tool.split()]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
