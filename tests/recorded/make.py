"""Record what an installed release does in each scene: `python -m tests.recorded.make sendnn`."""

import sys
from contextlib import closing, nullcontext
from pathlib import Path

from checks.harness.campaigns.recording import record
from checks.harness.driver.client import Driver
from checks.harness.driver.system import DriverSystem
from checks.releases.commits import tree_imports
from checks.releases.environments import command_of
from tests.recorded.scenes import FILE_NAMES, SCENES

HERE = Path(__file__).parent


def main(driver: str, tree: str | None = None) -> None:
    """Write `<driver>-<scene>.jsonl` for each scene of the driver, and say how it ended.

    `tree`: a checkout from which the driver imports.
    """
    source = None if tree is None else Path(tree).absolute()
    command = command_of(driver.partition("@")[0], source)
    with (
        nullcontext() if source is None else tree_imports(source),
        closing(DriverSystem(lambda: Driver(command))) as system,
    ):
        for name, scene in SCENES.items():
            if scene.driver != driver:
                continue
            path = HERE / FILE_NAMES[name]
            recipe = f"python -m tests.recorded.make {driver}"
            outcome = record(
                system, scene.case, scene.terms, path, about=scene.about, command=recipe
            )
            found = outcome.finding and outcome.finding.says
            print(f"{path.name}: {outcome.steps} steps, known {outcome.known}, found {found}")


if __name__ == "__main__":
    main(*sys.argv[1:])
