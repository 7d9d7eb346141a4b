"""A run as a stepped line: a meter of its steps against its limit, with marked numbers."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil

from attrs import frozen

from checks.export.examples import Example
from checks.export.policy import presentation_of
from checks.registry import claims_of
from spec.core.records import SomeStep

_WIDTH, _HEIGHT = 720, 260  # pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 14, 34
_TICKS = 4


@frozen
class _Scale:
    """The coordinates of steps and values, in pixels."""

    steps: int
    most: int

    def x(self, step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / max(self.steps, 1)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / max(self.most, 1)


def staircase(steps: Sequence[SomeStep], example: Example) -> str:
    """The SVG of a meter over the steps of an example, with its marks as dots, levels as lines."""
    ctx = claims_of(example.config.policy).context_of(example.config, example.requests)
    picture = presentation_of(example.config.policy).picture
    meters = {step.index: list(picture.meters(ctx, step)) for step in steps}
    name = example.meter or max(meters.values(), key=len)[0].name
    shown = {index: meter for index, own in meters.items() for meter in own if meter.name == name}
    limit = next(iter(shown.values())).limit
    marks = example.marks(steps) if example.marks else {}
    levels = example.levels(steps) if example.levels else {}
    values = {index: meter.value for index, meter in shown.items()}
    most = max(limit or 0, *values.values(), *marks.values(), *levels.values())
    scale = _Scale(len(steps), ceil(most * 1.05))
    parts = [
        *_axes(scale, name),
        *_limit(scale, limit),
        *_levels(scale, levels),
        *_stairs(scale, values),
        *_marks(scale, marks),
    ]
    says = escape(f"{example.title}. {example.says}")
    return (
        f'<svg class="staircase" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{says}">'
        f"{''.join(parts)}</svg>"
    )


def _axes(scale: _Scale, name: str) -> Iterator[str]:
    bottom = scale.y(0)
    yield f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom:.0f}H{_WIDTH - _RIGHT}"/>'
    unit = _round(scale.most / _TICKS)
    for value in range(0, scale.most + 1, unit):
        yield f'<text class="left" x="{_LEFT - 6}" y="{scale.y(value) + 4:.0f}">{value}</text>'
    for step in range(0, scale.steps + 1, _round(scale.steps / 8)):
        yield f'<text x="{scale.x(step + 0.5):.0f}" y="{bottom + 16:.0f}">{step}</text>'
    yield f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 4}">step</text>'
    yield f'<text class="name" x="{_LEFT + 6}" y="{_TOP + 8}">{escape(name)}</text>'


def _round(value: float) -> int:
    """The smallest number 1, 2, 5 or 10 times a power of ten that is at least `value`."""
    unit: int = 10 ** (len(str(max(int(value), 1))) - 1)
    return next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= value)


def _limit(scale: _Scale, limit: int | None) -> Iterator[str]:
    if limit is not None:
        y = scale.y(limit)
        yield f'<path class="limit" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
        yield f'<text class="end" x="{_WIDTH - _RIGHT}" y="{y - 5:.0f}">limit {limit}</text>'


def _stairs(scale: _Scale, values: dict[int, int]) -> Iterator[str]:
    path = [
        f"M{scale.x(index):.1f} {scale.y(value):.1f}H{scale.x(index + 1):.1f}"
        if index - 1 not in values
        else f"V{scale.y(value):.1f}H{scale.x(index + 1):.1f}"
        for index, value in values.items()
    ]
    yield f'<path class="line" d="{"".join(path)}"/>'


def _levels(scale: _Scale, levels: Mapping[tuple[int, int], int]) -> Iterator[str]:
    for (first, last), value in levels.items():
        left, right, y = scale.x(first), scale.x(last + 1), scale.y(value)
        path = f"M{left:.1f} {scale.y(0):.1f}V{y:.1f}H{right:.1f}V{scale.y(0):.1f}"
        yield f'<path class="level" d="{path}"><title>{value}</title></path>'


def _marks(scale: _Scale, marks: Mapping[int, int]) -> Iterator[str]:
    for index, value in marks.items():
        at = f'cx="{scale.x(index + 0.5):.1f}" cy="{scale.y(value):.1f}"'
        yield f'<circle class="mark" {at} r="4.5"><title>{value}</title></circle>'
