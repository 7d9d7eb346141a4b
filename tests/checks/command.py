"""Run the `lockstep` command inside the test process."""

import sys
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from textwrap import fill
from unittest.mock import patch

from attrs import frozen

from checks.cli import common
from checks.cli import main as cli
from checks.cli.envelope import make_report
from tests.checks.reports import validated


@frozen
class Ran:
    """Exit code and both streams of one call."""

    code: int
    out: str
    err: str


def lockstep(*arguments: object) -> Ran:
    """Run the command with these arguments, its output piped; validate every report."""
    out, err = StringIO(), StringIO()
    argv = ["lockstep", *map(str, arguments)]
    with (
        patch.object(sys, "argv", argv),
        patch.object(common, "make_report", lambda *of: validated(make_report(*of))),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        return Ran(cli.called(), out.getvalue(), err.getvalue())


def settings(*pairs: str) -> list[str]:
    """The options that set these keys, KEY=VALUE each."""
    return [word for pair in pairs for word in ("--set", pair)]


def transcript(messages: Iterable[str]) -> str:
    """The messages one below the other, wrapped at 96 characters for snapshots."""
    return "".join(f"{fill(message, 96, subsequent_indent='    ')}\n" for message in messages)
