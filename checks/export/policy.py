"""The presentation part of a policy: how its steps are written, drawn, timed and counted."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attrs import field, frozen

from checks.export.examples import Example
from checks.export.figures import PublishedFigure, StepFigures, token_figures
from checks.export.pages.picture import Picture
from checks.export.trace.codec import Codec
from checks.export.trace.records import Json
from checks.registry import part_of
from engine.core.clock import COUNTS, CostModel, Prefill, Work
from spec.core.configuration import PolicyConfig
from spec.core.records import PREFILL, SomeState, SomeStep
from spec.core.requests import Request

if TYPE_CHECKING:
    from engine.core.decisions import Decisions  # whose packages the pages do not have
    from engine.core.metrics import Summary

ConfigT = TypeVar("ConfigT", bound=PolicyConfig)
StateT = TypeVar("StateT", bound=SomeState)
StepT = TypeVar("StepT", bound=SomeStep)


def work_of_tokens(_config: object, step: SomeStep) -> Work:
    """The work of a step: in a prefill step a prefill for each request, else a number of rows."""
    if step.kind == PREFILL:
        parts = tuple(Prefill(request_id, tokens) for request_id, tokens in step.scheduled.items())
        return Work(kind=step.kind, chunk_tokens=sum(step.scheduled.values()), prefills=parts)
    return Work(kind=step.kind, rows=len(step.scheduled))


@frozen(kw_only=True)
class Presentation(Generic[ConfigT, StateT, StepT]):
    """How the steps of a policy are shown.

    `codec`: writes and reads steps and states. `picture`: how pages draw them. `work`: the work of
    a step, which the simulated clock charges. `cost`: what `run` charges for it by default.
    `figures`: the table rows for the size of steps.
    `plot`: the lines of the published plot format, None if the policy has no such figures.
    `volume_limit`: the limit on batch size times tkv, in tokens, or None. `examples`: runs that the
    book shows. `published`: published figures that it compares with ours.
    """

    codec: Codec[StateT, StepT]
    picture: Picture = field(factory=Picture)
    work: Callable[[ConfigT, StepT], Work] = work_of_tokens
    cost: CostModel = COUNTS
    figures: Callable[["Summary"], StepFigures] = token_figures
    plot: Callable[[ConfigT, Mapping[str, Request], Iterable[StepT]], Iterator[Json]] | None = None
    volume_limit: Callable[[ConfigT], int | None] = lambda _config: None
    examples: tuple[Example, ...] = ()
    published: tuple[PublishedFigure, ...] = ()

    def decisions(self, config: ConfigT, step: StepT) -> "Decisions":
        """The decisions that the record of a step shows."""
        from engine.core.decisions import decisions_of

        return decisions_of(step, self.work(config, step))

    def duration_of(
        self, config: ConfigT, cost: CostModel | None = None
    ) -> Callable[[StepT], float]:
        """The duration of steps on the simulated clock; `cost`: by default only the step times."""
        charged = cost or CostModel.from_mapping({}, config)
        return lambda step: self.work(config, step).duration(charged)


def presentation_of(policy: str) -> Presentation[Any, Any, Any]:
    """The presentation part of the policy of this name."""
    part: Presentation[Any, Any, Any] = part_of(policy, "presentation")
    return part
