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
    """How the working tree is had: as a release on the newest vLLM that is known and that it takes.

    The environment has the tree's name and a digest of its path in its own name.

    Raises:
        InputError: the driver is of no plugin, or the tree asks for no vLLM that is known.
    """
    if driver != PLUGIN:
        raise InputError("--source", str(checkout), f"a checkout of the plugin, with {PLUGIN}")
    path = checkout.absolute()
    asked = _asked_of_vllm(path)
    known = {recipe.vllm for recipe in RECIPES if recipe.driver == PLUGIN}
    try:
        allowed, said = sorted(asked.specifier.filter(known), key=Version), brief(str(asked))
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


def _asked_of_vllm(path: Path) -> Requirement:
    """What the tree's `pyproject.toml` requires of vLLM.

    Raises:
        InputError: it has no such file, or requires nothing.
    """
    try:
        project = tomllib.loads((path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        required = [Requirement(dependency) for dependency in project["dependencies"]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # no project that is one
        required = []
    for requirement in required:
        if requirement.name == "vllm":
            return requirement
    raise InputError("--source", str(path), "a checkout whose pyproject.toml requires a vLLM")
