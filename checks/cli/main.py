"""The `lockstep` command: its subcommands and their exit codes."""

import os
import sys
from importlib import import_module

import click

from checks.cli.contract import (
    refuse_missing_directory,
    refuse_too_little_memory,
    run_command,
    with_standard_streams,
)
from checks.ending import ignore_signals, signals_resent

_NAME = "lockstep"
_COMPLETION = "_LOCKSTEP_COMPLETE"  # the variable by which a shell asks for completions

# The first sentence of each command's help; the module `checks.cli.NAME` has the rest.
_COMMANDS = {
    "bisect": "Run the recorded CASE on each installed release and say where it differs.",
    "book": "Write the book as a site: chapters, rules, proofs and runs to look at.",
    "calibrate": "Fit the costs of steps to the LOG of a running server, in seconds.",
    "check": "Judge the LOG of a running server.",
    "conform": "Serve worlds and random cases with a released scheduler and the reference.",
    "driver": "Install, list and try drivers of released schedulers.",
    "examples": "Write the example workloads and configurations into a directory.",
    "explain": (
        "Say what WORD means in the chapters, the commands and their output; without any, list all."
    ),
    "explore": "Go through every reachable state and judge every rule in it.",
    "fuzz": "Serve random cases with a target and with the reference, and compare every step.",
    "mutants": "Make the program wrong in one place after the other and see which check notices.",
    "prove": "Prove or refute, for every length, what the formulas of the specification claim.",
    "replay": "Run again what FILE says and compare, step by step.",
    "rules": (
        "List every rule: its sentence, its source, and which checks cover it with what result."
    ),
    "run": "Serve WORKLOAD and judge every step by every rule.",
    "simulate": (
        "Serve WORKLOAD with the decisions of `run`, in seconds: no token is computed, no rule "
        "judged."
    ),
    "survey": "Serve the same random cases with each installed release of DRIVER, judged alone.",
    "view": "Write FILE as one page to look at, step by step, with the verdict of every rule.",
}

_EPILOG = """\b
Exit codes, the same for every command:
  0  everything asked for holds, within the bounds that the output names
  1  a violation or a divergence was found; where it was written is printed
  2  usage or input error: nothing was run; or an error of a driver: no verdict
  3  incomplete: a budget, a signal or a closed pipe ended the work before an answer
  4  the tool itself failed (an error of Lockstep, a full disk, memory): no verdict

Start with:  lockstep examples
             lockstep run examples/first.jsonl --config examples/first.toml
"""


class _LoadedWhenCalled(click.Group):
    """A group that imports only the command that is called."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, listed, rest = super().resolve_command(ctx, args)
        if name is None or listed is None:
            return name, listed, rest
        command: click.Command = getattr(import_module(f".{name}", __package__), name)
        return name, command, rest


@click.group(
    cls=_LoadedWhenCalled,
    commands=[click.Command(name, help=does) for name, does in _COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)
@click.version_option(package_name="lockstep-schedulers", prog_name="lockstep")
def lockstep() -> None:
    """Read, run and break the specification of LLM schedulers.

    `rules` lists what is claimed, `run` serves a workload and judges every step, `explore` goes
    through every reachable state of small instances, `prove` decides claims for every length,
    `fuzz` compares a scheduler with the reference in random cases, `replay` confirms what a file
    says.
    """


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    with_standard_streams()
    if _COMPLETION in os.environ:
        lockstep(prog_name=_NAME)
    code = run_command(_invoked)
    ignore_signals()  # a late signal must not change the exit code
    sys.exit(code)


def called() -> int:
    """Run the command that the arguments name, in a process that goes on; returns its exit code.

    A signal that ended the command is passed on to the process afterwards.
    """
    with signals_resent():
        return run_command(_invoked)


def _invoked() -> int | None:
    refuse_too_little_memory()
    refuse_missing_directory()
    with lockstep.make_context(_NAME, sys.argv[1:]) as context:
        code: int | None = lockstep.invoke(context)
        return code
