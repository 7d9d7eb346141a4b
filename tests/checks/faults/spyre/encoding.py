"""Faults of requests that wait for their images."""

from typing import Any

from attrs import evolve

from reference.spyre import machine, step, transitions
from spec.spyre.records import Context
from spec.spyre.state import State
from tests.checks.faults.patches import Wrong, altered, changed, configured, kept, result
from tests.checks.faults.spyre.table import fault

PASSED, STOPPING = "images", "images, released"

fault(step, "choose_prefill", of="admit", on=PASSED, rules="SPY-PRI-4, SPY-PRI-6, SPY-ENC-1")(
    lambda right, ctx, state: (
        (None, None)
        if state.without_images & {row.id for row in state.waiting[:1]}
        else right(ctx, state)
    ),
    "others wait for images: a request whose images are not encoded keeps others from their turns",
)
fault(step, "is_passed_over", of="admit", on=PASSED, rules="guard SPY-ENC-1")(
    lambda _right, _ctx, _state, _row: False,
    "looked at without images: a request whose images are not encoded may be chosen",
)
fault(step, "is_passed_over", of="admit", on=STOPPING, rules="SPY-PRI-6")(
    lambda _right, _ctx, state, row: row.id in state.without_images,
    "passed over in any case: in 2.6.3, too, one that lacks blocks does not end the search",
)
fault(transitions, "encode", on=PASSED, rules="SPY-ENC-2")(
    lambda right, ctx, state: altered(changed(waiting=state.waiting))(
        right, ctx, evolve(state, waiting=state.waiting[::-1])
    ),
    "the last first: the encoder is given the images of the last in the queue",
)
fault(transitions, "encode", on=PASSED, rules="SPY-ENC-2")(
    lambda right, ctx, state: (
        evolve(state, unencoded=frozenset(), encoding=state.without_images),
        right(ctx, state)[1],
    ),
    "all at once: the encoder is given more images than there are slots",
)
fault(transitions, "encode", on=PASSED, rules="SPY-ENC-2, SPY-ENC-3")(
    kept("unencoded"), "given for ever: images that the encoder has been given are not noted"
)
fault(transitions, "encode", on=PASSED, rules="SPY-ENC-2")(
    kept("encoding"), "given and forgotten: no images are awaited of the encoder"
)
fault(transitions, "arrive", on=PASSED, rules="LIF-9, SPY-ENC-3")(
    result(unencoded=lambda ids: ids | {"2"}),
    "images of another: with an arrival a request without images waits for them",
)
fault(transitions, "encoded", on=PASSED, rules="LIF-9, SPY-ENC-3")(
    result(encoding=lambda ids: ids | {"2"}),
    "images of another awaited: once images are encoded those of another request are awaited",
)
fault(transitions, "abort", on=PASSED, rules="LIF-9, SPY-ENC-3")(
    lambda right, ctx, state, name, **how: evolve(
        right(ctx, state, name, **how), unencoded=state.unencoded, encoding=state.encoding
    ),
    "images awaited for ever: the images of a request that has left are still awaited",
)
fault(step, "_at_rest", of="step", on=PASSED, rules="SPY-ENC-2")(
    result(encoding=frozenset()), "encoded with a step: a step encodes all images"
)
fault(transitions, "unencodable", on=PASSED, rules="LIF-9, SPY-ENC-4")(
    configured(reading="released"), "not told: no client hears that its images cannot be encoded"
)
fault(transitions, "unencodable", on=PASSED, rules="LIF-7, LIF-9")(
    result(aborted=frozenset()), "failed unseen: a request whose images fail is not on record"
)
fault(step, "_at_rest", of="step", on=STOPPING, rules="SPY-ENC-2")(
    result(untold=frozenset()), "forgotten clients: after a step no client is noted as not told"
)


@fault(
    machine,
    "scheduler_step",
    of="admit",
    on=PASSED,
    rules="SPY-ENC-1, SPY-ENC-2, SPY-ENC-3, SPY-PRI-5",
)
def goes_on_without_its_images(right: Wrong, ctx: Context, state: State, *given: Any) -> Any:
    """A request is prefilled although its images are not encoded."""
    taken = right(ctx, evolve(state, encoding=frozenset()), *given)
    kept_ids = state.encoding | taken.after.encoding
    return evolve(taken, before=state, after=evolve(taken.after, encoding=kept_ids))
