"""Worlds: bounded instances whose every edge a system takes, each compared with the reference.

A world is an instance whose configuration the system can do. Its paths are played in parts, one
after the other; parts are merged in their order, so that the counts are the same on every machine
and after an interruption.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from attrs import define, evolve, field, frozen

from checks.cores import on_all_cores
from checks.ending import keeping_results, stopping
from checks.explore.cover import Edge, Graph, cover
from checks.explore.cover import Path as EdgePath
from checks.explore.instance import Instance, title_of
from checks.explore.policy import machine_of
from checks.export.checkpoint import load, save
from checks.export.trace.requests import request_as_json
from checks.harness.campaigns.campaign import (
    Campaign,
    Plan,
    Source,
    close_system,
    open_system,
    own_system,
)
from checks.harness.campaigns.resuming import Progress, about, campaign_of, progress_of
from checks.harness.case import AS_USUAL
from checks.harness.comparing import plain_json
from checks.harness.comparison import Terms, compare
from checks.harness.driver.process import answers_until
from checks.harness.finding import Kind
from checks.harness.paths import (
    PathScript,
    case_of_instance,
    case_of_path,
    choices_of_path,
)
from checks.harness.policy import evidence_of
from checks.harness.reference import Reference
from checks.harness.system import Hello, Taken
from spec.core.errors import InputError

_PART_EDGES = 2_000  # about as many are taken before the outcome of a part is merged
# Of each kind of event the ability that a driver needs; no driver serves a request again.
_ABILITIES = {
    **{"aborts": "abort", "leavers": "abort_running", "returning": "returning"},
    "fewer_drafts": "fewer_drafts",
}
_PATHS = 2**20  # more than a part has: its number and a path's make the number of an episode


# --- which worlds ---------------------------------------------------------------------------------


@frozen
class World:
    """An instance with the number of its edges; 0 where it is not known before they are taken.

    `lacks`: what the instance allows and the system cannot do, by the name of the missing ability;
    its edges are left out.
    """

    instance: Instance[Any]
    edges: int = 0
    lacks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the instance."""
        return self.instance.name

    @property
    def parts(self) -> int:
        """The number of parts in which its paths are played."""
        return 1 + self.edges // _PART_EDGES

    @staticmethod
    def of(instance: Instance[Any], hello: Hello) -> "World":
        """The part of an instance that a system can do."""
        lacks = {
            name: ability
            for name, ability in _ABILITIES.items()
            if getattr(instance, name) and ability not in hello.abilities
        }
        # An action has the aborts before the ends of loads; the graph has them in any order.
        if instance.aborts and machine_of(hello.policy).model(instance).loads_between:
            lacks["aborts"] = "order_between_steps"
        events: dict[str, Any] = dict.fromkeys(lacks, frozenset())
        for ability, as_usual in AS_USUAL.items():
            requests = tuple(map(as_usual, instance.requests))
            if ability not in hello.abilities and requests != instance.requests:
                lacks[ability] = ability
                instance = evolve(instance, requests=requests)
        edges = 0 if lacks else instance.edges
        return World(evolve(instance, **events), edges, tuple(lacks.values()))


def worlds_of(hello: Hello, names: Sequence[str] = ()) -> tuple[World, ...]:
    """The worlds of a system: of those in its policy's table all that it can do, large ones first.

    `names`: of worlds or default instances of the policy, which are taken in their order instead.

    Raises:
        InputError: there is no such instance, or the system cannot do its configuration.
    """
    part = machine_of(hello.policy)
    can_do = {
        instance.name: instance
        for instance in (*part.instances, *part.worlds)
        if hello.can_do(instance.config)
    }
    for name in names:
        if name not in can_do:
            names_there = ", ".join(map(repr, can_do))
            allowed = f"{names_there}: {hello.release} can do no other instance"
            raise InputError("INSTANCE", name, allowed)
    if names:
        return tuple(World.of(can_do[name], hello) for name in dict.fromkeys(names))
    chosen = [World.of(world, hello) for world in part.worlds if hello.can_do(world.config)]
    return tuple(sorted(chosen, key=lambda world: -world.edges))


