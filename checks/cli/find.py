"""`lockstep simulate --find`: the largest rate, or the values of a key, that keep a goodput."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from attrs import evolve, frozen

from checks.cli import exit_code
from checks.cli.common import Output, gathered, plain_table, print_lines, progress_bar
from checks.cli.held import held_lines, releases_held
from checks.cli.run import Offered, objective_of
from checks.ending import deferred, ended, keeping_results
from checks.export.figures import percent
from checks.export.plots import plot_capacity, refuse_unplottable
from checks.harness.runs.capacity import MAX_RATE, T_95, Capacity, Kept, Question, capacity
from checks.harness.runs.settings import Settings
from checks.harness.runs.simulating import SLICE_REQUESTS
from checks.words import counted
from engine.workloads import Workload
from spec.core.errors import InputError


@frozen
class Questions:
    """Further questions to a simulation: slices to `verify`, and the `key` to search, or None.

    `share`, `shuffles`: of the search. `seed` draws slices and shuffles.
    """

    verify: int | None
    key: str | None
    share: float
    shuffles: int
    seed: int

    def refuse(self, slo: str | None, rate: float | None, others: Mapping[str, object]) -> None:
        """Refuse a search without bounds, or with options of a single run.

        Raises:
            InputError: `--slo` is missing, or one of the `others` is given, by name.
        """
        assert self.key is not None
        if slo is None:
            raise InputError("--find", self.key, "together with --slo, the bounds to be met")
        if self.key == MAX_RATE:
            others = {**others, "--rate": rate}
        for option, value in others.items():
            if value:
                raise InputError("--find", self.key, f"not together with {option}")


question_options = gathered(
    "asked",
    Questions,
    click.option(
        "--verify",
        type=click.IntRange(1),
        metavar="N",
        help=f"Serve N random slices of {SLICE_REQUESTS} requests as `run` does, each from an idle "
        "server on: judge every step by every rule, compute every token on the simulated device, "
        "and compare the decisions with those of a simulation.",
    ),
    click.option(
        "--find",
        "key",
        metavar="KEY",
        help=f"Search the values that keep the goodput: of {MAX_RATE} the largest, of an integer "
        "key of the configuration the smallest and the largest; --plot draws the share over them.",
    ),
    click.option(
        "--goodput",
        "share",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.99,
        show_default=True,
        metavar="SHARE",
        help="With --find: the share of requests that must meet every bound of --slo.",
    ),
    click.option(
        "--shuffles",
        type=click.IntRange(2, len(T_95) + 1),
        default=5,
        show_default=True,
        metavar="N",
        help="With --find: orders of the gaps between arrivals for the confidence interval.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Draws the slices of --verify and the shuffles of --find.",
    ),
)


def find(
    offered: Offered,
    settings: Settings,
    asked: Questions,
    slo: str | None,
    plot: Path | None,
    output: Output,
) -> int:
    """Answer the question of `--find`; returns the exit code."""
    objective = objective_of(slo)
    assert objective is not None
    assert asked.key is not None
    if plot is not None:
        refuse_unplottable(plot)
    question = Question(
        settings=settings,
        workload=_servable(offered),
        objective=objective,
        share=asked.share,
        key=asked.key,
    )
    seeds = range(asked.seed + 1, asked.seed + 1 + asked.shuffles)
    answer = Capacity(question, ())
    with keeping_results(), deferred(), progress_bar("arrivals", 1 + len(seeds)) as show:
        for so_far in capacity(question, seeds, curve=plot is not None):
            answer = so_far
            show(len(answer.kept), "searched")
    is_whole = len(answer.kept) == 1 + len(seeds) and ended() is None
    left_out = sum(offered.refused.values()) + offered.read.skipped
    print_lines(output.screen, *offered.lines(), *_lines(answer, is_whole=is_whole))
    if left_out:
        what = counted(left_out, "request")
        print_lines(output.screen, f"{what} left out: never servable, or without tokens")
    if answer.kept:
        rows = (_row(kept, _names(answer)) for kept in answer.kept)
        output.screen.print(plain_table(_heads(answer), rows))
    print_lines(output.screen, *held_lines(settings.config))
    if plot is not None and answer.curve:
        plot_capacity(plot, asked.key, answer.curve, asked.share, _boundaries(answer))
        output.screen.print(f"written: {plot}")
    code = exit_code(violated=False, incomplete=not is_whole)
    held = [held.as_mapping() for held in releases_held(settings.config)]
    report = {"find": _report(answer), "refused": left_out, "held": held}
    return output.end(code, offered.report() | report)


def _servable(offered: Offered) -> Workload:
    """The workload with the requests that the configuration can serve."""
    read, (requests,) = offered.read, offered.requests.values()
    lines = dict(zip((request.id for request in read.requests), read.lines, strict=True))
    return evolve(
        read,
        requests=tuple(requests),
        lines=tuple(lines[request.id] for request in requests),
    )


# --- words ----------------------------------------------------------------------------------------


def _lines(answer: Capacity, *, is_whole: bool) -> Iterator[str]:
    question = answer.question
    bounds = ", ".join(f"{name} {bound:g}" for name, bound in question.objective.given().items())
    unit = question.settings.unit
    asked = f"{percent(question.share)} or more of the requests meet {bounds} ({unit}s)"
    if not is_whole:
        orders = counted(len(answer.kept), "order")
        yield f"interrupted: {orders} of the arrivals searched, no curve drawn"
    if answer.kept:
        kept = _phrase(question.key, answer.kept[0])
        kept += f" requests per {unit}" if question.is_rate else ""
        yield f"{kept} with the arrivals of the file: {asked}"
    for name in _names(answer):
        shuffles = counted(len(answer.kept) - 1, "shuffle")
        estimate = answer.estimate(name)
        if estimate is not None:
            interval = f"95 % interval {_shown(estimate.low)} to {_shown(estimate.high)}"
            yield f"{_SAYS[name]} over {shuffles} of the gaps: {_shown(estimate.mean)}, {interval}"
        elif is_whole:
            yield f"{_SAYS[name]} over {shuffles} of the gaps: not found for each, no interval"
    requests = counted(len(question.workload.requests), "request")
    yield f"{counted(answer.simulations, 'simulation')} of {requests}"


_SAYS = {"least": "smallest value", "most": "largest value"}


def _shown(value: float) -> str:
    """Whole numbers as they are, others with four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _names(answer: Capacity) -> tuple[str, ...]:
    return ("most",) if answer.question.is_rate else ("least", "most")


