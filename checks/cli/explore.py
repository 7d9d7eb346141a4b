"""`lockstep explore`: every reachable state of small instances, every rule in each."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import click
from attrs import evolve, frozen
from rich.console import Console
from rich.text import Text

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
from checks.cli.expect import Baseline, Expected, expect_option
from checks.cli.explore_lines import assumption_lines, coverage_lines, verdict_line
from checks.cli.explore_verdicts import (
    instance_verdicts,
    recorded_baseline,
    require_default,
    rule_cases,
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
)
from checks.explore.instance import Instance, title_of
from checks.explore.policy import machine_of, offered, refuse_lost_loads
from checks.explore.result import Progress
from checks.explore.search import Order
from checks.export.printable import wrapped
from checks.registry import DEFAULT, claims_of
from checks.words import counted
from engine.workloads import fit_for, read_workload
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError

_NAMED = 5  # unexplored instances that are printed; a report names all
_COLUMNS = ("instance", ">states", ">transitions", ">depth", ">states/s", ">bytes/state", "verdict")


@frozen
class Selection:
    """The selected instances of the policies: all, or those with these names."""

    names: tuple[str, ...]
    large: bool
    thorough: bool
    list_: bool


@frozen
class OwnInstance:
    """A user's instance: a file of requests, and the freedom of the environment."""

    workload_path: Path | None
    fixed_ends: bool
    no_aborts: bool
    returning: bool
    lost_loads: bool
    fewer_drafts: bool
    leave_running: bool


@frozen
class Search:
    """The order of the search, the machine that explores, and the checkpoint."""

    order: Order
    using: str
    fingerprints: bool
    seed: int
    checkpoint: Path | None


@frozen
class Files:
    """The files that are written besides the report."""

    out_path: Path
    graph_path: Path | None
    plot_path: Path | None


