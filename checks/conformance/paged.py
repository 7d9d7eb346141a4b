"""What conformance of vLLM V1 and of nano-vLLM has in common: comparing, and the paged device."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, evolve

from checks.fuzz.compare import Difference, Strictness, fields_differ
from checks.harness.driver.protocol import Json
from checks.harness.paging import PagedWatch
from engine.core.faults import ConstraintError
from spec.core.records import Event, SomeState

Compare = Callable[[Any, Any, Any, Json, Strictness, Collection[str]], tuple[Difference, ...]]


def compared_by(fields: Mapping[Strictness, Sequence[str]]) -> Compare:
    """Holds a driver's step against the reference's, field by field in this order.

    At its strictest with the record's totals, too: a scheduler may count otherwise than its own
    requests and blocks add up to.
    """

    def differences(
        _ctx: Any,
        expected: Any,
        found: Any,
        record: Json,
        strictness: Strictness,
        leaves_out: Collection[str],
    ) -> tuple[Difference, ...]:
        seen = fields_differ(expected, found, fields[strictness], leaves_out)
        if strictness is not Strictness.EXACT:
            return tuple(seen)
        return (*seen, *_block_counts(expected.after, record))

    return differences


def _block_counts(state: SomeState, record: Json) -> Iterator[Difference]:
    """The blocks as the scheduler counts them itself."""
    due = {"used": len(state.pool.references), "free": len(state.pool.free)}
    for name, count in record.get("blocks", {}).items():
        if due[name] != count:
            yield Difference(f"blocks.{name}", "", due[name], count)


@define
class PagedHardware:
    """The paged device behind a driver's scheduler, which needs nothing but what the steps tell.

    It is shown every step of an episode, in their order, up to the first that it refuses. `moves`:
    the events that show in a step.
    """

    watch: PagedWatch[Any]
    moves: Callable[[Any], tuple[Event, ...]]

    @property
    def steps(self) -> int:
        """That the device did."""
        return self.watch.steps

    def wrong(self, _record: Json, step: Any) -> tuple[str, str] | None:
        """What is wrong with the step, a name and a sentence.

        Of those who left while it ran the scheduler drops what was sampled.
        """
        gone = step.after.aborted - step.before.aborted
        try:
            self.watch.observe(evolve(step, events=self.moves(step)))
        except ConstraintError as error:
            return f"device: {error.constraint}", str(error)
        wrong = [one for one in self.watch.wrong if one.by == "device" or one.id not in gone]
        self.watch.wrong.clear()
        return ("device: token", str(wrong[0])) if wrong else None
