"""A vLLM V1 driver's step held against the reference's, see `checks.conformance.comparing`."""

from collections.abc import Collection, Iterator

from checks.conformance.protocol import Json
from checks.fuzz.compare import Difference, Strictness, fields_differ
from spec.policies.vllm_v1_records import State, Step

_DECISIONS = ("scheduled", "drafts", "preempted", "outputs", "finished")

# What a step decided comes before what follows from it.
_EXACT = (
    *("before", "scheduled", "drafts", "admitted", "preempted", "planned", "budget_left"),
    *("reported", "accepted", "outputs", "finished", "external", "failed_loads", "ended"),
    *("after", "statistics"),
)
_FIELDS = {
    Strictness.DECISIONS: _DECISIONS,
    Strictness.OBSERVABLE: (*_DECISIONS, "after", "statistics"),
    Strictness.EXACT: _EXACT,
}


def step_differences(
    expected: Step,
    found: Step,
    record: Json,
    strictness: Strictness,
    not_compared: Collection[str],
    _block_size: int,
) -> tuple[Difference, ...]:
    """Where the driver's step differs, what came first at the front.

    Source of `found`: the `record`, whose totals are compared as well.
    """
    seen = fields_differ(expected, found, _FIELDS[strictness], not_compared)
    if strictness is not Strictness.EXACT:
        return tuple(seen)
    return (*seen, *_totals(expected.after, record))


def _totals(state: State, record: Json) -> Iterator[Difference]:
    """The blocks as the scheduler counts them itself."""
    due = {"used": len(state.pool.references), "free": len(state.pool.free)}
    for name, count in record.get("blocks", {}).items():
        if due[name] != count:
            yield Difference(f"blocks.{name}", "", due[name], count)