@click.command(cls=Command)
@gathered(
    "selection",
    Selection,
    click.argument("names", nargs=-1, metavar="[INSTANCE …]"),
)
@config_options
@gathered(
    "own",
    OwnInstance,
    click.option(
        "--workload", "workload_path", type=PATH, help="Requests of an instance of your own."
    ),
    click.option("--fixed-ends", is_flag=True, help="Own instance: all sample `max_tokens`."),
    click.option("--no-aborts", is_flag=True, help="Own instance: no client goes away."),
    click.option("--returning", is_flag=True, help="Own instance: clients come back for ever."),
    click.option("--lost-loads", is_flag=True, help="Own instance: any external load may fail."),
    click.option(
        "--fewer-drafts",
        is_flag=True,
        help="Own instance: a drafter may propose fewer tokens than are configured, or none.",
    ),
    click.option(
        "--leave-running",
        is_flag=True,
        help="Own instance: any client may leave while the model runs.",
    ),
)
@gathered(
    "bounds",
    Bounds,
    click.option("--max-states", type=click.IntRange(1), help="Stop after N states."),
    click.option("--max-depth", type=click.IntRange(1), help="Go no further from the start."),
    click.option("--time", "max_seconds", type=SECONDS, help="Stop after S seconds each."),
)
@gathered(
    "search",
    Search,
    click.option(
        "--order",
        type=click.Choice(["bfs", "dfs", "random"]),
        default="bfs",
        show_default=True,
        help="bfs gives shortest counterexamples; random walks need --max-depth and --time.",
    ),
    click.option(
        "--using",
        type=click.Choice(["auto", "reference", "compiled"]),
        default="auto",
        show_default=True,
        help="compiled: a hundred times as fast, some rules judged on a sample; needs numba. auto: "
        "the reference begins; of one instance of many states, where nothing needs the reference, "
        "the compiled one takes over when it is ready.",
    ),
    click.option(
        "--fingerprints",
        is_flag=True,
        help="Know states by 64 bits, in half the memory, with the compiled machine: one may be "
        "missed, and the answer says how probably.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Of walks and samples."),
    click.option(
        "--resume", "checkpoint", type=KEPT_FILE, help="Go on from this file, kept every second."
    ),
)
@gathered(
    "files",
    Files,
    out_option,
    click.option(
        "--graph", "graph_path", type=NEW_FILE, help="Write one instance's state graph, GraphML."
    ),
    click.option(
        "--plot",
        "plot_path",
        type=NEW_FILE,
        help="Draw how many states there are at each depth: .html, .png or .svg; needs the extra "
        "`plot`.",
    ),
)
@gathered(
    "baseline",
    Baseline,
    click.option(
        "--record", is_flag=True, help="Keep the verdicts of default instances with the project."
    ),
    on_option("instances"),
    expect_option,
)
@click.option(
    "--large",
    is_flag=True,
    help="The instances that need the compiled machine, in a minute, instead of the default ones.",
)
@click.option("--thorough", is_flag=True, help="With --large: also those that take an hour.")
@click.option("--list", "list_", is_flag=True, help="List the default instances and stop.")
@json_option
def explore(
    selection: Selection,
    sources: Sources,
    own: OwnInstance,
    bounds: Bounds,
    search: Search,
    files: Files,
    baseline: Baseline,
    output: Output,
) -> int:
    """Go through every reachable state and judge every rule in it.

    Without INSTANCE the default set of every policy is explored, on all cores, in about a minute;
    with --set policy=NAME that of one. --config and --set change keys of the set, of the default
    policy's unless they name another. With --workload the requests of that file are the instance.
    Arrivals are free in order and time. As the instance allows, clients may abort or return, and
    requests may sample the end of sequence. If clients return, starvation shows as a run that
    repeats.

    A broken rule is written as a counterexample, the shortest there is with --order bfs, and the
    command that replays it is printed.
    """
    config = sources.read().config if sources != Sources() else None
    large, thorough, plot_path = selection.large, selection.thorough, files.plot_path
    if thorough and not large:
        raise InputError("--thorough", "alone", "only with --large")
    policies = None if config is None else [config.policy]
    there_are = offered(policies, large=large, thorough=thorough)
    if selection.list_:
        rows = [
            (title_of(instance), str(len(instance.requests)), instance.about)
            for instance in there_are
        ]
        output.screen.print(plain_table(("instance", "requests", "about"), rows))
        return 0
    if own.workload_path is not None:
        own_config = config or claims_of(DEFAULT).config()
        instances = [_own_instance(own.workload_path, own, own_config)]
    else:
        instances = _named(selection.names, there_are)
        if config is not None:
            instances = [
                evolve(instance, config=sources.read(instance.config).config)
                for instance in instances
            ]
    _refuse_conflicts(search.order, bounds, instances, search.checkpoint or files.graph_path)
    search = _with_machine(search, baseline, large=large)
    if baseline.record:
        require_default("--record", instances, large=large)
        if bounds != Bounds():
            raise InputError("--record", "a bound", "instances that are explored to the end")
    if plot_path is not None:
        from checks.export.plots import plot_depths, refuse_unplottable

        refuse_unplottable(plot_path)
    expected = None if baseline.expect is None else recorded_baseline(baseline.expect, instances)
    explorations = _explored(instances, bounds, search, large=large)
    if files.graph_path is not None:
        from checks.explore.graph import write_graph  # which loads networkx
        from checks.export.policy import presentation_of

        policy = instances[0].config.policy
        model, codec = machine_of(policy).model(instances[0]), presentation_of(policy).codec
        write_graph(files.graph_path, model, codec.as_json, bounds)
    if plot_path is not None:
        plot_depths(
            plot_path,
            {
                title_of(exploration.instance): exploration.result.by_depth
                for exploration in explorations
            },
        )
        output.screen.print(f"written: {plot_path}")
    record_file = (LARGE if large else EXPLORED) if baseline.record else None
    return _report(explorations, instances, files.out_path, output, expected, record_file)


# --- selected instances ---------------------------------------------------------------------------


def _named(names: Sequence[str], instances: Iterable[AnyInstance]) -> list[AnyInstance]:
    """The first instance of each title or name; all instances without names.

    Instances are taken only as far as needed, so that no other policy is imported.
    """
    if not names:
        return [*instances]
    by_name: dict[str, AnyInstance] = {}
    titles = []
    for instance in instances:
        titles.append(title_of(instance))
        for name in {instance.name, title_of(instance)}.intersection(names):
            by_name.setdefault(name, instance)
        if by_name.keys() >= {*names}:
            return [by_name[name] for name in names]
    unknown = next(name for name in names if name not in by_name)
    raise InputError("INSTANCE", unknown, f"{'; '.join(titles)}; see --list")


