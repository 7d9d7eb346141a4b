"""Put each defect back into an installed release and run a campaign against it.

`python -m tests.checks.drivers.put_back.trying sendnn 2` prints a row for each as it is found with
seed 2; names of defects after the seed choose some. `python -m tests.checks.drivers.put_back.trying
sendnn worlds 100` prints for each the world that finds it, of whose parts the first 100 paths are
played.
"""

import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from attrs import frozen

from checks.export.files import as_line
from checks.harness.campaigns.campaign import Campaign, Plan, run_batch, shrunk
from checks.harness.campaigns.shrinking import Budget, Shrunk
from checks.harness.campaigns.worlds import Part, World, world_plan, worlds_of
from checks.harness.comparison import Terms
from checks.harness.driver.client import Driver
from checks.harness.driver.system import DriverSystem
from checks.harness.finding import Finding
from checks.releases.environments import command_of
from tests.checks.harness.cases import There

HERE = Path(__file__).parent
MODULES = {"sendnn": "sendnn", "vllm-v1": "vllm_v1"}  # of the drivers, by their names
RELEASES = {"sendnn": "sendnn", "vllm-v1": "vllm-v1==0.28.0"}  # with the code of the defects
STEPS = 20_000  # within which each is found: a minute of a core or less
SHRINKING_STEPS = 10_000  # for the table, which tells sizes
Defect = Mapping[str, Any]


def defect_table(driver: str) -> dict[str, Defect]:
    """The defects for a release, by name."""
    text = (HERE / f"{MODULES[driver]}.toml").read_text(encoding="utf-8")
    return {name: change for name, change in tomllib.loads(text).items() if "says" in change}


@frozen
class WithDefects:
    """A release into which any of its defects can be put back."""

    system: DriverSystem
    chosen: Path

    def hunt(self, name: str, seed: int, steps: int = STEPS) -> "Hunt":
        """Run episodes with this defect, or without, until a finding or the limit of steps."""
        self.chosen.write_text(name, encoding="utf-8")
        plan, began = Plan(There(self.system), seed=seed), monotonic()
        seen = Campaign(plan)
        for episode in count():
            seen.add(run_batch(plan, seen.starts([episode])))
            if seen.first_seen or seen.overdue or seen.steps >= steps:
                break
        return Hunt(name, seed, seen, monotonic() - began)

    def worlds(self, *names: str) -> tuple[World, ...]:
        """The worlds of the release, or those with these names."""
        return worlds_of(self.system.hello, names)

    def hunt_in(self, name: str, world: World, paths: int | None = None) -> "Hunt":
        """Take the edges of a world with this defect, up to a finding.

        `paths`: the most of each of its parts; None: all.
        """
        self.chosen.write_text(name, encoding="utf-8")
        plan, began = world_plan(There(self.system), [world], Terms()), monotonic()
        seen = Campaign(plan)
        for number in range(world.parts):
            part = Part(plan, number)
            for path in islice(part.own, paths):
                part.play_path(path)
                if part.seen.campaign.first_seen or part.seen.campaign.overdue:
                    break
            seen.add(part.seen.campaign)
            if seen.first_seen or seen.overdue:
                break
        return Hunt(name, 0, seen, monotonic() - began)


@contextmanager
def with_defects(driver: str) -> Iterator[WithDefects]:
    """The installed release in a process of its own.

    Raises:
        DriverError: it is not installed.
    """
    python, _ = command_of(RELEASES[driver])
    with tempfile.TemporaryDirectory() as directory:
        chosen = Path(directory, "chosen")
        command = (python, str(HERE / "driver.py"), MODULES[driver], str(chosen))
        system = DriverSystem(lambda: Driver(command))
        try:
            yield WithDefects(system, chosen)
        finally:
            system.close()


