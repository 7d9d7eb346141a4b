"""`python -m lockstep`: the command."""

from checks.cli.main import main

if __name__ == "__main__":
    main()
