"""`lockstep driver`: installation with a stand-in for pip that logs its arguments."""

import re
import sys
from pathlib import Path

import pytest

from checks.registry import POLICIES
from checks.releases.checkouts import recipe_of_checkout
from checks.releases.environments import command_of, environment_of, place
from checks.releases.recipes import RECIPES, TEMPLATES, Recipe
from tests.checks.command import lockstep
from tests.checks.harness.driver.files import TEMPLATE, faulty_driver

PIP = """#!/bin/sh
echo "$VLLM_TARGET_DEVICE $@" >> "{log}"
case "$@" in *"{refused}"*) echo "no such release" >&2; exit 1;; esac
"""


@pytest.fixture(autouse=True)
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCKSTEP_DRIVERS", str(tmp_path / "drivers"))
    return tmp_path / "drivers"


def pretend_environment(
    directory: Path, refused: str = "nothing", recipe: Recipe = RECIPES[0]
) -> Path:
    """Make an environment whose Python is a logging script; return the log file."""
    environment = environment_of(recipe, directory)
    environment.python.parent.mkdir(parents=True, exist_ok=True)
    log = directory / "pip.log"
    environment.python.write_text(PIP.format(log=log, refused=refused), encoding="utf-8")
    environment.python.chmod(0o755)
    if not environment.is_made:
        environment.note([])
    return log


