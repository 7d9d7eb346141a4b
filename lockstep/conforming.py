"""Campaigns, explorations and replays in this process, with reports as the commands print them."""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from io import StringIO
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from attrs import field, frozen
from rich.console import Console

from checks.cli.campaigns import print_findings
from checks.cli.common import pinned_keys, print_lines
from checks.cli.conform import print_again, run_again
from checks.cli.explore import print_violation
from checks.cli.explore_lines import verdict_line
from checks.cli.replay import finding_verdict, print_elsewhere, print_end, print_step
from checks.cli.worlds import Asked, worlds_lines
from checks.explore.bounds import Bounds
from checks.explore.counterexample import write_counterexample
from checks.explore.exploring import (
    Exploration,
    counterexample_name,
    explore_instance,
)
from checks.explore.instance import Instance
from checks.explore.policy import refuse_lost_loads
from checks.explore.result import Outcome
from checks.export.outside import placed
from checks.export.trace.reading import Trace, read_trace
from checks.harness.campaigns.campaign import Campaign, Plan, own_system, run_batch
from checks.harness.campaigns.corpus import Recorded, recorded
from checks.harness.campaigns.elsewhere import replay_on_driver
from checks.harness.campaigns.recording import Recording, is_recording, read_recording
from checks.harness.campaigns.replaying import refuse_unknown_rules, replay_of
from checks.harness.campaigns.report import print_finding, verdict
from checks.harness.campaigns.worlds import Coverage, WorldPlan, run_part
from checks.harness.comparing import Strictness
from checks.harness.comparison import Terms, compare
from checks.harness.policy import Own
from checks.harness.standalone import with_own_steps
from checks.harness.system import System
from checks.releases.filing import Filed, filed_findings
from checks.words import counted
from lockstep.systems import AnySystem, campaign_source, named, system_name
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError
from spec.core.requests import Request

_COLUMNS = 100


@frozen
class Judged:
    """The result of a run. `holds`: no violation was found within its bounds.

    `report`: the output of the command.
    """

    holds: bool
    report: str

    def __str__(self) -> str:
        return self.report


@frozen
class Conformed(Judged):
    """The result of a campaign; `findings`: the shrunk findings with their files.

    `report`: the findings, and the verdict with its bounds. `coverage`: the edges that were taken,
    if instances were named.
    """

    campaign: Campaign = field(repr=False)
    findings: tuple[Filed, ...] = ()
    coverage: Coverage | None = field(default=None, repr=False)


@frozen
class Explored(Judged):
    """The result of an exploration; `files`: the counterexamples."""

    exploration: Exploration = field(repr=False)
    files: tuple[Path, ...] = ()


def conform(
    system: AnySystem,
    *,
    episodes: int = 100,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    strictness: str = "exact",
    findings: Path | str = "findings",
    name: str = "",
    instances: Iterable[str] | None = None,
) -> Conformed:
    """Compare a scheduler with the reference in random cases, as `lockstep conform` does.

    With `instances` it takes every edge of these worlds or instances of its policy instead; with an
    empty list, of all worlds that it can do.

    Every step is compared, and every rule judges the scheduler's own steps. The campaign ends with
    the first finding, which is shrunk and recorded in the directory `findings`. A class or a system
    runs in this process; a file, or the name of a release, runs in its own. `settings`:
    configuration keys that are not drawn. `name`: the system's name in the command that repeats a
    finding.

    Raises:
        InputError: the driver does not exist, a setting is invalid, or the driver supports no case
            or no such instance.
    """
    source = campaign_source(system)
    texts = (f"{key}={_as_setting(value)}" for key, value in (settings or {}).items())
    pinned = pinned_keys(tuple(texts), own_system(source).hello.policy)
    plan = Plan(source, seed, Terms(Strictness(strictness)), pinned)
    seen, coverage, began = Campaign(plan), None, monotonic()
    if instances is not None:
        coverage = _coverage(Asked(system_name(system), (*instances,), exhaustive=True).plan(plan))
        seen, episodes = coverage.campaign, 0
    for episode in range(episodes):
        seen.add(run_batch(plan, seen.starts([episode])))
        if seen.first_seen:
            break
    seen.seconds = monotonic() - began
    filed = tuple(filed_findings(seen, name or system_name(system), Path(findings)))
    seen.shrink_seconds = monotonic() - began - seen.seconds
    screen = _screen()
    print_findings(screen, seen, filed)
    print_lines(screen, verdict(seen, len(filed)))
    holds = not (seen.first_seen or seen.overdue) and seen.steps > 0
    if coverage is not None:
        print_lines(screen, *worlds_lines(coverage))
        holds = holds and not coverage.left
    return Conformed(holds, _text(screen), seen, filed, coverage)


def _coverage(plan: WorldPlan) -> Coverage:
    """All parts of the worlds, up to the first with a finding."""
    seen = Coverage(Campaign(plan))
    for number in range(len(plan.parts())):
        seen.add(run_part(plan, inf, number))
        if seen.campaign.first_seen:
            break
    return seen


