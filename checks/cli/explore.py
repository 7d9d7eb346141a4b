"""`lockstep explore`: every reachable state of small instances, every rule in each."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import evolve

from checks.cli.common import (
    NEW_FILE,
    PATH,
    config_of,
    config_options,
    console,
    json_option,
    out_option,
)

if TYPE_CHECKING:
    from checks.explore import Order


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
    order: "Order",
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
    with --set policy=NAME that of one. --config and --set change keys of the set, of the default
    policy's unless they name another. With --workload the requests of that file are the instance.
    Arrivals are free in order and time, any client may go away, any request may sample the end of
    sequence, as far as the instance says.

    A broken rule is written as a counterexample, the shortest there is with --order bfs, and the
    command that replays it is printed.
    """
    from checks.cli import exploring as work
    from checks.explore import Bounds
    from checks.policies import DEFAULT, policy_named

    changed = partial(config_of, config_path, settings, from_env)
    whole = changed() if config_path or settings or from_env else None
    offered = work.offered(whole)
    if list_:
        console(json_path).print(work.catalogue(offered))
        return 0
    if workload_path is not None:
        config = whole or policy_named(DEFAULT).config()
        instances = [work.own_instance(workload_path, config, fixed_ends, no_aborts)]
    else:
        instances = work.named(names, offered)
        if whole is not None:
            instances = [evolve(one, config=changed(one.config)) for one in instances]
    bounds = Bounds(max_states=max_states, max_seconds=seconds, max_depth=max_depth)
    work.refuse_what_does_not_go(order, bounds, instances, checkpoint or graph_path)
    if len(instances) == 1:
        found = [work.explore_one(instances[0], bounds, order, seed, checkpoint)]
    else:
        found = work.explore_several(instances, bounds, order)
    if graph_path is not None:
        work.write_graph(instances[0], bounds, graph_path)
    is_default_set = instances == work.offered(None) and bounds == Bounds()
    return work.report(found, out_path, json_path, record=record and is_default_set)