def asked_of_pip(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines()


def test_the_recipe_is_followed_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_TORCH", "torch==9.9")
    log = pretend_environment(tmp_path / "other")

    ran = lockstep("driver", "install", "sendnn", "--into", "other")

    calls = asked_of_pip(log)
    assert ran.code == 0
    assert [line.split()[-1] for line in calls[:1]] == ["torch==9.9"]
    assert calls[2].startswith("empty -m pip install --no-input --no-deps --no-build-isolation")
    assert calls[2].endswith("vllm==0.28.0")
    assert "sendnn-inference==2.6.3" in calls[3]
    assert len(calls) == 6
    assert "  3 of 6: vLLM 0.28.0, without kernels, " in ran.out
    assert "to use it: export LOCKSTEP_DRIVERS=other" in ran.out
    assert "installed in" not in lockstep("driver", "list").out


def test_an_installation_that_fails_is_continued_by_the_same_command(tmp_path: Path) -> None:
    log = pretend_environment(tmp_path / "other", refused="sendnn-inference==2.6.3")

    failed = lockstep("driver", "install", "sendnn", "--into", "other")

    assert failed.code == 3
    assert "sendnn-inference 2.6.3 could not be installed; " in failed.err
    assert failed.err.endswith("install.log ends with\n  no such release\n")
    assert len(asked_of_pip(log)) == 4

    pretend_environment(tmp_path / "other")
    again = lockstep("driver", "install", "sendnn", "--into", "other")

    assert again.code == 0
    assert "  1 of 6: torch, there already\n" in again.out
    assert len(asked_of_pip(log)) == 7


def test_an_environment_counts_as_installed_once_everything_is(drivers: Path) -> None:
    pretend_environment(drivers)
    environment = environment_of(RECIPES[0])
    parts = [part.what for part in RECIPES[0].installations()]

    environment.note(parts[:-1])
    incomplete = lockstep("driver", "list").out
    environment.note(parts)
    complete = lockstep("driver", "list").out

    assert "not installed: lockstep driver install sendnn" in incomplete
    assert "installed in" not in incomplete
    assert "sendnn-2.6.3" in complete.split("installed in")[1]
    assert "not installed: lockstep driver install sendnn --version 2.5.0" in complete


def test_an_older_release_shares_what_the_newest_has(tmp_path: Path) -> None:
    base = environment_of(RECIPES[0], tmp_path / "other")
    older = next(recipe for recipe in RECIPES if recipe.shares)
    environment = environment_of(older, tmp_path / "other")

    alone = lockstep("driver", "install", "sendnn", "--version", older.version, "--into", "other")

    assert alone.code == 2
    assert f"found '{older.name}'; allowed: sendnn==2.6.3 installed, which it shares" in alone.err

    log = pretend_environment(tmp_path / "other")
    base.note([part.what for part in base.recipe.installations()])
    pretend_environment(tmp_path / "other", recipe=older)
    environment.packages.mkdir(parents=True, exist_ok=True)
    ran = lockstep("driver", "install", "sendnn", "--version", older.version, "--into", "other")

    assert ran.code == 0
    assert len(asked_of_pip(log)) == 2
    assert (environment.packages / "shared.pth").read_text() == f"{base.packages}\n"


def test_the_bundled_setuptools_of_an_older_python_does_not_hide_the_shared_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = environment_of(RECIPES[0], tmp_path / "other")
    older = next(recipe for recipe in RECIPES if recipe.shares)
    bundled = environment_of(older, tmp_path / "other").packages / "setuptools"
    pretend_environment(tmp_path / "other")
    base.note([part.what for part in base.recipe.installations()])

    def make(_environment: object, what: str, *_: object) -> None:
        if what == "the environment":
            pretend_environment(tmp_path / "other", recipe=older)
            bundled.mkdir(parents=True)

    monkeypatch.setattr("checks.releases.environments._logged", make)
    ran = lockstep("driver", "install", "sendnn", "--version", older.version, "--into", "other")

    assert ran.code == 0
    assert not bundled.exists()


def test_environments_are_in_the_users_cache_unless_said_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LOCKSTEP_DRIVERS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert place() == tmp_path / "lockstep" / "drivers"

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert place() == tmp_path / "me" / ".cache" / "lockstep" / "drivers"


def test_a_driver_is_tried_by_its_file() -> None:
    ran = lockstep("driver", "check", TEMPLATE)

    assert ran.code == 0
    hello, unreported, holds = ran.out.splitlines()
    assert hello == "template: toy 1.0"
    assert unreported == "  unreported fields: batch, blocks, computed, left_padding, reserved, tkv"
    assert re.fullmatch(r"  holds for 20 episodes, [0-9]+ steps", holds)


def test_a_driver_that_does_otherwise_fails_its_trial(tmp_path: Path) -> None:
    path = faulty_driver(tmp_path, "last come first served")

    ran = lockstep("driver", "check", path)

    assert ran.code == 1
    assert "SPY-PRI-5 is broken: Requests are admitted in the order of their arrival." in ran.out
    assert re.search(r"\n  scheduled 0 +1 +- *\n", ran.out)


@pytest.mark.parametrize("policy", ["spyre", "nano-vllm", "vllm-v1"])
def test_a_new_driver_conforms_and_is_never_written_over(policy: str) -> None:
    written = lockstep("driver", "new", "mine.py", "--policy", policy)

    assert (written.code, written.out.splitlines()[0]) == (0, "written: mine.py")
    checked = lockstep("driver", "check", "mine.py")
    assert checked.code == 0
    assert re.search(r"\n  holds for 20 episodes, [0-9]+ steps\n", checked.out)
    refused = lockstep("driver", "new", "mine.py")
    assert refused.code == 2
    assert "PATH: found 'mine.py'; allowed: a file that is not there yet" in refused.err


def test_there_is_a_driver_to_start_from_for_every_policy() -> None:
    assert set(TEMPLATES) == set(POLICIES)
    assert lockstep("driver", "new", "v0.py", "--policy", "vllm-v0").code == 0
    assert "LLMEngine" in Path("v0.py").read_text()


def test_a_release_without_a_variant_of_the_reference_is_judged_alone() -> None:
    (recipe,) = (recipe for recipe in RECIPES if recipe.name == "sendnn==2.0.0")
    environment = environment_of(recipe)
    environment.python.parent.mkdir(parents=True)
    environment.python.write_text(f"#!/bin/sh\nexec {sys.executable} {TEMPLATE}\n")
    environment.python.chmod(0o755)
    environment.note([part.what for part in recipe.installations()])

    ran = lockstep("driver", "check", "sendnn==2.0.0")

    assert ran.code == 0
    _hello, _unreported, rules_only, holds = ran.out.splitlines()
    assert rules_only == "  no variant of the reference schedules as it does: judged, not compared"
    assert re.fullmatch(r"  its rules hold for 1 episode, [0-9]+ steps", holds)


# --- working trees --------------------------------------------------------------------------------


def checkout_requiring(vllm: str) -> None:
    """Write a working tree of the plugin that requires a version of vLLM, in `tree`."""
    Path("tree").mkdir()
    Path("tree/pyproject.toml").write_text(f'[project]\ndependencies = ["torch", "{vllm}"]\n')


@pytest.mark.parametrize(
    ("asked", "newest"),
    [("vllm>=0.24.0,<0.25.2", "0.25.1"), ("vllm==0.19.1", "0.19.1"), ("vllm>=0.20", "0.28.0")],
)
def test_a_checkout_is_installed_as_it_stands_on_the_newest_vllm_that_it_takes(
    asked: str, newest: str, drivers: Path
) -> None:
    checkout_requiring(asked)
    base = pretend_environment(drivers)
    assert lockstep("driver", "install", "sendnn", "--into", str(drivers)).code == 0
    base.unlink()
    log = pretend_environment(drivers, recipe=recipe_of_checkout("sendnn", Path("tree")))
    own = environment_of(recipe_of_checkout("sendnn", Path("tree")))
    own.packages.mkdir(parents=True)

    ran = lockstep("driver", "install", "sendnn", "--source", "tree")

    built, installed = asked_of_pip(log)
    assert built.endswith(f"vllm=={newest}")
    assert installed.endswith(f"--no-deps --editable {Path('tree').absolute()}")
    assert "to use it: lockstep conform sendnn --source tree\n" in ran.out
    assert command_of("sendnn", Path("tree"))[0] == str(own.python)
    assert command_of("sendnn")[0] != str(own.python)


def test_checkouts_are_listed_with_what_became_of_them(drivers: Path) -> None:
    checkout_requiring("vllm>=0.24")
    recipe = recipe_of_checkout("sendnn", Path("tree"))
    pretend_environment(drivers)
    base = environment_of(RECIPES[0])
    base.note([part.what for part in base.recipe.installations()])
    pretend_environment(drivers, recipe=recipe)
    environment = environment_of(recipe)
    environment.packages.mkdir(parents=True)
    lockstep("driver", "install", "sendnn", "--source", "tree")

    installed = lockstep("driver", "list").out
    environment.note([])
    begun = lockstep("driver", "list").out
    Path("tree", "pyproject.toml").unlink()
    gone = lockstep("driver", "list").out

    assert installed.count("installed in") == 2  # the newest release, and the tree
    assert installed.split().count(recipe.name) == 1
    assert begun.count("installed in") == 1
    assert begun.split().count("--source") == 1
    assert gone.count("cannot be used: --source:") == 1


def test_a_checkout_of_another_vllm_is_refused_and_so_is_what_is_none() -> None:
    checkout_requiring("vllm>=0.99")
    Path("none").mkdir()

    ran = {
        tree: lockstep("driver", "install", "sendnn", "--source", tree) for tree in ("tree", "none")
    }

    assert {run.code for run in ran.values()} == {2}
    assert "0.28.0; it asks for vllm>=0.99" in ran["tree"].err
    assert "whose pyproject.toml requires a vLLM" in ran["none"].err
    other = lockstep("driver", "install", "nano-vllm", "--source", "tree")
    assert "a checkout of the plugin, with sendnn" in other.err