@frozen
class Hunt:
    """A search for one defect; its seconds are those up to the finding."""

    name: str
    seed: int
    seen: Campaign
    seconds: float

    @property
    def finding(self) -> Finding | None:
        """The first difference or violation, if there is one."""
        return next((seen.finding for seen in self.seen.first_seen.values()), None)

    @property
    def found_by(self) -> str:
        """Kind and cause of the finding, or the reason why there is none."""
        if self.finding is None:
            overdue = ", ".join(self.seen.overdue)
            known = ", ".join(self.seen.known)
            return f"overdue: {overdue}" if overdue else f"not found (ended by {known or 'none'})"
        return f"{self.finding.kind}: {self.finding.cause}"

    def small(self, steps: int = SHRINKING_STEPS) -> Shrunk | None:
        """The case shrunk in at most `steps` steps, while the defect is in place."""
        first = next(iter(self.seen.first_seen.values()), None)
        return None if first is None else shrunk(self.seen.plan, first, Budget(steps))


@frozen
class Size:
    """Size of a small case: requests, steps, characters of its longest printed request."""

    requests: int
    steps: int
    longest: int

    @staticmethod
    def of(small: Shrunk) -> "Size":
        """The size of what a report prints."""
        lines = [as_line(request) for request in small.case.as_mapping()["requests"]]
        return Size(len(lines), small.finding.step + 1, max(map(len, lines)))


_FIRST_WORDS = {
    "crash": "crash: {}",
    "count": "{} is counted as ",
    "device": "the device ",
    "differs": "{} differs from ",
    "endless": "endless: a request still waits ",
}


def has_prefix(finding: Finding, names: str) -> bool:
    """True if the report of a finding, and its text, first name what the row of the table says."""
    kind, _, what = names.partition(": ")
    first_words = _FIRST_WORDS.get(kind, f"{kind} is broken: ").format(what)
    return f"{finding.name}:".startswith(f"{names}:") and finding.headline.startswith(first_words)


def names_of(defect: Defect) -> tuple[str, ...]:
    """The names of a finding that tell a reader what is wrong: the first is what it should be."""
    return defect["names"], *defect.get("also", ())


def by_worlds(driver: str, paths: str, *names: str) -> None:
    """Print for each defect the world that finds it first, then those that none finds."""
    table = defect_table(driver)
    left = [name for name in names or table if "unseen" not in table[name]]
    rows = len(left)
    with with_defects(driver) as release:
        for world in release.worlds():
            for name in [*left]:
                hunt = release.hunt_in(name, world, int(paths))
                if hunt.finding is not None or hunt.seen.overdue:
                    left.remove(name)
                    row = [
                        name,
                        hunt.found_by,
                        world.name,
                        hunt.seen.episodes,
                        f"{hunt.seconds:.1f}",
                    ]
                    print(f"| {' | '.join(map(str, row))} |", flush=True)
            print(f"{len(left)} of {rows} left after {world.name}", flush=True)
    print("not found:", *left)


def main(driver: str, seed: str, *names: str) -> None:
    """Print a row for each defect, the median sizes, and how many are named as expected."""
    table, sizes, named = defect_table(driver), [], []
    with with_defects(driver) as release:
        for name in names or table:
            if "unseen" in table[name]:
                print(
                    f"| {name} | {table[name]['says']} | cannot be seen: {table[name]['unseen']} |"
                )
                continue
            hunt = release.hunt(name, int(seed))
            began, small = monotonic(), hunt.small()
            row = [name, table[name]["says"], hunt.found_by, f"{hunt.seconds:.1f}", hunt.seen.steps]
            if small is not None:
                size = Size.of(small)
                sizes.append(size)
                row += [size.requests, size.steps, size.longest, f"{monotonic() - began:.1f}"]
            due = names_of(table[name])
            named.append(
                small is not None and any(has_prefix(small.finding, known) for known in due)
            )
            row += [f"{due[0]}: {'named' if named[-1] else 'not named'}"]
            row += [small.finding.headline] if small is not None else []
            print(f"| {' | '.join(map(str, row))} |", flush=True)
    for what in ("requests", "steps", "longest"):
        print(f"median {what}: {median(getattr(size, what) for size in sizes)}")
    print(f"named as due: {sum(named)} of {len(named)}")


if __name__ == "__main__":
    driver, seed, *names = sys.argv[1:]
    (by_worlds if seed == "worlds" else main)(driver, *([] if seed == "worlds" else [seed]), *names)
