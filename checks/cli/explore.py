"""`lockstep explore`: every reachable state of small instances, every rule in each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from attrs import evolve, frozen
from rich.console import Console
from rich.text import Text

from checks.chapters import write_chapters
from checks.cli import exit_code
from checks.cli.common import (
    SECONDS,
    Output,
    config_options,
    gathered,
    json_option,
    on_option,
    out_option,
    plain_table,
    print_lines,
    progress_bar,
)
from checks.cli.configuration import Sources
from checks.cli.envelope import Json
from checks.cli.expect import Expected, expect_option
from checks.cli.explore_lines import assumption_lines, coverage_lines, verdict_of
from checks.cli.explore_verdicts import (
    cases_of,
    expected_of,
    offered,
    require_default,
    verdicts_of,
)
from checks.cli.outputs import KEPT_FILE, NEW_FILE, PATH, Command
from checks.cores import is_elsewhere
from checks.ending import deferred, ended, keeping_results, stopping
from checks.evidence import EXPLORED, LARGE, record_of, recorded, write_record
from checks.explore.bounds import Bounds
from checks.explore.exploring import (
    AnyInstance,
    Exploration,
    Finding,
    counterexample_name,
    explore_all,
    explore_compiled,
    explore_either,
    explore_instance,
    sentence,
    write_counterexample,
)
from checks.explore.graph import state_graph
from checks.explore.instance import Instance
from checks.explore.result import Progress
from checks.explore.search import Order
from checks.export.files import new_file
from checks.export.plots import plot_depths, refuse_unplottable
from checks.harness.report import print_wrapped
from checks.policies import DEFAULT, policy_named, policy_of, title_of
from checks.words import counted
from engine.workloads import fit_for, read_workload
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError

_NAMED = 5  # instances that were not explored; a report names all
_COLUMNS = ("instance", ">states", ">transitions", ">depth", ">states/s", ">bytes/state", "verdict")


@frozen
class Freedom:
    """What may happen to the requests of an instance of one's own."""

    fixed_ends: bool = False
    no_aborts: bool = False
    returning: bool = False
    lost_loads: bool = False
    leave_running: bool = False


@click.command(cls=Command)
@click.argument("names", nargs=-1, metavar="[INSTANCE …]")
@config_options
@click.option("--workload", "workload_path", type=PATH, help="Requests of an instance of your own.")
@gathered(
    "freedom",
    Freedom,
    click.option("--fixed-ends", is_flag=True, help="Own instance: all sample `max_tokens`."),
    click.option("--no-aborts", is_flag=True, help="Own instance: no client goes away."),
    click.option("--returning", is_flag=True, help="Own instance: clients come back for ever."),
    click.option("--lost-loads", is_flag=True, help="Own instance: any external load may fail."),
    click.option(
        "--leave-running",
        is_flag=True,
        help="Own instance: any client may leave while the model runs.",
    ),
)
@gathered(
    "bounds",
    Bounds,
    click.option("--max-states", type=click.IntRange(1), help="Stop after so many states."),
    click.option("--max-depth", type=click.IntRange(1), help="Go no further from the start."),
    click.option("--time", "max_seconds", type=SECONDS, help="Stop after S seconds each."),
)
@click.option(
    "--order",
    type=click.Choice(["bfs", "dfs", "random"]),
    default="bfs",
    show_default=True,
    help="bfs gives shortest counterexamples; random walks need --max-depth and --time.",
)
@click.option(
    "--using",
    type=click.Choice(["auto", "reference", "compiled"]),
    default="auto",
    show_default=True,
    help="compiled: a hundred times as fast, some rules judged on a sample; needs numba. auto: "
    "compiled for one instance of more than 20,000 states where nothing needs the reference.",
)
@click.option(
    "--fingerprints",
    is_flag=True,
    help="Know states by 64 bits, in half the memory, with the compiled machine: one may be "
    "missed, and the answer says how probably.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of walks and samples.")
