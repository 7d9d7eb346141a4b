"""The worlds of `lockstep conform`: options, progress, output and report."""

from collections.abc import Iterator
from pathlib import Path

import click
from attrs import evolve, frozen

from checks.cli.campaigns import KEPT_EVERY_SECONDS, NO_DIFFERENCE, Extent, verdicts_of
from checks.cli.common import Option, gathered, progress_bar
from checks.cli.envelope import Json, read_report
from checks.cli.expect import RECORDED, UNDECIDED, Expected
from checks.cli.outputs import NAME_OR_FILE
from checks.cores import is_elsewhere
from checks.evidence import CONFORMED, recorded
from checks.harness.campaigns.campaign import Plan, own_system
from checks.harness.campaigns.worlds import (
    Coverage,
    WorldPlan,
    cover_worlds,
    read_coverage,
    save_coverage,
    world_plan,
    worlds_of,
)
from checks.words import counted
from spec.core.errors import InputError

EVERY_EDGE = "every edge of the worlds"
_SHARE = 3  # of the time, a third is the most that the worlds get before a campaign


@frozen
class Asked:
    """A driver and its worlds; without `exhaustive` those of its policy, and then a campaign.

    Raises:
        InputError: instances are named without `--exhaustive`.
    """

    driver: str
    instances: tuple[str, ...] = ()
    exhaustive: bool = False

    def __attrs_post_init__(self) -> None:
        if self.instances and not self.exhaustive:
            raise InputError("INSTANCE", self.instances[0], "together with --exhaustive")

    def plan(self, plan: Plan) -> WorldPlan:
        """The plan of the worlds in which the pinned keys have their values.

        Raises:
            InputError: there is no such instance, or no world at all.
        """
        hello = own_system(plan.system).hello
        worlds = [
            world
            for world in worlds_of(hello, self.instances)
            if all(getattr(world.instance.config, key) == plan.pinned[key] for key in plan.pinned)
        ]
        if self.exhaustive and not worlds:
            allowed = f"a system and keys of a world; {hello.release} can do none of these"
            raise InputError("--exhaustive", dict(plan.pinned) or hello.release, allowed)
        return world_plan(plan.system, worlds, plan.terms)


def worlds_options() -> Option:
    """The arguments DRIVER and INSTANCE, and `--exhaustive`, as `asked`."""
    return gathered(
        "asked",
        Asked,
        click.argument("driver", type=NAME_OR_FILE),
        click.argument("instances", nargs=-1, metavar="[INSTANCE]..."),
        click.option(
            "--exhaustive",
            is_flag=True,
            help="Every edge of the worlds alone, or of these instances.",
        ),
    )


def run_worlds(plan: WorldPlan, extent: Extent, *, exhaustive: bool) -> Coverage:
    """Take every edge, with a progress bar; the checkpoint is written every second.

    Before a campaign of a given time the worlds get a third of it, and a checkpoint of their own.

    Raises:
        CheckpointError: the checkpoint is of other worlds.
        InputError: a run on several machines is bounded by a time.
        TraceError: the checkpoint cannot be written.
    """
    if is_elsewhere() and (extent.seconds is not None or not exhaustive):
        allowed = "--episodes or --exhaustive: each machine has a clock of its own"
        raise InputError("--on", "a time", allowed)
    path, seconds = extent.resume, extent.seconds
    if not exhaustive:
        path = path and Path(f"{path}.worlds")
        seconds = seconds and seconds / _SHARE
    earlier = None if path is None or not path.exists() else read_coverage(plan, path)
    kept = 0.0
    with progress_bar("edges", sum(world.edges for world in plan.worlds) or None) as show:
        show(0, "starting a driver for each core")

        def progress(seen: Coverage) -> None:
            nonlocal kept
            if path is not None and seen.campaign.seconds - kept >= KEPT_EVERY_SECONDS:
                kept = seen.campaign.seconds
                save_coverage(seen, path)
            work = f"{seen.left:,} left, {counted(seen.campaign.steps, 'step')}"
            show(seen.taken.total(), f"{work}, {seen.campaign.times.total()} found")

        seen = cover_worlds(
            plan, progress, seconds=seconds, earlier=earlier, whole=path is not None
        )
    if path is not None:
        save_coverage(seen, path)
    return seen