@frozen
class WorldPlan(Plan):
    """The plan of worlds: a number of parts for each; an episode is a path of a part."""

    worlds: tuple[World, ...] = ()

    def parts(self) -> list[tuple[int, int]]:
        """The index of a world and the number of a part of it, in the order of work."""
        return [(at, part) for at, world in enumerate(self.worlds) for part in range(world.parts)]


def world_plan(source: Source, worlds: Sequence[World], terms: Terms) -> WorldPlan:
    """The plan of these worlds, in their order."""
    return WorldPlan(source, terms=terms, worlds=tuple(worlds))


# --- outcomes -------------------------------------------------------------------------------------


@define
class Coverage:
    """What was taken of the worlds of a plan: counts by name of a world.

    `campaign`: the outcomes of the paths. `parts`: those that were played to their end, all from
    the first on. `taken`: edges that were taken and are equal. `edges`: all edges of worlds that
    were begun. `behind`: edges that every path reaches only over a difference. `refused`: worlds
    whose configuration the system refuses at its start, with its words. `paths`: the labels of
    those that a finding or a known difference was first seen on, by episode.
    """

    campaign: Campaign
    parts: int = 0
    taken: Counter[str] = field(factory=Counter)
    edges: dict[str, int] = field(factory=dict)
    behind: Counter[str] = field(factory=Counter)
    refused: dict[str, str] = field(factory=dict)
    paths: dict[int, tuple[str, ...]] = field(factory=dict)

    @property
    def plan(self) -> WorldPlan:
        """The plan of the worlds."""
        assert isinstance(self.campaign.plan, WorldPlan)
        return self.campaign.plan

    @property
    def total(self) -> int:
        """All edges that the system does not refuse at its start, as far as they are known."""
        return sum(
            self.edges.get(world.name, world.edges)
            for world in self.plan.worlds
            if world.name not in self.refused
        )

    @property
    def left(self) -> int:
        """Edges that were neither taken nor are behind a difference."""
        return max(self.total - self.taken.total() - self.behind.total(), 0)

    def add(self, other: "Coverage") -> None:
        """Add the next part."""
        self.campaign.add(other.campaign)
        self.parts += other.parts
        self.taken += other.taken
        self.behind += other.behind
        self.edges |= other.edges
        self.refused |= other.refused
        self.paths |= other.paths


# --- one part -------------------------------------------------------------------------------------


@frozen(eq=False)
class _Paths:
    """A world's graph and cover, and the references of its cases."""

    world: World
    graph: Graph[Any]
    cover: tuple[EdgePath, ...]
    _references: dict[Any, Reference] = field(factory=dict)

    def script(self, path: EdgePath) -> PathScript:
        """The script of a path."""
        transitions = tuple(self.graph.transitions(path))
        case = case_of_instance(self.world.instance, transitions)
        if case.requests not in self._references:
            self._references[case.requests] = evidence_of(case.config.policy).reference(case)
        return PathScript(case, self._references[case.requests], transitions)


@lru_cache(maxsize=1)
def _paths_of(world: World) -> _Paths:
    graph = Graph.of(machine_of(world.instance.config.policy).model(world.instance), stopping)
    is_part = stopping()
    return _Paths(world, graph, () if is_part else tuple(cover(graph, graph)))