def explore_requests(
    config: PolicyConfig,
    requests: Iterable[Request],
    *,
    aborts: bool = True,
    early_ends: bool = True,
    lost_loads: bool = False,
    leave_running: bool = False,
    bounds: Bounds | None = None,
    counterexamples: Path | str = "counterexamples",
) -> Explored:
    """Judge every rule in every state of the reference that these requests can reach.

    Requests arrive in any order and at any time. `aborts`: any client may abort. `early_ends`: any
    request may end early. `lost_loads`: any external load may fail. `leave_running`: any client may
    abort while the model runs, if the machine supports it. A search that a bound ended does not
    hold. Counterexamples are written into the directory `counterexamples`.

    Raises:
        WorkloadError: a request can never be served.
        InputError: loads are to be lost where none can be.
    """
    requests = tuple(requests)
    all_ids = frozenset(request.id for request in requests)
    external = {request.id: request.external for request in requests if request.external}
    may_leave, may_end = (all_ids if allowed else frozenset() for allowed in (aborts, early_ends))
    instance: Instance[Any] = Instance(
        name="own requests",
        about="requests of one's own",
        config=config,
        requests=requests,
        aborts=may_leave,
        early_ends=may_end,
        external=external,
        failing=frozenset(external) if lost_loads else frozenset(),
        leavers=all_ids if leave_running else frozenset(),
    )
    if lost_loads:
        refuse_lost_loads(instance, "lost_loads")
    exploration = explore_instance(instance, bounds)
    screen, files = _screen(), []
    screen.print(f"{counted(exploration.result.states, 'state')}: {verdict_line(exploration)}")
    for finding in exploration.findings:
        Path(counterexamples).mkdir(parents=True, exist_ok=True)
        files.append(Path(counterexamples) / counterexample_name(exploration, finding))
        write_counterexample(exploration, finding, files[-1])
        print_violation(screen, exploration, finding, files[-1])
    holds = exploration.result.outcome is Outcome.HOLDS
    return Explored(holds, _text(screen), exploration, tuple(files))


def replay(file: Path | str, system: AnySystem | None = None) -> Judged:
    """Replay a file: a finding, a recording, a counterexample or a trace.

    The result holds if the recorded violation no longer occurs; for a trace, if each step is as in
    the file. `system`: by default the system that the file names, for traces and counterexamples
    the reference.

    Raises:
        InputError: the file cannot be read, or the driver does not exist.
    """
    path = Path(file)
    if is_recording(path):
        return replay_recording(read_recording(path), system)
    trace = read_trace(path)
    refuse_unknown_rules(trace)
    finding = recorded(trace)
    if finding is not None:
        return _replay_of_fuzz(finding, system)
    return _replay_of_trace(trace, None if system is None else own_system(campaign_source(system)))


def replay_recording(recording: Recording, system: AnySystem | None = None) -> Judged:
    """Replay the case of a recording, see `replay`."""
    with nullcontext() if system else placed(recording.path):
        mine = own_system(campaign_source(system or system_of(recording)))
    episode, screen = run_again(mine, recording), _screen()
    print_again(screen, mine.hello, recording, episode)
    return Judged(not episode.findings, _text(screen))


def system_of(recording: Recording) -> AnySystem:
    """The system in the command that made the recording.

    Raises:
        InputError: the command is no `lockstep conform DRIVER`.
        DriverError: the named class cannot be imported.
    """
    match recording.command.split():
        case ["lockstep", "conform", name, *_]:
            return named(name, recording.path)
    raise InputError("command", recording.command, "lockstep conform DRIVER").at(recording.path)


def _replay_of_fuzz(found: Recorded, system: AnySystem | None) -> Judged:
    own = Own(found.case.config.policy, found.using)
    mine = own.open() if system is None else own_system(campaign_source(system))
    episode, screen = compare(mine, found.case, found.terms), _screen()
    if episode.finding is not None:
        finding = with_own_steps(mine, found.case, found.terms, episode.finding)
        print_finding(screen, mine.hello, found.case, finding)
    screen.print(finding_verdict(found, mine.hello.name, episode))
    return Judged(episode.finding is None, _text(screen))


def _replay_of_trace(trace: Trace, system: System | None) -> Judged:
    screen = _screen()
    if system is not None and "events" not in system.hello.abilities:
        elsewhere = replay_on_driver(trace, system)
        print_elsewhere(screen, trace, system.hello.release, elsewhere)
        holds = not (elsewhere.confirms(trace) or elsewhere.differs)
        return Judged(holds, _text(screen))
    result = replay_of(trace, system)
    for step in result.steps if trace.violation else ():
        print_step(screen, trace.config.policy, step, states=False)
    print_end(screen, trace, result)
    holds = not result.broken and result.difference is None and result.confirms
    return Judged(holds, _text(screen))


def _as_setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _screen() -> Console:
    plain: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
    return Console(file=StringIO(), width=_COLUMNS, color_system=None, **plain)


def _text(screen: Console) -> str:
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()
