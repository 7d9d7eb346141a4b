"""The command line: a module for each command, and the exit codes of all."""

from checks.ending import OutOfTimeError, ended

HOLDS, VIOLATED, USAGE, INCOMPLETE, FAILED = range(5)


def exit_code(*, violated: object, incomplete: object = False) -> int:
    """The exit code of a command that found a violation, is incomplete, or finds that all holds.

    If a signal or an error ended the command early, that decides the code.
    """
    end = ended()
    if end is not None:
        return INCOMPLETE if isinstance(end, KeyboardInterrupt | OutOfTimeError) else FAILED
    return VIOLATED if violated else INCOMPLETE if incomplete else HOLDS
