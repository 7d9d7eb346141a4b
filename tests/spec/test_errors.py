"""Input errors keep their whole message on the way to the command."""

import pickle

import pytest

from engine.core.faults import Constraint, ConstraintError, DeviceFailedError, Failure
from reference.core.guards import GuardError
from spec.core.errors import ConfigError

RAISED = [
    ConfigError("block_size", 0, "1 or more").at("c.toml", 3),
    GuardError("decode", "BLK-8"),
    ConstraintError(Constraint.VOLUME, {"rows": 4, "tkv": 70, "limit": 256}),
    DeviceFailedError(Failure.STOPPED),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_of_a_worker_reaches_the_command_whole(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert (str(again), again.args) == (str(error), error.args)


def test_a_key_of_thousands_of_characters_is_shown_in_part() -> None:
    assert len(str(ConfigError("9" * 5_000, 1, "a known key").at("c.toml"))) < 500
