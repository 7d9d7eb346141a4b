"""Facts about sendnn-inference outside the model: requests that the reference refuses.

Run against the installed release (`lockstep driver install sendnn`); skipped where it is not.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from checks.harness.case import Case
from checks.harness.driver.client import Driver
from checks.harness.driver.system import DriverSystem
from checks.harness.system import Action, Taken
from checks.releases.environments import command_of, environment_of
from checks.releases.recipes import recipe_of
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.spyre.variants import Reading
from tests.recorded.scenes import asks

pytestmark = pytest.mark.thorough

STEPS = 20


@pytest.fixture(scope="module")
def release() -> Iterator[DriverSystem]:
    recipe = recipe_of("sendnn")
    if recipe is None or not environment_of(recipe).is_complete:
        pytest.skip("not installed: sendnn")
    with closing(DriverSystem(lambda: Driver(command_of("sendnn")))) as system:
        yield system


def served(release: DriverSystem, request: Request, max_model_len: int) -> Sequence[Step]:
    """One request, with one slot and the pool that the plugin chooses by itself."""
    config = SpyreConfig(
        max_num_seqs=1,
        max_model_len=max_model_len,
        chunk_size=64,
        reading=Reading.RELEASED,
    )
    arrives = Action(arrive=(request.id,))
    taken = release.play(Case(config, (request,)), [arrives, *[Action()] * STEPS])
    return [answer.step for answer in taken if isinstance(answer, Taken)]


@pytest.mark.parametrize(("max_model_len", "left"), [(128, []), (100, ["a"])])
def test_pool_for_one_slot_of_odd_length_lacks_the_block_of_the_last_tokens(
    release: DriverSystem, max_model_len: int, left: list[str]
) -> None:
    """The pool counts whole blocks of the model length: 1 for 100 tokens; 80 tokens need 2."""
    steps = served(release, asks("a", 80, 3), max_model_len)

    assert [request.id for request in steps[-1].after.waiting] == left
