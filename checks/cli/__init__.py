"""The command line: a module for each command, and what their exit codes mean."""

from checks.ending import OutOfTimeError, ended

HOLDS, VIOLATED, USAGE, INCOMPLETE, FAILED = range(5)


def exit_code(*, violated: object, incomplete: object = False) -> int:
    """The code of a command that found a violation, or none so far, or none at all.

    What ends it early counts before what it had found by then.
    """
    end = ended()
    if end is not None:
        return INCOMPLETE if isinstance(end, KeyboardInterrupt | OutOfTimeError) else FAILED
    return VIOLATED if violated else INCOMPLETE if incomplete else HOLDS
