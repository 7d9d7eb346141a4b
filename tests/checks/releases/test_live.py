"""The installed release, where there is one: `lockstep driver install sendnn`."""

import pytest

from checks.releases.environments import environment_of
from checks.releases.recipes import RECIPES, Recipe
from tests.checks.command import lockstep

COMPARED = [recipe for recipe in RECIPES if not recipe.rules_only]


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", COMPARED, ids=lambda recipe: recipe.name)
def test_the_release_does_as_the_reference_but_for_what_is_known(recipe: Recipe) -> None:
    if not environment_of(recipe).is_complete:
        pytest.skip(f"not installed: {recipe.name}")

    ran = lockstep("conform", recipe.name, "--episodes", 40, "--seed", 5)

    assert ran.code == 0, ran.out + ran.err
    assert "no unknown difference in 40 episodes" in ran.out