def extent_after(extent: Extent, seen: Coverage) -> Extent:
    """The extent of the campaign after the worlds: the time that is left."""
    if extent.seconds is None:
        return extent
    return evolve(extent, seconds=max(extent.seconds - seen.campaign.seconds, 0.001))


def worlds_lines(seen: Coverage) -> Iterator[str]:
    """The edges that were taken, what was refused and left out, and what is left."""
    taken, total, campaign = seen.taken.total(), seen.total, seen.campaign
    worlds = counted(len(seen.plan.worlds) - len(seen.refused), "world")
    work = f"{counted(campaign.episodes, 'path')}, {counted(campaign.steps, 'step')}"
    whole = not seen.left and not seen.behind
    edges = f"all {total:,} edges" if whole else f"{taken:,} of {total:,} edges"
    share = "" if whole else f" ({taken / max(total, 1):.1%})"
    yield (
        f"{campaign.hello.release}: {edges}{share} of {worlds}, as the reference has them"
        f" ({work}, {campaign.seconds:.1f} s)"
    )
    if seen.behind:
        names = ", ".join(f"{name} {edges:,}" for name, edges in sorted(seen.behind.items()))
        yield f"  not taken, for every path to them differs before: {names}"
    if seen.left:
        yield f"  incomplete: {counted(seen.left, 'edge')} left"
    for name, says in seen.refused.items():
        yield f"  refused at its start: {name}: {says}"
    lacking: dict[str, list[str]] = {}
    for world in seen.plan.worlds:
        for ability in world.lacks:
            lacking.setdefault(ability, []).append(world.name)
    for ability, names_of in lacking.items():
        yield f"  left out, for the driver has no ability `{ability}`: {', '.join(names_of)}"


def worlds_report(seen: Coverage) -> Json:
    """The worlds in the report of `conform`."""
    campaign = seen.campaign
    return {
        "edges": seen.total,
        "taken": seen.taken.total(),
        "behind": seen.behind.total(),
        "left": seen.left,
        "paths": campaign.episodes,
        "steps": campaign.steps,
        "seconds": round(campaign.seconds, 3),
        "refused": dict(seen.refused),
        "worlds": [
            {
                "name": world.name,
                "about": world.instance.about,
                "edges": seen.edges.get(world.name, world.edges),
                "taken": seen.taken[world.name],
                "behind": seen.behind[world.name],
                "lacks": list(world.lacks),
            }
            for world in seen.plan.worlds
        ],
    }


def worlds_verdict(seen: Coverage) -> str:
    """The verdict on `EVERY_EDGE`: a difference refutes it, known or not."""
    if seen.behind or seen.campaign.first_seen:
        return "refuted"
    return UNDECIDED if seen.left else "holds"


def worlds_expected(expect: str, plan: WorldPlan) -> Expected:
    """The expected verdicts of the worlds.

    Raises:
        InputError: there are none on record, or they are of other worlds.
    """
    release = own_system(plan.system).hello.release
    names = [world.name for world in plan.worlds]
    if expect != RECORDED:
        there = read_report(Path(expect), "conform")
        worlds = [world["name"] for world in there.get("worlds", {}).get("worlds", ())]
        verdicts = there.get("verdicts", {})
    else:
        entry = recorded(CONFORMED).get(release, {}).get("worlds", {})
        worlds = [*entry.get("edges", ())]
        verdicts = verdicts_of(
            entry.get("rules", ()), entry.get("broken", ()), entry.get("known", {})
        )
        every = "refuted" if entry.get("behind") else "holds"
        verdicts = {**verdicts, NO_DIFFERENCE: "holds", EVERY_EDGE: every}
    if sorted(worlds) != sorted(names):
        allowed = f"the worlds there: {', '.join(worlds) or 'none'}; others are not comparable"
        raise InputError(f"--expect {expect}", ", ".join(names), allowed)
    return Expected("on record" if expect == RECORDED else expect, verdicts)
