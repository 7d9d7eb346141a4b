"""The two tiers of the tests: the fast one always runs, the thorough one on request."""

import os

import pytest
from hypothesis import settings

from checks.mutants.planting import MUTANT, plant_named
from tests.thorough import overdue

pytest_plugins = ["pytester"]

settings.register_profile("fast", max_examples=40, derandomize=True, deadline=None)
settings.register_profile("thorough", max_examples=2_000, deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough", action="store_true", help="also run what needs minutes or the network"
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("thorough" if config.getoption("--thorough") else "fast")
    if MUTANT in os.environ:  # `lockstep mutants --tests` asks which tests notice it
        plant_named(os.environ[MUTANT])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--thorough"):
        return
    for item in items:
        if item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.skip(reason="thorough: runs with --thorough"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which parts of the thorough tier are overdue, before pytest's own closing line."""
    line = overdue()
    if line is not None:
        terminalreporter.write_line(line)
