"""Plots of runs and explorations, as a picture or as a page with the picture.

The values of a run are collected step by step; drawing needs matplotlib, the extra `plot`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from html import escape
from importlib import import_module
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field

from checks.export.files import new_file
from checks.export.policy import presentation_of
from engine.core.decisions import Decisions
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError, InputError
from spec.core.records import DECODE

KINDS = (".html", ".png", ".svg")
_MOST_POINTS = 600  # of a line; longer runs show the maximum of each interval
_COLOURS = ("#1f5a96", "#b4531a", "#3a7d44", "#7a4a92", "#8a6d1d", "#5a6570")


def refuse_unplottable(path: Path) -> None:
    """Refuse a plot that cannot be made, before the run.

    Raises:
        InputError: the file's suffix is no known kind of picture.
        ConfigError: matplotlib is not installed.
    """
    if path.suffix not in KINDS:
        raise InputError("--plot", str(path), f"a file that ends with {', '.join(KINDS)}")
    try:
        import_module("matplotlib")
    except ImportError:
        needed = "pip install 'lockstep-schedulers[plot]'"
        raise ConfigError("matplotlib is not installed", needed, "") from None


# --- values of a run ------------------------------------------------------------------------------


@define
class Course:
    """The plotted values of a run by step; an observer of their decisions.

    `times`: on the simulated clock. `scheduled`: requests in the step. `sizes`: the volume if the
    policy limits it, else the computed tokens; `limit`: their limit, or None. `padding` and
    `volumes`: of decode steps, else 0. `waiting`: waiting requests. `prefilled`: tokens of prefills
    that began; `reused`: those from the prefix cache.
    """

    config: PolicyConfig
    limit: int | None = field(init=False)
    times: list[float] = field(factory=list)
    scheduled: list[int] = field(factory=list)
    sizes: list[int] = field(factory=list)
    padding: list[int] = field(factory=list)
    volumes: list[int] = field(factory=list)
    waiting: list[int] = field(factory=list)
    prefilled: list[int] = field(factory=list)
    reused: list[int] = field(factory=list)

    @limit.default
    def _of_policy(self) -> int | None:
        return presentation_of(self.config.policy).volume_limit(self.config)

    def observe(self, step: Decisions) -> None:
        """Add the values of the next step."""
        work = step.work
        self.times.append(step.time)
        self.scheduled.append(step.requests)
        self.sizes.append(step.tokens if self.limit is None else work.volume)
        is_decode = step.kind == DECODE
        self.padding.append(work.padding if is_decode else 0)
        self.volumes.append(work.volume if is_decode else 0)
        self.waiting.append(step.waiting)
        self.prefilled.append(sum(chunk.tokens for chunk in work.prefills))
        self.reused.append(sum(chunk.reused for chunk in work.prefills))

    def padding_share(self) -> Any:
        """By step, the share of padding in the volumes of all decode steps so far."""
        return _shares(self.padding, self.volumes)

    def hit_rate(self) -> Any:
        """By step, the share of cached tokens in all prefills so far."""
        return _shares(self.reused, self.prefilled)


def _shares(parts: Sequence[int], wholes: Sequence[int]) -> Any:
    whole = np.cumsum(wholes)
    return np.cumsum(parts) / np.maximum(whole, 1)


Latencies = Mapping[str, Mapping[float, int]]  # by name, the count of each value


# --- drawing --------------------------------------------------------------------------------------


def plot_runs(path: Path, runs: Mapping[str, tuple[Course, Latencies]]) -> None:
    """Plot one run, or several in the same axes, by label.

    Raises:
        OSError: the file cannot be written.
    """
    with _style():
        figure, axes = _figure(4, 2)
        panels = iter(axes.flat)
        for name, title in _LATENCIES.items():
            _draw_latency(
                next(panels), title, {label: runs[label][1].get(name, {}) for label in runs}
            )
        courses = {label: course for label, (course, _) in runs.items()}
        for title, values in _PANELS:
            _draw_course(next(panels), title, courses, values)
        if len(runs) > 1:
            handles, labels = axes.flat[-1].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
        _write(figure, path, "A run" if len(runs) == 1 else "Runs compared")


def plot_depths(path: Path, depths: Mapping[str, Sequence[int]]) -> None:
    """Plot the number of states at each depth of an exploration, by instance.

    Raises:
        OSError: the file cannot be written.
    """
    with _style():
        figure, axes = _figure(1, 1)
        axis = axes.flat[0]
        for style, (label, counts) in zip(_styles(), depths.items(), strict=False):
            axis.plot(range(len(counts)), counts, marker=".", label=label, **style)
        axis.set_xlabel("actions from the start")
        axis.set_title("states", loc="left")
        _from_zero(axis)
        if len(depths) <= _MOST_NAMED:
            axis.legend(frameon=False)
        _write(figure, path, "States by depth")


def plot_capacity(
    path: Path,
    key: str,
    curve: Mapping[float, Sequence[float]],
    share: float,
    found: Mapping[str, float],
) -> None:
    """Plot the share of requests that meet their bounds over the values of a key.

    `curve`: by value, the share with each order of arrivals, that of the file first. `share`: what
    was asked for. `found`: the boundaries, by name.

    Raises:
        OSError: the file cannot be written.
    """
    with _style():
        figure, axes = _figure(1, 1)
        axis = axes.flat[0]
        values, rows = [*curve], np.asarray([*curve.values()])
        lowest, highest = rows.min(axis=1), rows.max(axis=1)
        axis.fill_between(values, lowest, highest, color=_COLOURS[0], alpha=0.2, linewidth=0)
        styles = _styles()
        axis.plot(values, rows[:, 0], marker=".", label="arrivals of the file", **next(styles))
        if rows.shape[1] > 1:
            shuffled = rows[:, 1:].mean(axis=1)
            axis.plot(values, shuffled, marker=".", label="mean of shuffled ones", **next(styles))
        axis.axhline(
            share, color="#b3261e", linestyle="--", linewidth=1, label=f"goodput {share:g}"
        )
        for name, value in found.items():
            axis.axvline(value, color=_COLOURS[5], linewidth=1)
            axis.annotate(
                f"{name} {value:.4g}", (value, 0), xytext=(3, 3), textcoords="offset points"
            )
        axis.set_xscale("log")
        axis.set_xticks(values, [f"{value:.3g}" for value in values])
        axis.minorticks_off()
        axis.set_xlabel(key)
        axis.set_title("share of requests that meet every bound", loc="left")
        _from_zero(axis)
        axis.legend(frameon=False)
        _write(figure, path, f"Goodput by {key}")


_MOST_NAMED = 8
_LATENCIES = {"ttft": "time to first token", "itl": "between tokens", "end_to_end": "end to end"}
_PANELS: tuple[tuple[str, Callable[[Course], Any]], ...] = (
    ("requests in a step", lambda work: work.scheduled),
    ("size of a step, tokens", lambda work: work.sizes),
    ("padding of decode steps so far, share", Course.padding_share),
    ("requests waiting", lambda work: work.waiting),
    ("cached prompt tokens so far, share", Course.hit_rate),
)


def _draw_latency(axis: Any, title: str, measured: Mapping[str, Mapping[float, int]]) -> None:
    """Draw the cumulative distribution of the values."""
    for style, (label, counts) in zip(_styles(), measured.items(), strict=False):
        values = sorted(counts)
        shares = np.cumsum([counts[value] for value in values]) / max(sum(counts.values()), 1)
        axis.step(values, shares, where="post", label=label, **style)
    axis.set_title(f"{title}: share of values up to", loc="left")
    axis.set_xlabel("time units")
    axis.set_ylim(0, 1.02)


def _draw_course(
    axis: Any, title: str, courses: Mapping[str, Course], values: Callable[[Course], Any]
) -> None:
    """Draw values over simulated time; for a long run the maximum of each interval."""
    for style, (label, course) in zip(_styles(), courses.items(), strict=False):
        times, largest = _thinned(course.times, values(course))
        axis.step(times, largest, where="post", label=label, **style)
    limits = {course.limit for course in courses.values()} - {None}
    if values is _PANELS[1][1]:
        for limit in limits:
            axis.axhline(limit, color="#b3261e", linestyle="--", linewidth=1)
    axis.set_title(title, loc="left")
    axis.set_xlabel("simulated time")
    _from_zero(axis)


def _thinned(times: Sequence[float], values: Any) -> tuple[Any, Any]:
    width = -(-len(times) // _MOST_POINTS) or 1
    starts = np.arange(0, len(times), width)
    if not len(starts):
        return [], []
    return np.asarray(times)[starts], np.maximum.reduceat(np.asarray(values), starts)


def _from_zero(axis: Any) -> None:
    axis.set_ylim(0, max(axis.get_ylim()[1], 1e-9))


def _styles() -> Iterator[dict[str, Any]]:
    """A colour for each line; dashed from the second on, so that equal lines are both visible."""
    for place in count():
        colour = _COLOURS[place % len(_COLOURS)]
        yield {"color": colour, "linestyle": (0, (4, 2)) if place % len(_COLOURS) else "solid"}


def _style() -> AbstractContextManager[None]:
    """The style of all plots; equal plots make equal files."""
    import matplotlib as mpl

    style: AbstractContextManager[None] = mpl.rc_context(
        {
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": 10,
            "font.size": 9,
            "lines.linewidth": 1.2,
            "svg.fonttype": "none",
            "svg.hashsalt": "lockstep",
        }
    )
    return style


def _figure(rows: int, columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns, 2.4 * rows + 0.6), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _write(figure: Any, path: Path, title: str) -> None:
    kind = "png" if path.suffix == ".png" else "svg"
    drawn = BytesIO()
    figure.savefig(drawn, format=kind, dpi=144, metadata={"Date": None} if kind == "svg" else None)
    if path.suffix == ".html":
        svg = drawn.getvalue().decode()
        with new_file(path) as file:
            drawn_svg = svg[svg.index("<svg") :]
            file.write(_PAGE.format(title=escape(title), svg=drawn_svg, least_px=_LEAST_PX))
    elif kind == "svg":
        with new_file(path) as file:
            file.write(drawn.getvalue().decode())
    else:
        with new_file(path) as file:
            file.buffer.write(drawn.getvalue())


_LEAST_PX = 1000  # on a narrow screen the plot scrolls, so that its text can be read
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ margin: 1rem; background: #fff; font: 1rem system-ui; color: #1b2128; }}
figure {{ margin: 0; overflow: auto; }}
figure > svg {{ width: 100%; min-width: {least_px}px; height: auto; }}
:checked ~ figure > svg {{ zoom: 2; }}
</style>
<h1>{title}</h1>
<input id="larger" type="checkbox"> <label for="larger">larger</label>
<figure role="group" aria-label="{title}" tabindex="0">
{svg}</figure>
</html>
"""