@click.option(
    "--resume", "checkpoint", type=KEPT_FILE, help="Go on from this file, kept every second."
)
@out_option
@click.option(
    "--graph", "graph_path", type=NEW_FILE, help="Write one instance's state graph, GraphML."
)
@click.option(
    "--plot",
    "plot_path",
    type=NEW_FILE,
    help="Draw how many states there are at each depth: .html, .png or .svg; needs the extra "
    "`plot`.",
)
@click.option(
    "--record", is_flag=True, help="Keep the verdicts of default instances with the project."
)
@on_option("instances")
@expect_option
@click.option(
    "--large",
    is_flag=True,
    help="The instances that need the compiled machine, in a minute, instead of the default ones.",
)
@click.option("--thorough", is_flag=True, help="With --large: also those that take an hour.")
@click.option("--list", "list_", is_flag=True, help="List the default instances and stop.")
@json_option
def explore(
    names: tuple[str, ...],
    sources: Sources,
    workload_path: Path | None,
    freedom: Freedom,
    bounds: Bounds,
    order: Order,
    using: str,
    fingerprints: bool,
    seed: int,
    checkpoint: Path | None,
    out_path: Path,
    graph_path: Path | None,
    plot_path: Path | None,
    record: bool,
    expect: str | None,
    large: bool,
    thorough: bool,
    list_: bool,
    output: Output,
) -> int:
    """Go through every reachable state and judge every rule in it.

    Without INSTANCE the default set of every policy is explored, on all cores, in about a minute;
    with --set policy=NAME that of one. --config and --set change keys of the set, of the default
    policy's unless they name another. With --workload the requests of that file are the instance.
    Arrivals are free in order and time, any client may go away or come back, any request may sample
    the end of sequence, as far as the instance says. Where clients come back, what starves shows as
    a run that repeats.

    A broken rule is written as a counterexample, the shortest there is with --order bfs, and the
    command that replays it is printed.
    """
    whole = sources.read().config if sources != Sources() else None
    if thorough and not large:
        raise InputError("--thorough", "alone", "only with --large")
    policies = None if whole is None else [policy_of(whole)]
    there_are = offered(policies, large=large, thorough=thorough)
    if list_:
        rows = [(title_of(one), str(len(one.requests)), one.about) for one in there_are]
        output.screen.print(plain_table(("instance", "requests", "about"), rows))
        return 0
    if workload_path is not None:
        config = whole or policy_named(DEFAULT).config()
        own = _own_instance(workload_path, config, freedom)
        instances = [own]
    else:
        instances = _named(names, there_are)
        if whole is not None:
            instances = [evolve(one, config=sources.read(one.config).config) for one in instances]
    _refuse_what_does_not_go(order, bounds, instances, checkpoint or graph_path)
    if fingerprints or large:
        using = _compiled_only("--large" if large else "--fingerprints", using)
    if fingerprints and checkpoint is not None:
        raise InputError("--fingerprints", "--resume", "one of both: they leave no state to keep")
    for_reference = {"--order": order != "bfs", "--record": record and not large}
    if using == "compiled":
        _refuse_what_needs_the_reference(for_reference)
    if record:
        _refuse_to_record(instances, bounds, large=large)
    if plot_path is not None:
        refuse_unplottable(plot_path)
    expected = None if expect is None else expected_of(expect, instances)
    if using == "compiled":
        compiled = partial(explore_compiled, fingerprints=fingerprints)
        found = [_explore_one_with(compiled, one, bounds, seed, checkpoint) for one in instances]
    elif (
        using == "auto"
        and len(instances) == 1
        and not (any(for_reference.values()) or expect or is_elsewhere())
    ):
        found = [_explore_one_with(explore_either, instances[0], bounds, seed, checkpoint)]
    elif len(instances) == 1 and not is_elsewhere():
        found = [_explore_one(instances[0], bounds, order, seed, checkpoint)]
    else:
        found = _explore_several(instances, bounds, order)
    if graph_path is not None:
        _write_graph(instances[0], bounds, graph_path)
    if plot_path is not None:
        plot_depths(plot_path, {title_of(one.instance): one.result.by_depth for one in found})
        output.screen.print(f"written: {plot_path}")
    kept_in = (LARGE if large else EXPLORED) if record else None
    return _report(found, instances, out_path, output, expected, kept_in)


# --- which instances ------------------------------------------------------------------------------


def _named(names: Sequence[str], instances: Sequence[AnyInstance]) -> list[AnyInstance]:
    """The instances of these titles or, where no title is the same, names; all without names.

    Of equal names that of the policy counts which is listed first.

    Raises:
        InputError: an unknown name.
    """
    titles = {title_of(one): one for one in instances}
    known = {one.name: one for one in reversed(instances)} | titles
    for name in names:
        if name not in known:
            raise InputError("INSTANCE", name, f"{'; '.join(titles)}; see --list")
    return [known[name] for name in names] if names else [*instances]


