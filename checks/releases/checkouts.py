"""A working tree of the plugin as a release, on the vLLM that it asks for."""

import tomllib
from hashlib import sha256
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from checks.releases.recipes import NEWEST_PLUGIN, PLUGIN, RECIPES, Recipe
from engine.workloads.checked import brief
from spec.core.errors import InputError


def recipe_of_checkout(driver: str, checkout: Path) -> Recipe:
    """The recipe of a working tree: a release on the newest known vLLM that it accepts.

    The name of the environment has the tree's name and a digest of its path.

    Raises:
        InputError: the driver is not the plugin's, or the tree accepts no known vLLM.
    """
    if driver != PLUGIN:
        raise InputError("--source", str(checkout), f"a checkout of the plugin, with {PLUGIN}")
    path = checkout.absolute()
    required = _required_vllm(path)
    known = {recipe.vllm for recipe in RECIPES if recipe.driver == PLUGIN}
    try:
        allowed, said = sorted(required.specifier.filter(known), key=Version), brief(str(required))
    except ValueError:
        allowed, said = [], "a version of thousands of digits"
    if not allowed:
        others = ", ".join(sorted(known, key=Version))
        raise InputError("--source", str(checkout), f"one on vLLM {others}; it asks for {said}")
    digest = sha256(str(path).encode()).hexdigest()[:8]
    return Recipe(
        *(driver, f"{path.name}-{digest}", "sendnn.py"),
        vllm=allowed[-1],
        shares=NEWEST_PLUGIN,
        checkout=str(path),
    )


def _required_vllm(path: Path) -> Requirement:
    """The requirement for vLLM in the tree's `pyproject.toml`.

    Raises:
        InputError: there is no such file or no such requirement.
    """
    try:
        project = tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        required = [Requirement(dependency) for dependency in project["dependencies"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # not a project
        required = []
    for requirement in required:
        if requirement.name == "vllm":
            return requirement
    raise InputError("--source", str(path), "a checkout whose pyproject.toml requires a vLLM")
