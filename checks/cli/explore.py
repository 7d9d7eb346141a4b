"""`lockstep explore`: every reachable state of small instances, every rule in each."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
import networkx as nx
from attrs import evolve

from checks.cli.common import (
    NEW_FILE,
    PATH,
    config_of,
    config_options,
    console,
    err,
    json_option,
    out_option,
    progress_bar,
    write_json,
)
from checks.cli.explore_tables import catalogue, counts, print_finding
from checks.evidence import EXPLORED, record_of, write_chapters, write_record
from checks.explore import Bounds, Order, Progress, state_graph
from checks.explore.exploring import (
    AnyInstance,
    Exploration,
    counterexample_name,
    explore_all,
    explore_instance,
    total,
    write_counterexample,
)
from checks.explore.instance import Instance
from checks.policies import POLICIES, policy_of, title_of
from engine.workloads import fit_for, read_workload
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError
from spec.spyre.config import SpyreConfig


@click.command()
@click.argument("names", nargs=-1, metavar="[INSTANCE …]")
@config_options
@click.option("--workload", "workload_path", type=PATH, help="Requests of an instance of your own.")
@click.option("--fixed-ends", is_flag=True, help="Own instance: requests end where they say.")
@click.option("--no-aborts", is_flag=True, help="Own instance: no client goes away.")
@click.option("--max-states", type=click.IntRange(1), help="Stop after so many states.")
@click.option("--max-depth", type=click.IntRange(1), help="Go no further from the start.")
@click.option("--time", "seconds", type=click.FloatRange(0), help="Stop after S seconds each.")
@click.option(
    "--order",
    type=click.Choice(["bfs", "dfs", "random"]),
    default="bfs",
    show_default=True,
    help="bfs gives shortest counterexamples; random walks need --max-depth and --time.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random walks.")
@click.option("--resume", "checkpoint", type=PATH, help="Go on from, and stop into, this file.")
@out_option
@click.option(
    "--graph", "graph_path", type=NEW_FILE, help="Write one instance's state graph, GraphML."
)
@click.option("--record", is_flag=True, help="Keep the verdicts with the project (default set).")
@click.option("--list", "list_", is_flag=True, help="List the default instances and stop.")
@json_option
def explore(
    names: tuple[str, ...],
    config_path: Path | None,
    settings: tuple[str, ...],
    from_env: bool,
    workload_path: Path | None,
    fixed_ends: bool,
    no_aborts: bool,
    max_states: int | None,
    max_depth: int | None,
    seconds: float | None,
    order: Order,
    seed: int,
    checkpoint: Path | None,
    out_path: Path,
    graph_path: Path | None,
    record: bool,
    list_: bool,
    json_path: Path | None,
) -> int:
    """Go through every reachable state and judge every rule in it.

    Without INSTANCE the default set of every policy is explored, on all cores, in about a minute;
    with --set policy=NAME that of one. --config and --set change keys of the set, of Spyre's unless
    they name a policy. With --workload the requests of that file are the instance. Arrivals are
    free in order and time, any client may go away, any request may sample the end of sequence, as
    far as the instance says.

    A broken rule is written as a counterexample, the shortest there is with --order bfs, and the
    command that replays it is printed.
    """
    changed = partial(config_of, config_path, settings, from_env)
    whole = changed() if config_path or settings or from_env else None
    offered = _offered(whole)
    if list_:
        console(json_path).print(catalogue(offered))
        return 0
    if workload_path is not None:
        instances = [_own_instance(workload_path, whole or SpyreConfig(), fixed_ends, no_aborts)]
    elif whole is None:
        instances = [*_named(names, offered)]
    else:
        instances = [evolve(one, config=changed(one.config)) for one in _named(names, offered)]
    bounds = Bounds(max_states=max_states, max_seconds=seconds, max_depth=max_depth)
    _refuse_what_does_not_go(order, bounds, instances, checkpoint or graph_path)
    if len(instances) == 1:
        found = [_explore_one(instances[0], bounds, order, seed, checkpoint)]
    else:
        found = _explore_several(instances, bounds, order)
    if graph_path is not None:
        _write_graph(instances[0], bounds, graph_path)
    is_default_set = instances == _offered(None) and bounds == Bounds()
    return _tell(found, out_path, json_path, record=record and is_default_set)


def _offered(config: PolicyConfig | None) -> list[AnyInstance]:
    """The default instances of the policy of a configuration; without one, of every policy."""
    policies = POLICIES.values() if config is None else [policy_of(config)]
    return [instance for policy in policies for instance in policy.instances]


def _own_instance(
    workload_path: Path, config: PolicyConfig, fixed_ends: bool, no_aborts: bool
) -> AnyInstance:
    """The requests of a file, with as much freedom as the options leave them."""
    refuse = policy_of(config).refuse_unservable
    requests, _ = fit_for(read_workload(workload_path), lambda request: refuse(request, config))
    everybody = frozenset(request.id for request in requests)
    return Instance(
        name=workload_path.stem,
        about=f"the requests of {workload_path}",
        config=config,
        requests=tuple(requests),
        aborts=frozenset() if no_aborts else everybody,
        early_ends=frozenset() if fixed_ends else everybody,
    )


def _refuse_what_does_not_go(
    order: Order, bounds: Bounds, instances: Sequence[AnyInstance], file: Path | None
) -> None:
    """Refuse random walks without an end, and one file for several instances."""
    if order == "random" and (bounds.max_depth is None or bounds.max_seconds is None):
        raise InputError("--order", order, "random only with --max-depth and --time")
    if len(instances) > 1 and (file or order == "random"):
        raise InputError("INSTANCE", "several", "one, with --resume, --graph or random walks")


def _named(names: tuple[str, ...], offered: Sequence[AnyInstance]) -> Sequence[AnyInstance]:
    """The instances of these titles or, where no title is the same, names; or all.

    Raises:
        InputError: an unknown name.
    """
    known = {one.name: one for one in offered} | {title_of(one): one for one in offered}
    for name in names:
        if name not in known:
            titles = "; ".join(title_of(one) for one in offered)
            raise InputError("INSTANCE", name, f"{titles}; see --list")
    return [known[name] for name in names] if names else offered


def _explore_one(
    instance: AnyInstance, bounds: Bounds, order: Order, seed: int, checkpoint: Path | None
) -> Exploration:
    """With progress, and an interrupt that ends the search where it is."""
    interrupted: list[bool] = []
    with progress_bar("states", bounds.max_states) as show:

        def progress(at: Progress) -> None:
            rate = f"{at.states_per_second:,.0f} states/s"
            show(at.states, f"depth {at.depth}, queue {at.queue:,}, {rate}")

        with _interrupt_into(interrupted):
            return explore_instance(
                instance,
                bounds,
                order=order,
                seed=seed,
                progress=progress,
                stop=lambda: bool(interrupted),
                checkpoint=checkpoint,
            )


@contextmanager
def _interrupt_into(noted: list[bool]) -> Iterator[None]:
    """While it lasts, the first Ctrl-C is noted instead of raised."""

    def note(_signal: int, _frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(True)
        err.print("stopping; again to stop at once")

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _explore_several(
    instances: Sequence[AnyInstance], bounds: Bounds, order: Order
) -> list[Exploration]:
    found = []
    with progress_bar("instances", len(instances)) as show:
        for exploration in explore_all(instances, bounds, order=order):
            found.append(exploration)
            show(len(found), title_of(exploration.instance))
    return found


def _write_graph(instance: AnyInstance, bounds: Bounds, path: Path) -> None:
    """The state graph with the states numbered as they were found; who is where, by id."""
    graph = state_graph(policy_of(instance.config).model(instance), bounds)
    written = policy_of(instance.config).codec.state_as_json
    numbered = nx.convert_node_labels_to_integers(graph, label_attribute="state")
    for _, node in numbered.nodes(data=True):
        node |= _places(written(node.pop("state")))
    nx.write_graphml(numbered, path)


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


def _tell(
    found: Sequence[Exploration], out_path: Path, json_path: Path | None, *, record: bool
) -> int:
    """Tables, counterexamples, the record; the exit code."""
    screen = console(json_path)
    screen.print(counts(found))
    states, transitions = total(found)
    screen.print(f"{len(found)} instances, {states:,} states, {transitions:,} transitions")
    for exploration in found:
        for finding in exploration.findings:
            path = out_path / counterexample_name(exploration, finding)
            out_path.mkdir(parents=True, exist_ok=True)
            write_counterexample(exploration, finding, path)
            print_finding(screen, exploration, finding, path)
    write_json([exploration.as_mapping() for exploration in found], json_path)
    if record:
        write_record(record_of(found), EXPLORED)
        write_chapters()
        screen.print(f"recorded: {EXPLORED.name}")
    if any(exploration.findings for exploration in found):
        return 1
    return 0 if all(exploration.is_complete for exploration in found) else 3
