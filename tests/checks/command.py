"""Run the `lockstep` command inside the test process, as a shell would see it."""

import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from unittest.mock import patch

from attrs import frozen

from checks.cli import main as cli


@frozen
class Ran:
    """Exit code and both streams of one call."""

    code: int
    out: str
    err: str


def lockstep(*arguments: object) -> Ran:
    """The command with these arguments; output as if piped."""
    out, err = StringIO(), StringIO()
    argv = ["lockstep", *map(str, arguments)]
    with (
        patch.object(sys, "argv", argv),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            return Ran(int(end.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("the command did not exit")
