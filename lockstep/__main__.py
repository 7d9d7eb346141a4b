"""`python -m lockstep`: the command.

The project's modules are imported inside `main`, so that a failing import gets an exit code of the
tool and never 1, which is a verdict.
"""

import sys

_USAGE, _INCOMPLETE, _FAILED = 2, 3, 4  # as in checks.cli, whose import may fail


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    if sys.flags.optimize > 1:
        allowed = "0 or 1: rules and commands say what they are in docstrings, which 2 removes"
        _end(_USAGE, f"PYTHONOPTIMIZE: found {sys.flags.optimize}; allowed: {allowed}")
    try:
        from checks.cli.main import main as command
    except KeyboardInterrupt:
        _end(_INCOMPLETE, "incomplete: ended by an interrupt")
    except BaseException as error:
        _end(_FAILED, f"failed: it cannot be loaded: {type(error).__name__}: {error}")
    command()


def _end(code: int, line: str) -> None:
    """Print the reason, and exit."""
    if sys.stderr is not None:
        print(f"lockstep: {line}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
