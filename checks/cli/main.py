"""The `lockstep` command: what its subcommands share, and what each exit code means."""

import sys
from importlib.metadata import version

import click

from checks.cli.bisect import bisect
from checks.cli.conform import conform
from checks.cli.driver import driver
from checks.cli.explore import explore
from checks.cli.fuzz import fuzz
from checks.cli.prove import prove
from checks.cli.replay import replay
from checks.cli.rules import rules
from checks.cli.run import run
from checks.cli.survey import survey
from spec.core.errors import InputError

HOLDS, VIOLATED, USAGE, INCOMPLETE = 0, 1, 2, 3

_EPILOG = """\b
Exit codes, the same for every command:
  0  everything asked for holds, within the bounds that the output names
  1  a violation or a divergence was found; where it was written is printed
  2  usage or input error: nothing was run
  3  incomplete: a budget or an interrupt ended the work before an answer

Start with:  lockstep run examples/first.jsonl --config examples/first.toml
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG)
@click.version_option(version("lockstep-schedulers"), prog_name="lockstep")
def lockstep() -> None:
    """Read, run and break the specification of LLM schedulers.

    `rules` lists what is claimed, `run` serves a workload and judges every step, `explore` goes
    through every reachable state of small instances, `prove` decides claims for every length,
    `fuzz` compares a scheduler with the reference in random cases, `replay` confirms what a file
    says.
    """


for command in (run, explore, prove, fuzz, replay, rules, conform, driver, bisect, survey):
    lockstep.add_command(command)


def main() -> None:
    """Run the command; an input error is one message on standard error, never a traceback."""
    try:
        code = lockstep.main(standalone_mode=False)
    except InputError as error:
        click.echo(f"lockstep: {error}", err=True)
        code = USAGE
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("lockstep: interrupted before an answer", err=True)
        code = INCOMPLETE
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; nobody is left to tell
        code = HOLDS
    sys.exit(code or HOLDS)
