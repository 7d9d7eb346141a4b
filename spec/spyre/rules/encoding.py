"""Rules of images: which requests wait until theirs are encoded, and what the encoder is given.

Source: sendnn-inference 2.6.3, asynchronous encoding of images. What an encoder does is not
modelled; a prompt has its tokens, those that stand for images among them.
"""

from collections.abc import Iterator

from spec.core.judging import ids
from spec.spyre.records import Context, Step
from spec.spyre.rules.observed import BY_WIDTH, unready
from spec.spyre.rules.registry import always, of_step, release, witness
from spec.spyre.rules.turns import first_that_may, holding_up
from spec.spyre.state import State

_ENCODING = release("asynchronous encoding of images")


@of_step("SPY-ENC-1", _ENCODING)
@witness(lambda _, step: step.before.encoding and step.happened("admit"))
def no_prefill_without_images(ctx: Context, step: Step) -> Iterator[str]:
    """Until its images are encoded a request counts as one that has not arrived: it is not
    prefilled, and keeps no other from its prefill.
    """
    # Without it the first of the others that no rule refuses would be prefilled. Where the
    # narrowest goes first, rules of priority say which; where blocks stay set aside for requests
    # that have left, SPY-RES-4 says why others wait.
    before = step.before
    if early := ids(step.happened("admit")) & before.without_images:
        yield f"{sorted(early)} admitted, the images are not encoded"
    if not before.without_images or before.orphaned or step.scheduled.keys() & ids(before.waiting):
        return
    others = [row for row in before.waiting if row.id not in unready(before)]
    held_up = ctx.config.queue in BY_WIDTH or holding_up(ctx, before) is not None
    due = None if held_up else first_that_may(ctx, before, others)
    if due is not None:
        yield f"{due.id} is not prefilled, as images of {sorted(before.without_images)} are lacking"


@of_step("SPY-ENC-2", _ENCODING)
@witness(lambda _, step: len(step.after.encoding) > 1)
@witness(lambda ctx, step: len(step.before.unencoded) > ctx.config.max_num_seqs)
def encoder_is_given_images(ctx: Context, step: Step) -> Iterator[str]:
    """A step gives the encoder the images of the first requests in the queue that it has not been
    given, of as many as there are slots; it encodes none itself, and none fails with it.
    """
    # Those of requests that leave are not awaited any more.
    before, after = step.before, step.after
    lacking = [row.id for row in before.waiting if row.id in before.unencoded]
    given, present = {*lacking[: ctx.config.max_num_seqs]}, ids(after.present)
    if after.unencoded != (before.unencoded - given) & present:
        yield f"not given are {sorted(after.unencoded)}, due are {sorted(given)}"
    if after.encoding != (before.encoding | given) & present:
        yield f"being encoded {sorted(after.encoding)}, due are {sorted(given)}"
    if after.untold != before.untold:
        yield f"not told are {sorted(after.untold)}, before {sorted(before.untold)}"


@always("SPY-ENC-3", _ENCODING)
@witness(lambda _, step: step.before.encoding and step.before.unencoded)
def images_are_encoded_once(ctx: Context, state: State) -> Iterator[str]:
    """The encoder has not been given the images of a request, or encodes them, or is done; until
    then the request waits, and no token of it is computed.
    """
    if both := state.unencoded & state.encoding:
        yield f"{sorted(both)} given and not given"
    waiting = {row.id: row for row in state.waiting}
    for id_ in sorted(state.without_images):
        if id_ not in waiting or waiting[id_].computed or waiting[id_].generated:
            yield f"{id_} does not wait for its images"
        if not ctx.requests[id_].has_images:
            yield f"{id_} has no images"


@always("SPY-ENC-4", _ENCODING)
@witness(lambda ctx, step: any(ctx.requests[id_].has_images for id_ in step.before.aborted))
def clients_are_told_of_failures(_ctx: Context, state: State) -> Iterator[str]:
    """A request whose images cannot be encoded leaves, and its client is told."""
    if state.untold:
        yield f"the clients of {sorted(state.untold)} wait for requests that have left"