def _own_instance(workload_path: Path, config: PolicyConfig, freedom: Freedom) -> AnyInstance:
    """The requests of a file, with as much freedom as the options leave them.

    Raises:
        InputError: a workload that cannot be read or served, or what its machine does not have.
    """
    policy, refuse = policy_of(config), policy_of(config).refuse_unservable
    if freedom.leave_running and not policy.adapter.rules_know_leavers:
        allowed = f"a machine in which clients leave in a step; that of {policy.name} has none"
        raise InputError("--leave-running", True, allowed)
    requests, _ = fit_for(read_workload(workload_path), lambda request: refuse(request, config))
    every_request = frozenset(request.id for request in requests)
    external = {request.id: request.external for request in requests if request.external}
    return Instance(
        name=workload_path.stem,
        about=f"the requests of {workload_path}",
        config=config,
        requests=tuple(requests),
        aborts=frozenset() if freedom.no_aborts else every_request,
        early_ends=frozenset() if freedom.fixed_ends else every_request,
        returning=every_request if freedom.returning else frozenset(),
        external=external,
        failing=frozenset(external) if freedom.lost_loads else frozenset(),
        leavers=every_request if freedom.leave_running else frozenset(),
    )


def _refuse_what_does_not_go(
    order: Order, bounds: Bounds, instances: Sequence[AnyInstance], file: Path | None
) -> None:
    """Refuse random walks without an end, one file for several instances, and parts elsewhere.

    Raises:
        InputError: options that do not go together.
    """
    if order == "random" and (bounds.max_depth is None or bounds.max_seconds is None):
        raise InputError("--order", order, "random only with --max-depth and --time")
    if len(instances) > 1 and (file or order == "random"):
        raise InputError("INSTANCE", "several", "one, with --resume, --graph or random walks")
    if is_elsewhere() and (file or order == "random"):
        allowed = "instances as a whole; --resume, --graph and random walks belong to one machine"
        raise InputError("--on", "a part of a search", allowed)


def _compiled_only(option: str, using: str) -> str:
    """The machine that an option needs.

    Raises:
        InputError: the reference is asked for.
    """
    if using == "reference":
        raise InputError(option, "--using reference", "only with --using compiled")
    return "compiled"


def _refuse_what_needs_the_reference(asked: Mapping[str, object]) -> None:
    """Refuse what the compiled machine does not do.

    Raises:
        InputError: another order than breadth first, or verdicts to keep.
    """
    for option in (one for one, is_asked in asked.items() if is_asked):
        raise InputError(option, "--using compiled", "only with --using reference")


def _refuse_to_record(instances: Sequence[AnyInstance], bounds: Bounds, *, large: bool) -> None:
    """Refuse to keep what is not explored whole, or is not a default instance.

    Raises:
        InputError: an instance of one's own, or a bound.
    """
    require_default("--record", instances, large=large)
    if bounds != Bounds():
        raise InputError("--record", "a bound", "instances that are explored to the end")


# --- exploring ------------------------------------------------------------------------------------


@contextmanager
def _progress_of(bounds: Bounds) -> Iterator[Callable[[Progress], None]]:
    """How far one search is."""
    with progress_bar("states", bounds.max_states) as show:

        def progress(at: Progress) -> None:
            rate = f"{at.states_per_second:,.0f} states/s"
            show(at.states, f"depth {at.depth}, queue {at.queue:,}, {rate}")

        yield progress


def _explore_one(
    instance: AnyInstance, bounds: Bounds, order: Order, seed: int, checkpoint: Path | None
) -> Exploration:
    """With progress, and a signal that ends the search where it is."""
    with _progress_of(bounds) as progress, deferred():
        return explore_instance(
            instance,
            bounds,
            order=order,
            seed=seed,
            progress=progress,
            stop=stopping,
            checkpoint=checkpoint,
        )


def _explore_one_with(
    explore_so: Callable[..., Exploration],
    instance: AnyInstance,
    bounds: Bounds,
    seed: int,
    checkpoint: Path | None,
) -> Exploration:
    """As `_explore_one`, with the compiled machine of the policy, or with the one that is apt."""
    with _progress_of(bounds) as progress, deferred():
        return explore_so(
            instance, bounds, seed=seed, progress=progress, stop=stopping, checkpoint=checkpoint
        )


def _explore_several(
    instances: Sequence[AnyInstance], bounds: Bounds, order: Order
) -> list[Exploration]:
    """On all cores, with progress; those that were explored before a signal ends it."""
    found = []
    with progress_bar("instances", len(instances)) as show, keeping_results():
        for exploration in explore_all(instances, bounds, order=order):
            found.append(exploration)
            show(len(found), title_of(exploration.instance))
    return found