def _own_instance(workload_path: Path, own: OwnInstance, config: PolicyConfig) -> AnyInstance:
    """The instance with the requests of a file and the freedom that the options allow."""
    from checks.harness.policy import evidence_of  # which loads decoders

    policy, refuse = config.policy, claims_of(config.policy).refuse_unservable
    if own.leave_running and not evidence_of(policy).adapter.rules_know_leavers:
        allowed = f"a machine in which clients leave in a step; that of {policy} has none"
        raise InputError("--leave-running", True, allowed)
    if own.fewer_drafts and not getattr(config, "num_speculative_tokens", 0):
        allowed = "a configuration with num_speculative_tokens above 0"
        raise InputError("--fewer-drafts", True, allowed)
    requests, _ = fit_for(read_workload(workload_path), lambda request: refuse(request, config))
    every_request = frozenset(request.id for request in requests)
    external = {request.id: request.external for request in requests if request.external}
    if own.returning and any(request.continued_by for request in requests):
        raise InputError("--returning", True, "requests without continued_by")
    instance = Instance(
        name=workload_path.stem,
        about=f"the requests of {workload_path}",
        config=config,
        requests=tuple(requests),
        aborts=frozenset() if own.no_aborts else every_request,
        early_ends=frozenset() if own.fixed_ends else every_request,
        returning=every_request if own.returning else frozenset(),
        external=external,
        failing=frozenset(external) if own.lost_loads else frozenset(),
        fewer_drafts=every_request if own.fewer_drafts else frozenset(),
        leavers=every_request if own.leave_running else frozenset(),
    )
    if own.lost_loads:
        refuse_lost_loads(instance, "--lost-loads")
    return instance


def _refuse_conflicts(
    order: Order, bounds: Bounds, instances: Sequence[AnyInstance], file: Path | None
) -> None:
    """Refuse unbounded random walks, one file for several instances, and a search on a cluster."""
    if order == "random" and (bounds.max_depth is None or bounds.max_seconds is None):
        raise InputError("--order", order, "random only with --max-depth and --time")
    if len(instances) > 1 and (file or order == "random"):
        raise InputError("INSTANCE", "several", "one, with --resume, --graph or random walks")
    if is_elsewhere() and (file or order == "random"):
        allowed = "instances as a whole; --resume, --graph and random walks belong to one machine"
        raise InputError("--on", "together with --resume, --graph or random walks", allowed)


def _with_machine(search: Search, baseline: Baseline, *, large: bool) -> Search:
    """The search with the machine that its options need, if they need one."""
    if (search.fingerprints or large) and search.using == "reference":
        option = "--large" if large else "--fingerprints"
        raise InputError(option, "--using reference", "only with --using compiled")
    has_options = baseline.record or baseline.expect or search.order != "bfs"
    if search.fingerprints or (large and has_options):
        search = evolve(search, using="compiled")
    if search.fingerprints and search.checkpoint is not None:
        raise InputError("--fingerprints", "--resume", "one of both: they leave no state to keep")
    needs_reference = {
        "--order": search.order != "bfs",
        "--record": baseline.record and not large,
    }
    if search.using == "compiled":
        for option in (option for option, is_set in needs_reference.items() if is_set):
            raise InputError(option, "--using compiled", "only with --using reference")
    elif any(needs_reference.values()) or baseline.expect:
        search = evolve(search, using="reference")
    return search


# --- exploring ------------------------------------------------------------------------------------


def _explored(
    instances: Sequence[AnyInstance], bounds: Bounds, search: Search, *, large: bool
) -> list[Exploration]:
    """Explore large instances one after the other, others with the reference in parallel."""
    if search.using == "compiled":
        compiled = partial(explore_compiled, fingerprints=search.fingerprints)
        return [_explore_one(compiled, instance, bounds, search) for instance in instances]
    if not large and (len(instances) > 1 or is_elsewhere()):
        return _explore_several(instances, bounds, search.order)
    with_reference = partial(explore_instance, order=search.order)
    explore_it = partial(explore_either, large=large) if search.using == "auto" else with_reference
    return [_explore_one(explore_it, instance, bounds, search) for instance in instances]


def _explore_one(
    explore_it: Callable[..., Exploration], instance: AnyInstance, bounds: Bounds, search: Search
) -> Exploration:
    """Explore an instance with progress; a signal ends the search and keeps its result."""
    with progress_bar("states", bounds.max_states) as show, deferred():

        def progress(at: Progress) -> None:
            rate = f"{at.states_per_second:,.0f} states/s"
            compiling = ", compiling beside it" * at.compiling
            show(at.states, f"depth {at.depth}, queue {at.queue:,}, {rate}{compiling}")

        return explore_it(
            instance,
            bounds,
            seed=search.seed,
            progress=progress,
            stop=stopping,
            checkpoint=search.checkpoint,
        )