@define
class Part:
    """The paths of a part, first those of the cover, then those around differences.

    `own`: those of the cover. `seen`: the outcomes of the paths that were played.
    """

    plan: WorldPlan
    number: int
    until: float = inf
    own: tuple[EdgePath, ...] = field(init=False)
    seen: Coverage = field(init=False)
    _paths: _Paths = field(init=False)
    _left: dict[Edge, None] = field(factory=dict, init=False)
    _differing: set[Edge] = field(factory=set, init=False)
    _equal: dict[EdgePath, Taken] = field(factory=dict, init=False)  # steps, by the edges so far
    _played: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.seen = Coverage(Campaign(self.plan))
        index, part = self.plan.parts()[self.number]
        world = self.plan.worlds[index]
        self._paths = _paths_of(world)
        paths = self._paths.cover
        first, end = (len(paths) * place // world.parts for place in (part, part + 1))
        earlier = {edge for path in paths[:first] for edge in path}
        self.own = paths[first:end]
        self._left = dict.fromkeys(
            edge for path in self.own for edge in path if edge not in earlier
        )

    def play(self) -> Coverage:
        """Play all paths, as long as there is time."""
        if stopping():
            return self.seen
        name, known = self._paths.world.name, self._paths.graph
        self.seen.edges[name] = len(known)
        is_whole = self._all_played(self.own)
        tried: tuple[int, int] | None = None
        while is_whole and self._differing and tried != (len(self._left), len(self._differing)):
            tried = len(self._left), len(self._differing)
            is_whole = self._all_played(list(cover(known, self._left, self._differing)))
        if is_whole and not self.seen.refused:
            self.seen.behind[name] += len(self._left)
        self.seen.parts = int(is_whole)
        return self.seen

    def _steps_with_new_edges(self, path: EdgePath, script: PathScript) -> frozenset[int]:
        """The steps of a path that show an edge which no path before showed, and the last."""
        new = [place for place, edge in enumerate(path, start=1) if edge in self._left]
        steps = {bisect_left(script.edges, place) for place in new}
        return frozenset(steps | {len(script.steps) - 1})

    def _all_played(self, paths: Iterable[EdgePath]) -> bool:
        """Play these paths; true unless a signal or the time ended that."""
        for path in paths:
            if stopping() or (self._played and monotonic() >= self.until):
                return False
            self.play_path(path)
            if self.seen.refused:
                break
        return True

    def play_path(self, path: EdgePath) -> None:
        """Have the system take a path."""
        script, plan = self._paths.script(path), self.plan
        name = self._paths.world.name
        script.judged = self._steps_with_new_edges(path, script)
        script.recall(self._equal.get(path[:count]) for count in script.edges)
        episode = compare(own_system(plan.system), script.case, plan.terms, script)
        finding = episode.finding
        if finding is not None and finding.kind is Kind.CRASH and script.is_unplayed:
            self.seen.refused[name] = finding.says
            return
        number = self.number * _PATHS + self._played
        self._played += 1
        case = script.case
        if episode.findings or episode.known or episode.expected:
            case = evolve(case, choices=choices_of_path(case.path))
        campaign = Campaign.of(plan, number, case, plan.terms, episode)
        for first in (*campaign.first_seen.values(), *campaign.examples.values()):
            self.seen.paths[first.episode] = case.path
        self.seen.campaign.add(campaign)
        for count, taken in zip(script.edges[: episode.steps], script.taken, strict=False):
            self._equal[path[:count]] = taken
        equal = script.edges[episode.steps - 1] if episode.steps else 0
        for edge in path[:equal]:
            if self._left.pop(edge, 0) is None:
                self.seen.taken[name] += 1
        if finding is not None or episode.known is not None:
            step = episode.steps if finding is None else finding.step
            edge = path[script.edges[min(step, len(script.edges) - 1)] - 1]
            self._differing.add(edge)
            if self._left.pop(edge, 0) is None:
                self.seen.behind[name] += 1


def run_part(plan: WorldPlan, until: float, number: int) -> Coverage:
    """The outcome of a part.

    Raises:
        OutOfTimeError: a driver did not answer before the time `until`.
    """
    with answers_until(None if until == inf else until):
        return Part(plan, number, until).play()


# --- all parts ------------------------------------------------------------------------------------


def cover_worlds(
    plan: WorldPlan,
    progress: Callable[[Coverage], None],
    *,
    seconds: float | None = None,
    earlier: Coverage | None = None,
    whole: bool = False,
) -> Coverage:
    """Play all parts on all cores, for at most `seconds`.

    `earlier`: the outcomes of the first parts. `whole`: a part that does not come to its end does
    not count, so that its outcome can be `earlier` for another call. `progress` is called after
    each part.

    Raises:
        DriverError: a driver process violates the protocol.
    """
    total = earlier or Coverage(Campaign(plan))
    campaign, before = total.campaign, total.campaign.seconds
    began = monotonic()
    work = _Numbers(range(total.parts, len(plan.parts())), seconds, whole)
    own_system(plan.system).close()  # only the workers' systems run now
    run, opened, closed = (
        partial(_run, plan),
        partial(open_system, plan),
        partial(close_system, plan),
    )
    with keeping_results():
        for seen in on_all_cores(run, work, opened, closed):
            if not seen.parts and whole:
                break
            total.add(seen)
            campaign.seconds = before + work.passed_seconds
            progress(total)
            if campaign.has_found_enough:
                break
    campaign.interrupted = total.parts < len(plan.parts()) and not campaign.has_found_enough
    campaign.seconds = before + work.passed_seconds
    campaign.start_seconds += monotonic() - began - work.passed_seconds
    campaign.until = inf if work.until is None else work.until
    return total


def _run(plan: WorldPlan, item: tuple[int, float]) -> Coverage:
    number, until = item
    return run_part(plan, until, number)


@define
class _Numbers:
    """The numbers of parts until the time is over, each with the time; the first in any case."""

    numbers: range
    seconds: float | None
    whole: bool
    until: float | None = field(default=None, init=False)
    _began: float | None = field(default=None, init=False)

    @property
    def passed_seconds(self) -> float:
        """Seconds since the first part began."""
        return 0.0 if self._began is None else monotonic() - self._began

    def __iter__(self) -> Iterator[tuple[int, float]]:
        self._began = monotonic()
        self.until = None if self.seconds is None else self._began + self.seconds
        end = inf if self.until is None else self.until
        for number in self.numbers:
            if number != self.numbers[0] and monotonic() >= end:
                return
            yield number, inf if self.whole else end


# --- checkpoints ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class _Kept:
    """The content of a checkpoint; `paths`: the edge labels of each path with a finding."""

    campaign: Progress
    parts: int
    taken: dict[str, int]
    edges: dict[str, int]
    behind: dict[str, int]
    refused: dict[str, str]
    paths: dict[str, tuple[str, ...]]


def save_coverage(seen: Coverage, path: Path) -> None:
    """Write what was taken so far.

    Raises:
        TraceError: the file cannot be written.
    """
    kept = _Kept(
        campaign=progress_of(seen.campaign),
        parts=seen.parts,
        taken=dict(seen.taken),
        edges=seen.edges,
        behind=dict(seen.behind),
        refused=seen.refused,
        paths={str(episode): labels for episode, labels in seen.paths.items()},
    )
    save(path, _about(seen.plan), kept)


def read_coverage(plan: WorldPlan, path: Path) -> Coverage:
    """The coverage in a file of the same plan.

    Raises:
        CheckpointError: there is no such file, it is of other worlds, or a path no longer shows its
            finding.
    """
    kept = load(path, _about(plan), _Kept)
    paths = {int(episode): labels for episode, labels in kept.paths.items()}
    return Coverage(
        campaign_of(plan, kept.campaign, partial(_again, plan, paths), path),
        kept.parts,
        Counter(kept.taken),
        dict(kept.edges),
        Counter(kept.behind),
        dict(kept.refused),
        paths,
    )


def _again(plan: WorldPlan, paths: Mapping[int, tuple[str, ...]], episode: int) -> Campaign:
    index, _ = plan.parts()[episode // _PATHS]
    labels = paths[episode]
    case = case_of_path(plan.worlds[index].instance, labels)
    case = evolve(case, choices=choices_of_path(labels))
    outcome = compare(own_system(plan.system), case, plan.terms)
    return Campaign.of(plan, episode, case, plan.terms, outcome)


def _about(plan: WorldPlan) -> dict[str, Any]:
    return about(plan) | {"worlds": [_about_world(world) for world in plan.worlds]}


def _about_world(world: World) -> dict[str, Any]:
    instance = world.instance
    events = ("aborts", "early_ends", "returning", "failing", "fewer_drafts", "leavers")
    return {
        "name": title_of(instance),
        "edges": world.edges,
        "config": plain_json(instance.config.as_mapping()),
        "requests": [plain_json(request_as_json(request)) for request in instance.requests],
        "external": dict(instance.external),
        **{name: sorted(getattr(instance, name)) for name in events},
    }
