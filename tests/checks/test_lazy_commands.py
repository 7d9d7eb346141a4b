"""The command's help is there at once: nothing heavy is imported for it."""

import subprocess
import sys
from importlib import import_module

import click
import pytest

from checks.cli.main import lockstep

HEAVY = {"networkx", "numpy", "rich", "z3"}


def test_help_imports_no_solver_no_graphs_and_no_arrays() -> None:
    code = (
        "import atexit, sys; sys.argv = ['lockstep', '--help'];"
        f"atexit.register(lambda: print({HEAVY} & sys.modules.keys()));"
        "from checks.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: lockstep [OPTIONS] COMMAND [ARGS]...\n")
    assert done.stdout.endswith("set()\n")


@pytest.mark.parametrize("name", lockstep.commands)
def test_a_command_is_listed_with_the_first_sentence_of_its_own_help(name: str) -> None:
    command: click.Command = getattr(import_module(f"checks.cli.{name}"), name)
    sentence = " ".join(str(command.help).partition("\n\n")[0].split())
    assert lockstep.commands[name].help == sentence