def _write_graph(instance: AnyInstance, bounds: Bounds, path: Path) -> None:
    """The state graph, its states numbered as they were found, with the requests in each place."""
    import networkx as nx

    policy = policy_of(instance.config)
    graph = state_graph(policy.model(instance), bounds)
    numbered = nx.convert_node_labels_to_integers(graph, label_attribute="state")
    for _, node in numbered.nodes(data=True):
        node |= _places(policy.codec.as_json(node.pop("state")))
    with new_file(path) as file:
        file.writelines(f"{line}\n" for line in nx.generate_graphml(numbered))


def _places(written: dict[str, Any]) -> dict[str, str]:
    """The requests in each of the places that a state, as traces write it, has."""
    queues = {name: _queue(place) for name, place in written.items()}
    return {
        name: " ".join(one if isinstance(one, str) else one["id"] for one in queue)
        for name, queue in queues.items()
        if queue is not None
    }


def _queue(place: Any) -> list[Any] | None:
    """Several requests, one or none; None for what is no place of requests."""
    match place:
        case list():
            return place
        case None:
            return []
        case {"id": _}:
            return [place]
    return None


# --- what is printed ------------------------------------------------------------------------------


def _report(
    found: Sequence[Exploration],
    asked: Sequence[AnyInstance],
    out_path: Path,
    output: Output,
    expected: Expected | None,
    kept_in: Path | None,
) -> int:
    """Tables, counterexamples, the record, if it is to be `kept_in` one; the exit code."""
    screen = output.screen
    screen.print(plain_table(_COLUMNS, map(_row, found)))
    states = sum(one.result.states for one in found)
    transitions = sum(one.result.transitions for one in found)
    counts = (states, "state"), (transitions, "transition")
    screen.print(", ".join(counted(*one) for one in ((len(found), "instance"), *counts)))
    not_explored = [title_of(one) for one in asked[len(found) :]]
    if len(found) == 1:
        for line in (*assumption_lines(found[0].instance), *coverage_lines(found[0])):
            print_wrapped(screen, line)
    if not_explored:
        named = "; ".join([*not_explored[:_NAMED], *("…" for _ in not_explored[_NAMED:][:1])])
        print_lines(screen, f"{counted(len(not_explored), 'instance')} not explored: {named}")
    for exploration in found:
        for finding in exploration.findings:
            path = out_path / counterexample_name(exploration, finding)
            out_path.mkdir(parents=True, exist_ok=True)
            write_counterexample(exploration, finding, path)
            print_violation(screen, exploration, finding, path)
    if kept_in and (not_explored or ended()):
        screen.print("not recorded: not all was explored")
    elif kept_in:
        new, old, is_large = record_of(found), recorded(kept_in), kept_in == LARGE
        titles = [title_of(one) for one in offered(large=is_large, thorough=is_large)]
        write_record(
            {one: new.get(one) or old[one] for one in titles if one in {*new, *old}}, kept_in
        )
        write_chapters()
        screen.print(f"recorded: {kept_in.name}")
    cases = [case for one in found for case in cases_of(one, out_path)]
    report: Json = {"instances": [exploration.as_mapping() for exploration in found]}
    report["not_explored"] = not_explored
    if expected is not None:
        explored = {title_of(one.instance) for one in found}
        verdicts = verdicts_of((one["instance"], one) for one in report["instances"])
        is_all = len(found) == len(offered())  # then an instance that is gone is missed
        compared = expected.compared(
            verdicts, lambda name: is_all or name.rpartition(": ")[0] in explored
        )
        compared.print_to(screen)
        expected_too = report | {"expected": compared.as_mapping()}
        return output.end(compared.exit_code, expected_too, compared.cases(cases))
    code = exit_code(
        violated=any(exploration.findings for exploration in found),
        incomplete=any(exploration.result.stopped_by for exploration in found),
    )
    return output.end(code, report, cases)


def _row(one: Exploration) -> tuple[str, ...]:
    of = one.result
    counts = (of.states, of.transitions, of.depth, of.states_per_second, of.bytes_per_state)
    return title_of(one.instance), *(f"{count:,.0f}" for count in counts), verdict_of(one)


def print_violation(screen: Console, one: Exploration, finding: Finding, path: Path) -> None:
    """A broken rule: what it says, what was found, after which actions, and how to replay it."""
    screen.print()
    where = f" is broken in '{title_of(one.instance)}'"
    screen.print(Text.assemble((finding.rule, "bold red"), where))
    screen.print(f"  says: {sentence(finding.rule)}")
    screen.print(f"  found: {finding.found}")
    screen.print(f"  after: {', '.join(finding.actions)}")
    screen.print(f"  replay: lockstep replay {path}")
    screen.print(f"  look at it: lockstep view {path}")