def _explore_several(
    instances: Sequence[AnyInstance], bounds: Bounds, order: Order
) -> list[Exploration]:
    """Explore on all cores with progress; after a signal returns the finished explorations."""
    explorations = []
    with progress_bar("instances", len(instances)) as show, keeping_results():
        for exploration in explore_all(instances, bounds, order=order):
            explorations.append(exploration)
            show(len(explorations), title_of(exploration.instance))
    return explorations


# --- output ---------------------------------------------------------------------------------------


def _report(
    explorations: Sequence[Exploration],
    asked: Sequence[AnyInstance],
    out_path: Path,
    output: Output,
    expected: Expected | None,
    record_file: Path | None,
) -> int:
    """Print tables, write counterexamples and the record; returns the exit code.

    `record_file`: the record to update, if any.
    """
    screen = output.screen
    screen.print(plain_table(_COLUMNS, map(_row, explorations)))
    states = sum(exploration.result.states for exploration in explorations)
    transitions = sum(exploration.result.transitions for exploration in explorations)
    counts = (states, "state"), (transitions, "transition")
    screen.print(", ".join(counted(*count) for count in ((len(explorations), "instance"), *counts)))
    not_explored = [title_of(instance) for instance in asked[len(explorations) :]]
    if len(explorations) == 1:
        lines = (*assumption_lines(explorations[0].instance), *coverage_lines(explorations[0]))
        print_lines(screen, *map(wrapped, lines))
    if not_explored:
        named = "; ".join([*not_explored[:_NAMED], *("…" for _ in not_explored[_NAMED:][:1])])
        print_lines(screen, f"{counted(len(not_explored), 'instance')} not explored: {named}")
    for exploration in explorations:
        for finding in exploration.findings:
            from checks.explore.counterexample import write_counterexample

            path = out_path / counterexample_name(exploration, finding)
            out_path.mkdir(parents=True, exist_ok=True)
            write_counterexample(exploration, finding, path)
            print_violation(screen, exploration, finding, path)
    if record_file and (not_explored or ended()):
        screen.print("not recorded: not all was explored")
    elif record_file:
        new, old, is_large = record_of(explorations), recorded(record_file), record_file == LARGE
        titles = [title_of(instance) for instance in offered(large=is_large, thorough=is_large)]
        write_record(
            {title: new.get(title) or old[title] for title in titles if title in {*new, *old}},
            record_file,
        )
        from checks.chapters import write_chapters  # which loads all evidence

        write_chapters()
        screen.print(f"recorded: {record_file.name}")
    cases = (case for exploration in explorations for case in rule_cases(exploration, out_path))
    report: Json = {"instances": [exploration.as_mapping() for exploration in explorations]}
    report["not_explored"] = not_explored
    if expected is not None:
        explored = {title_of(exploration.instance) for exploration in explorations}
        verdicts = instance_verdicts((entry["instance"], entry) for entry in report["instances"])
        is_all = len(explorations) == len([*offered()])  # then a removed instance is a difference
        compared = expected.compared(
            verdicts, lambda name: is_all or name.rpartition(": ")[0] in explored
        )
        return compared.end(output, report, cases)
    code = exit_code(
        violated=any(exploration.findings for exploration in explorations),
        incomplete=any(exploration.result.stopped_by for exploration in explorations),
    )
    return output.end(code, report, cases)


def _row(exploration: Exploration) -> tuple[str, ...]:
    of = exploration.result
    counts = (of.states, of.transitions, of.depth, of.states_per_second, of.bytes_per_state)
    return (
        title_of(exploration.instance),
        *(f"{count:,.0f}" for count in counts),
        verdict_line(exploration),
    )


def print_violation(
    screen: Console, exploration: Exploration, finding: Finding, path: Path
) -> None:
    """Print a broken rule: its sentence, the violation, the actions and the replay command."""
    screen.print()
    where = f" is broken in '{title_of(exploration.instance)}'"
    screen.print(Text.assemble((finding.rule, "bold red"), where))
    screen.print(f"  says: {sentence(finding.rule)}")
    screen.print(f"  found: {finding.found}")
    screen.print(f"  after: {', '.join(finding.actions)}")
    screen.print(f"  replay: lockstep replay {path}")
    screen.print(f"  look at it: lockstep view {path}")
