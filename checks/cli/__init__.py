"""The command line: a module for each command, and what their exit codes mean."""

HOLDS, VIOLATED, USAGE, INCOMPLETE = 0, 1, 2, 3


def exit_code(*, violated: object, incomplete: object = False) -> int:
    """The code of a command that found a violation, or none so far, or none at all."""
    return VIOLATED if violated else INCOMPLETE if incomplete else HOLDS