def _phrase(key: str, kept: Kept) -> str:
    if kept.most is None:
        return f"no value of {key} is kept"
    beyond = {name: f" ({_BEYOND[name]} are refused or were not tried)" for name in kept.open_ends}
    end = f"{_shown(kept.most)}{beyond.get('most', '')}"
    if kept.least is None:
        return f"{key} up to {end}"
    return f"{key} from {kept.least:,}{beyond.get('least', '')} to {end}"


_BEYOND = {"least": "smaller ones", "most": "larger ones"}


def _heads(answer: Capacity) -> tuple[str, ...]:
    boundaries = (f">{_SAYS[name]}" for name in _names(answer))
    return "arrivals", *boundaries, ">goodput there", ">simulations"


def _row(kept: Kept, names: Sequence[str]) -> tuple[str, ...]:
    arrivals = "of the file" if kept.seed is None else f"shuffled, seed {kept.seed}"
    simulations = f"{len(kept.shares):,}"
    if kept.most is None:
        return arrivals, *["none"] * len(names), "-", simulations
    ends = (
        f"{_shown(getattr(kept, name))}{' (open)' if name in kept.open_ends else ''}"
        for name in names
    )
    return arrivals, *ends, percent(kept.shares[kept.most]), simulations


def _boundaries(answer: Capacity) -> dict[str, float]:
    first = answer.kept[0]
    found = {"from": first.least, "up to": first.most}
    return {name: value for name, value in found.items() if value is not None}


def _report(answer: Capacity) -> dict[str, Any]:
    question = answer.question
    estimates = {name: answer.estimate(name) for name in _names(answer)}
    return {
        "key": question.key,
        "goodput": question.share,
        "slo": question.objective.given(),
        "unit": question.settings.unit,
        "arrivals": [
            {
                "seed": kept.seed,
                "least": kept.least,
                "most": kept.most,
                "open_ends": list(kept.open_ends),
                "shares": [[value, share] for value, share in sorted(kept.shares.items())],
            }
            for kept in answer.kept
        ],
        "estimates": {
            name: {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
            for name, estimate in estimates.items()
            if estimate is not None
        },
        "curve": [[value, list(shares)] for value, shares in answer.curve.items()],
    }
