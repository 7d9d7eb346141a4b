"""Steps with the verdicts of the rules on them, as pages show them."""

from collections.abc import Iterable, Iterator
from typing import Any

from attrs import define, field

from checks.export.pages.document import document_of
from checks.export.pages.situation import Json, Moment, Verdicts
from checks.harness.judging import Judge
from checks.harness.system import Step, System
from checks.policies import policy_of
from spec.core.records import SomeContext

Found = tuple[tuple[str, str], ...]  # broken rules, each with what was found


@define
class Shown:
    """Makes moments of steps, one after the other, each judged by every rule."""

    ctx: SomeContext
    judge: Judge = field(init=False)
    _last: Any = None

    def __attrs_post_init__(self) -> None:
        self.judge = Judge(self.ctx)

    def moment(self, step: Step) -> Moment:
        """The next step."""
        found = tuple((one.rule.id, one.found) for one in self.judge.observe(step))
        moment = Moment(
            after=step.after, step=step, last=self._last, verdicts=self._verdicts(found, step)
        )
        self._last = step.after
        return moment

    def between(self, state: Any, index: int, label: str, found: Found = ()) -> Moment:
        """A state that arrivals and aborts left before step `index`."""
        verdicts = Verdicts(broken=found)
        return Moment(after=state, last=self._last, index=index, label=label, verdicts=verdicts)

    def _verdicts(self, found: Found, step: Step) -> Verdicts:
        rules = self.judge.rules
        speaks = tuple(one.id for one in rules if one.witness(self.ctx, step))
        return Verdicts(broken=found, speaks=speaks)


@define
class ShownRelease(Shown):
    """The same of the steps of a driver, which may leave fields out."""

    system: System = field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        adapter = policy_of(self.ctx.config).adapter
        self.judge = Judge(self.ctx, adapter=adapter, unreported=self.system.hello.unreported)

    def _verdicts(self, found: Found, step: Step) -> Verdicts:
        return Verdicts(broken=found, unjudged=tuple(self.judge.not_evaluated))


def moments_of(ctx: SomeContext, steps: Iterable[Step]) -> Iterator[tuple[Moment]]:
    """Frames of one side: the steps, judged."""
    shown = Shown(ctx)
    return ((shown.moment(step),) for step in steps)


def document_of_steps(
    ctx: SomeContext, steps: Iterable[Step], *, title: str, about: str = ""
) -> Json:
    """The document of a run of one scheduler."""
    return document_of(ctx, moments_of(ctx, steps), title=title, about=about)
