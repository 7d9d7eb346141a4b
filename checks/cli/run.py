"""`lockstep run`: serve a workload, judge every step, print latencies and other figures.

`lockstep simulate` shares all of it but the judging.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from attrs import frozen

from checks.cli import exit_code
from checks.cli.ci import Case, status_of
from checks.cli.common import (
    Output,
    files_option,
    gathered,
    on_option,
    print_lines,
    progress_bar,
    timed_config_options,
)
from checks.cli.configuration import Sources
from checks.cli.held import releases_held
from checks.cli.outputs import NEW_FILE, PATH, Command
from checks.cli.run_tables import print_comparison, print_run
from checks.cores import is_elsewhere, on_all_cores
from checks.ending import deferred, keeping_results, raise_if_signalled
from checks.explore.exploring import sentence
from checks.export.bench import Bench
from checks.export.files import write_lines
from checks.export.plots import Course, plot_runs, refuse_unplottable
from checks.export.policy import presentation_of
from checks.export.timeline import new_timeline
from checks.export.trace.line import Violation
from checks.export.trace.writing import TraceWriter
from checks.harness.runs.serving import Refused, Run, run_workload, scheduler_of
from checks.harness.runs.settings import Settings
from checks.harness.runs.simulating import SIMULATION, simulate
from checks.harness.system import ENGINE, REFERENCE
from checks.registry import POLICIES, claims_of
from engine.core.decisions import Decisions
from engine.core.metrics import Objective
from engine.workloads import FORMATS, Workload, asking, at_rate, fit_for, read_workload
from engine.workloads.checked import MOST_TOKENS
from engine.workloads.formats import LOCKSTEP, names
from engine.workloads.recorded import CHARS_PER_TOKEN, OUTPUT_LEN
from reference.core.guards import GuardError
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError, InputError
from spec.core.records import SomeStep
from spec.core.requests import Request

_BAR_EVERY = 64  # steps


@frozen(kw_only=True)
class Files:
    """The files that are written besides the tables, or None."""

    timeline: Path | None
    plot: Path | None
    bench: Path | None = None
    trace: Path | None = None
    full: bool = False
    figures: Path | None = None

    @property
    def of_one_run(self) -> list[Path]:
        """Those that show a single run."""
        of_one = (self.trace, self.figures, self.timeline, self.bench)
        return [path for path in of_one if path is not None]

    @property
    def paths(self) -> list[Path]:
        """All that are written."""
        return self.of_one_run if self.plot is None else [*self.of_one_run, self.plot]


@frozen
class Requests:
    """A file of requests, and the changes made to them before they are served."""

    workload: Path
    format_: str | None
    chars_per_token: float
    output_len: int
    limit: int | None
    rate: float | None
    asked: float | None

    def read(self) -> Workload:
        """The requests of the file, changed.

        Raises:
            InputError: the file cannot be read, or its requests do not allow the change.
        """
        if self.format_ is not None and self.format_ not in names():
            raise InputError("--format", self.format_, ", ".join(names()))
        read = read_workload(
            self.workload,
            self.format_,
            self.limit,
            chars_per_token=self.chars_per_token,
            output_len=self.output_len,
        )
        read = read if self.rate is None else at_rate(read, self.rate)
        return read if self.asked is None else asking(read, self.asked)


request_options = gathered(
    "requests",
    Requests,
    click.argument("workload", type=PATH),
    click.option(
        "--format",
        "format_",
        metavar="NAME",
        help=f"Of the workload file: {', '.join(FORMATS)}, or one of an installed package.  "
        "[default: what its content looks like]",
    ),
    click.option(
        "--chars-per-token",
        type=click.FloatRange(0, min_open=True),
        default=CHARS_PER_TOKEN,
        show_default=True,
        metavar="C",
        help="Estimates the length of a text in files that have no token counts.",
    ),
    click.option(
        "--output-len",
        type=click.IntRange(1, MOST_TOKENS),
        default=OUTPUT_LEN,
        show_default=True,
        metavar="N",
        help="Tokens to generate for a request whose file does not say how many.",
    ),
    click.option("--limit", type=click.IntRange(1), help="Only the first N requests."),
    click.option(
        "--rate",
        type=click.FloatRange(0, min_open=True),
        metavar="R",
        help="Arrivals of timed requests stretched to R of them per time unit, from the first to "
        "the last; evenly, where all arrive at once.",
    ),
    click.option(
        "--asked",
        type=click.FloatRange(1),
        metavar="F",
        help="Clients ask for F times the tokens that they use: max_tokens stretched, answers as "
        "they were.",
    ),
)
compare_option = click.option(
    "--compare",
    "compared",
    multiple=True,
    metavar="KEY=A,B",
    help="Serve it under each of these values; several of them: under every combination.",
)
slo_option = click.option(
    "--slo",
    metavar="ttft=X,itl=Y",
    help="Bounds for goodput, in time units: ttft, itl (the request's mean), e2e.",
)
timeline_option = click.option(
    "--timeline",
    type=NEW_FILE,
    help="Write a timeline for trace viewers such as Perfetto, Chrome trace JSON.",
)
plot_option = click.option(
    "--plot",
    type=NEW_FILE,
    help="Draw latencies, batch, queue, padding and cache hits: .html, .png or .svg; needs the "
    "extra `plot`.",
)


@click.command(cls=Command)
@timed_config_options
@request_options
@click.option(
    "--using",
    type=click.Choice([ENGINE, REFERENCE]),
    help="What schedules: the engine on the simulated device, or the reference.  [default: the "
    "engine, where the policy has one]",
)
@compare_option
@click.option(
    "--whole",
    is_flag=True,
    help="Judge every step on whole states, not by what it changed: slower, with the same answers.",
)
@slo_option
@gathered(
    "files",
    Files,
    click.option("--trace", type=NEW_FILE, help="Write what every step did, JSON lines."),
    click.option(
        "--full", is_flag=True, help="Whole states in the trace, so that it can be judged."
    ),
    click.option("--figures", type=NEW_FILE, help="Write the published plot format."),
    timeline_option,
    click.option(
        "--bench",
        type=NEW_FILE,
        help="Write the result as `vllm bench serve --save-detailed` does, JSON; a time unit is "
        "written as a second.",
    ),
    plot_option,
)
@on_option("configurations of --compare")
@files_option
def run(
    requests: Requests,
    sources: Sources,
    using: str | None,
    compared: tuple[str, ...],
    whole: bool,
    slo: str | None,
    files: Files,
    output: Output,
) -> int:
    """Serve WORKLOAD and judge every step by every rule.

    WORKLOAD is a file of requests, one a line, a public trace, or what a benchmark of vLLM, sglang,
    AIPerf, genai-perf or guidellm reads or writes. Arrivals in seconds are moments of the simulated
    clock, on which a step takes what the configuration or else the policy's default charges; --set
    prefill_time=8 charges 8 units for a prefill step and 1 for a decode step. Requests of a file of
    others that could never be served are left out and counted. Where steps repeat for ever the run
    ends, and says what never comes.
    """
    variants = sources.variants(compared)
    first = next(iter(variants.values())).config
    if files.figures is not None and presentation_of(first.policy).plot is None:
        drawn = ", ".join(name for name in POLICIES if presentation_of(name).plot is not None)
        raise ConfigError("--figures", first.policy, f"{drawn}, whose figures these are")
    schedulers = {label: scheduler_of(using, variant.config) for label, variant in variants.items()}
    offered = Offered.of(requests, variants)
    return serve(offered, variants, schedulers, compared, slo, files, whole=whole).report(output)


@frozen
class Offered:
    """A workload as its file has it, and by label the requests that a configuration can serve.

    `refused`: by label, the number of requests that can never be served.
    """

    read: Workload
    requests: Mapping[str, list[Request]]
    refused: Mapping[str, int]
    rate: float | None
    about_cost: str = ""

    @classmethod
    def of(cls, requests: Requests, variants: Mapping[str, Settings]) -> "Offered":
        """The requests of the file for each configuration.

        Raises:
            InputError: the file cannot be read, or a request of our own format cannot be served.
        """
        read = requests.read()
        fitting = {label: _fitting(read, variant.config) for label, variant in variants.items()}
        served = {label: fit for label, (fit, _) in fitting.items()}
        refused = {label: len(others) for label, (_, others) in fitting.items()}
        about_cost = next((variant.about_cost for variant in variants.values()), "")
        return cls(read, served, refused, requests.rate, about_cost)

    def lines(self) -> Iterator[str]:
        """How a file of others was read, and where estimated costs are from."""
        if self.read.format != LOCKSTEP:
            notes = "; ".join(self.read.notes)
            yield f"read as {': '.join(filter(None, (self.read.format, notes)))}"
        if self.about_cost:
            yield f"costs: {self.about_cost}"

    def report(self) -> dict[str, Any]:
        """The entry `workload` of a report."""
        return {"workload": {"format": self.read.format, "notes": list(self.read.notes)}}


def serve(
    offered: Offered,
    variants: Mapping[str, Settings],
    schedulers: Mapping[str, str],
    compared: Sequence[str],
    slo: str | None,
    files: Files,
    *,
    whole: bool = False,
) -> "Served":
    """Serve the requests under each configuration.

    `schedulers`: what schedules, by label. `compared`: values of `--compare`. `slo`: of `--slo`.

    Raises:
        InputError: a file or an option of the command is wrong, or a request cannot be served.
    """
    if files.plot is not None:
        refuse_unplottable(files.plot)
    if compared and files.of_one_run:
        raise ConfigError(
            "--compare", ", ".join(compared), "no --trace, --figures, --timeline or --bench"
        )
    if is_elsewhere() and not compared:
        raise InputError("--on", "one configuration", "several, with --compare")
    objective = objective_of(slo)
    runs: dict[str, Run] = {}
    courses: dict[str, Course] = {}
    pieces = [
        _Piece(
            label,
            settings,
            offered.requests[label],
            schedulers[label],
            whole,
            objective,
            files,
            offered.rate,
        )
        for label, settings in variants.items()
    ]
    with keeping_results(), deferred():
        for piece, (done, course) in zip(pieces, _served(pieces), strict=True):
            runs[piece.label] = done
            if course is not None:
                courses[piece.label] = course
            raise_if_signalled()
    not_served = [label for label in variants if label not in runs]
    return Served(
        offered=offered,
        runs=runs,
        courses=courses,
        not_served=not_served,
        files=files,
        compared=bool(compared),
    )


@frozen(kw_only=True)
class Served:
    """The runs by label. `not_served`: labels that a signal left out.

    `compared`: they are shown side by side.
    """

    offered: Offered
    runs: Mapping[str, Run]
    courses: Mapping[str, Course]
    not_served: Sequence[str]
    files: Files
    compared: bool

    def report(self, output: Output, *lines: str, worst: int = 0, **more: Any) -> int:
        """Print and write the results; returns the exit code.

        `lines`, `worst` and `more`: printed lines, exit code and report entries of further checks.
        """
        runs, screen, read = self.runs, output.screen, self.offered.read
        if not runs:
            return output.end(exit_code(violated=False), {})
        reports = {
            label: _report(done, self.offered.refused[label] + read.skipped)
            for label, done in runs.items()
        }
        print_lines(screen, *self.offered.lines())
        if self.compared:
            print_comparison(screen, runs, self.offered.refused)
            if self.not_served:
                screen.print(f"not served: {'; '.join(self.not_served)}")
        else:
            ((label, done),) = runs.items()
            print_run(screen, done, self.offered.refused[label], read.skipped)
        if self.files.plot is not None:
            plotted = {label: (self.courses[label], runs[label].latencies) for label in runs}
            plot_runs(self.files.plot, plotted)
        for path in self.files.paths:
            screen.print(f"written: {path}")
        print_lines(screen, *lines)
        code = max(worst, exit_code(violated=not all(done.holds for done in runs.values())))
        cases = [case for label, done in runs.items() for case in _cases(label or "run", done)]
        report = {"runs": reports} if self.compared else reports[label]
        return output.end(code, self.offered.report() | report | more, cases)


def _cases(suite: str, done: Run) -> Iterator[Case]:
    """A CI case for each judged rule, and for the error that ended the run."""
    broken = {
        violation.rule.id: f"step {violation.step}: {violation.found}"
        for violation in reversed(done.broken)
    }
    for rule in done.rules:
        found = broken.get(rule.id, "")
        status = status_of(violated=found)
        yield Case(suite=suite, name=rule.id, status=status, says=rule.sentence, found=found)
    if not done.holds and not broken:
        end = _violation(done)
        found = str(end.found)
        yield Case(suite=suite, name=end.rule, status="failed", says=end.says, found=found)


def objective_of(slo: str | None) -> Objective | None:
    """The bounds of `--slo`."""
    if slo is None:
        return None
    bounds: dict[str, float] = {}
    for part in slo.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in ("ttft", "itl", "e2e") or name in bounds:
            raise ConfigError("bound", part, "ttft=X, itl=X, e2e=X, each once").at("--slo")
        try:
            bounds[name] = float(value)
        except ValueError:
            raise ConfigError(name, value, "a number of time units").at("--slo") from None
    try:
        return Objective(**bounds)
    except ConfigError as error:
        raise error.at("--slo") from None


def _fitting(read: Workload, config: PolicyConfig) -> tuple[list[Request], list[InputError]]:
    """The requests that this configuration can serve, and the errors of the others."""
    refuse = claims_of(config.policy).refuse_unservable
    return fit_for(read, lambda request: refuse(request, config))


@frozen
class _Piece:
    """One run: its configuration, requests, system, objective and files.

    `whole`: each step is judged on whole states.
    """

    label: str
    settings: Settings
    requests: list[Request]
    using: str
    whole: bool
    objective: Objective | None
    files: Files
    rate: float | None


def _served(pieces: Sequence[_Piece]) -> Iterator[tuple[Run, Course | None]]:
    """The runs: judged ones one after the other, as each uses two cores, others in parallel."""
    in_parallel = is_elsewhere() or (len(pieces) > 1 and pieces[0].using == SIMULATION)
    if not in_parallel:
        yield from map(_run, pieces)
        return
    with progress_bar("configurations", len(pieces)) as show:
        for number, done in enumerate(on_all_cores(_run, pieces), start=1):
            show(number, "served")
            yield done


def _run(piece: _Piece) -> tuple[Run, Course | None]:
    """Run a piece with its files and progress bar; returns its course if it is plotted."""
    label, settings, requests, using = piece.label, piece.settings, piece.requests, piece.using
    objective, files = piece.objective, piece.files
    course = Course(settings.config) if files.plot is not None else None
    config, by_id = settings.config, {request.id: request for request in requests}
    kept: list[SomeStep] = []
    with ExitStack() as stack:
        observers: list[Callable[[SomeStep], None]] = []
        measures: list[Callable[[Decisions], None]] = []
        if files.trace is not None:
            cost = settings.cost.as_mapping(config)
            writer = TraceWriter(
                files.trace, config, requests, source=using, full=files.full, cost=cost
            )
            trace = stack.enter_context(writer)
            observers.append(trace.write)
        if files.timeline is not None:
            timeline = new_timeline(files.timeline, by_id, config, settings.cost)
            observers.append(stack.enter_context(timeline).observe)
        if files.figures is not None:
            observers.append(kept.append)
        if course is not None:
            measures.append(course.observe)
        if files.bench is not None:
            duration = presentation_of(config.policy).duration_of(config, settings.cost)
            bench = Bench(by_id, duration)
            observers.append(bench.observe)
        measures.append(stack.enter_context(_progress(label, len(requests))))
        if using == SIMULATION:
            record = partial(_each, observers) if observers else None
            done = simulate(
                settings, requests, objective=objective, observers=measures, record=record
            )
        else:
            decisions = partial(presentation_of(config.policy).decisions, config)
            observers.append(lambda step: _each(measures, decisions(step)))
            done = run_workload(
                settings,
                requests,
                using=using,
                objective=objective,
                observers=observers,
                whole=piece.whole,
            )
        if files.trace is not None and not done.holds:
            trace.violated(_violation(done))
        elif files.trace is not None and done.interrupted:
            trace.cut_off()
    if files.bench is not None:
        bench.write(files.bench, done.summary, config.policy, piece.rate)
    plot = presentation_of(config.policy).plot
    if files.figures is not None and plot is not None:
        write_lines(files.figures, plot(config, by_id, kept))
    return done, course


def _each(observers: Sequence[Callable[[Any], None]], step: Any) -> None:
    for observe in observers:
        observe(step)


@contextmanager
def _progress(label: str, requests: int) -> Iterator[Callable[[Decisions], None]]:
    """Show a progress bar of the requests that have left; yields an observer of decisions."""
    began, left = perf_counter(), 0
    with progress_bar(f"requests, {label}" if label else "requests", requests) as show:

        def observe(step: Decisions) -> None:
            nonlocal left
            left += len(step.finished) + len(step.aborted)
            if step.index % _BAR_EVERY == 0:
                rate = (step.index + 1) / max(perf_counter() - began, 1e-9)
                show(left, f"step {step.index:,}, time {step.time:,.0f}, {rate:,.0f} steps/s")

        yield observe


def _violation(done: Run) -> Violation:
    """The first broken rule, else the error that ended the run."""
    if done.broken:
        first = done.broken[0]
        found = f"step {first.step}: {first.found}"
        return Violation(first.rule.id, first.rule.sentence, found)
    if done.device is not None and done.device.wrong:
        says = "Each request's tokens are those of the request served alone."
        return Violation("device: tokens", says, str(done.device.wrong[0]))
    assert done.refused is not None
    error = done.refused.error
    if isinstance(error, GuardError):
        return Violation("machine-error", sentence("machine-error"), str(done.refused))
    return Violation(f"device: {error.constraint}", error.constraint.sentence, str(done.refused))


def _report(done: Run, refused: int) -> dict[str, Any]:
    report: dict[str, Any] = {
        "using": done.using,
        "config": done.settings.config.as_mapping(),
        "cost": done.settings.cost.as_mapping(done.settings.config),
        "unit": done.settings.unit,
        "refused": refused,
        "rules": [rule.id for rule in done.rules],
        "violations": [
            {"step": violation.step, "rule": violation.rule.id, "found": violation.found}
            for violation in done.broken
        ],
        "refused_step": None,
        "interrupted": done.interrupted,
        "seconds": round(done.seconds, 3),
        "steps_per_second": round(done.steps / done.seconds) if done.seconds else None,
        **done.summary.as_mapping(),
    }
    if done.using == SIMULATION:
        report["held"] = [held.as_mapping() for held in releases_held(done.settings.config)]
    if done.refused is not None:
        report["refused_step"] = _refusal(done.refused)
    if done.device is not None:
        report["device"] = {
            "computed_tokens": done.device.computed,
            "tokens_compared": done.device.sampled,
            "wrong_tokens": [str(wrong) for wrong in done.device.wrong],
        }
    return report


def _refusal(refused: Refused) -> dict[str, Any]:
    error = refused.error
    if isinstance(error, GuardError):
        return {"step": refused.step, "transition": error.transition, "rule": error.rule}
    numbers = dict(error.numbers)
    return {"step": refused.step, "constraint": str(error.constraint), "numbers": numbers}
