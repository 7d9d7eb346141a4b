"""Faults of the encoder: what is encoded, what stays, what goes, and where tokens are cut."""

from typing import Any

from attrs import evolve

from reference.vllm_v1 import encoder_cache, step, transitions
from reference.vllm_v1.encoder_cache import Wanted
from spec.core.requests import Content
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, EncoderCache, Sequence, State
from spec.vllm_v1.releases import Release
from tests.checks.faults.patches import (
    Wrong,
    configured,
    kept,
    plus,
    result,
    with_config,
)
from tests.checks.faults.vllm_v1.table import fault

# --- what tokens ask for --------------------------------------------------------------------------

fault(encoder_cache, "want", of="encode", on="encoder", rules="V1-ENC-1, V1-ENC-5, V1-ENC-10")(
    result(new=()), "computed without being encoded"
)
fault(encoder_cache, "want", of="encode", on="encoder, budget", rules="guard V1-ENC-3")(
    lambda right, ctx, encodings, row, start, tokens, budget: right(
        ctx, encodings, row, start, tokens, budget + 1
    ),
    "a token more than the encoder's budget",
)


@fault(transitions, "encode", on="encoder, budget", rules="V1-ENC-3")
def budget_of_each_request(
    right: Wrong, ctx: Context, plan: Any, row: Sequence, wanted: Wanted
) -> Any:
    """Each request has the encoder's whole budget."""
    done = right(ctx, plan, row, wanted)
    return evolve(done, encoder_budget=ctx.config.encoder_budget)


fault(encoder_cache, "_with_room", of="encode", on="encoder", rules="guard V1-ENC-4")(
    lambda right, ctx, wanted, contents: right(
        with_config(ctx, encoder_cache_size=plus(1)), wanted, contents
    ),
    "a token more than the capacity",
)
fault(VllmV1Config, "encoder_capacity", of="encode", on="encoder", rules="V1-ENC-4")(
    lambda right, config: right(config) + 1, "the capacity is one more"
)
fault(VllmV1Config, "encoder_capacity", of="encode", on="encoder, evicted", rules="V1-ENC-8")(
    lambda right, config: right(config) - 1, "the capacity is one less"
)
fault(VllmV1Config, "encoder_budget", of="encode", on="encoder, budget", rules="V1-ENC-8")(
    lambda right, config: right(config) - 2, "the encoder's budget is two less"
)


@fault(encoder_cache, "_with_room", of="encode", on="encoder, evicted", rules="V1-ENC-7")
def newest_goes(_right: Wrong, ctx: Context, wanted: Wanted, contents: Any) -> Wanted | None:
    """The content that may go for the shortest time goes first."""
    turned = evolve(wanted, cache=evolve(wanted.cache, evictable=wanted.cache.evictable[::-1]))
    done: Wanted | None = _right(ctx, turned, contents)
    return done and evolve(done, cache=evolve(done.cache, evictable=done.cache.evictable[::-1]))


@fault(encoder_cache, "_with_room", of="encode", on="encoder, evicted", rules="V1-ENC-7")
def all_go(right: Wrong, ctx: Context, wanted: Wanted, contents: Any) -> Wanted | None:
    """All that may go goes, also where there is room."""
    done: Wanted | None = right(ctx, wanted, contents)
    if done is None:
        return None
    gone = done.cache.evictable
    return evolve(done, cache=evolve(done.cache, evictable=()), evicted=(*done.evicted, *gone))


fault(encoder_cache, "_is_split", of="encode", on="encoder, whole, 0.33.0", rules="V1-ENC-9")(
    lambda _right, *_given: False, "an image is split"
)
fault(encoder_cache, "want", of="encode", on="encoder, whole, 0.33.0", rules="V1-ENC-9")(
    configured(release=Release.V0_28_0), "an image at which a step begins is split"
)
fault(encoder_cache, "_cut", of="encode", on="encoder", rules="V1-PRG-3")(
    lambda right, wanted, span, start, ahead: evolve(right(wanted, span, start, ahead), tokens=0),
    "not a token of what stands before an image",
)

fault(
    VllmV1Config,
    "tokens_read_ahead",
    of="encode",
    on="encoder, read ahead",
    rules="V1-ENC-1, V1-ENC-10, V1-ENC-11",
)(lambda _right, _config: 0, "no image is encoded for the token that a drafter reads")
fault(encoder_cache, "_cut", of="encode", on="encoder, read ahead", rules="V1-ENC-1, V1-ENC-10")(
    lambda right, wanted, span, start, _ahead: right(wanted, span, start, 0),
    "a step stops in front of an image whose first token a drafter reads",
)
fault(encoder_cache, "passed", of="encode", on="encoder, read ahead", rules="V1-ENC-11")(
    configured(release=Release.V0_33_0), "passed before its drafter has"
)

# --- what stays -----------------------------------------------------------------------------------


@fault(
    encoder_cache,
    "taken",
    of="look_for_encodings",
    on="encoder",
    rules="V1-ENC-1, V1-ENC-5, V1-ENC-10",
)
def found_and_not_referred_to(
    right: Wrong, encodings: EncoderCache, request_id: str, index: int, content: Content
) -> EncoderCache:
    """Only what is encoded for a request itself is kept for it."""
    if content in encodings.contents:
        return encodings
    done: EncoderCache = right(encodings, request_id, index, content)
    return done


fault(encoder_cache, "given_back", of="leave", on="encoder", rules="V1-ENC-6, V1-ENC-11")(
    kept("encoder"), "one that leaves still refers to encodings"
)
fault(transitions, "abort", on="encoder, repeated, 0.33.0", rules="V1-ENC-6, V1-LIF-3")(
    kept("encoder"), "one that leaves between two steps still refers to encodings"
)
fault(encoder_cache, "passed", of="encode", on="encoder", rules="V1-ENC-11")(
    kept("encoder"), "what is computed is kept until its request leaves"
)
fault(encoder_cache, "passed", of="encode", on="in flight, encoder", rules="V1-ENC-11")(
    lambda right, ctx, state, request_id: _without_placeholders(right, ctx, state, request_id),
    "what drafts in flight may have computed is passed",
)
fault(
    encoder_cache,
    "encoded",
    of="encode",
    on="encoder, repeated, 0.33.0",
    rules="V1-ENC-5, V1-ENC-10",
)(
    lambda right, ctx, wanted, row: right(ctx, evolve(wanted, repeated=()), row),
    "the second span of an image does not refer to it",
)
fault(
    encoder_cache,
    "_given_back",
    of="encode",
    on="encoder, repeated, 0.33.0",
    rules="V1-ENC-5, V1-ENC-11",
)(configured(release=Release.V0_28_0), "let go when its first span is computed")


def _without_placeholders(right: Wrong, ctx: Context, state: State, request_id: str) -> State:
    bare = tuple(evolve(row, placeholders=0) for row in state.running)
    done: State = right(ctx, evolve(state, running=bare), request_id)
    return evolve(state, encoder=done.encoder)


# --- who waits ------------------------------------------------------------------------------------


@fault(step, "_consider", of="admit", on="encoder, evicted", rules="V1-ENC-6, V1-ENC-10")
def refused_and_keeps_encodings(right: Wrong, ctx: Context, plan: Any, row: Sequence) -> Any:
    """A waiting request that is refused for blocks keeps what it has taken (vLLM #31857)."""
    done = right(ctx, plan, row)
    if done.refusal != "V1-KV-1":
        return done
    wanted = transitions.look_for_encodings(ctx, plan, row, 0, row.tokens)[0]
    return evolve(done, state=evolve(done.state, encoder=wanted.state.encoder))


fault(step, "_not_encoded", of="pass_over", on="encoder, 0.33.0", rules="V1-PRG-3")(
    configured(release=Release.V0_28_0), "none is looked at behind one that lacks an encoding"
)
fault(step, "_not_encoded", of="admit", on="encoder", rules="V1-ORD-2")(
    configured(release=Release.V0_33_0), "one that lacks an encoding is overtaken"
)
fault(transitions, "preempt", on="encoder, priority, 0.33.0", rules="V1-ENC-6, V1-ENC-10")(
    lambda right, ctx, plan, victim: _with_references(right, ctx, plan, victim),
    "a victim still refers to its encodings",
)


def _with_references(right: Wrong, ctx: Context, plan: Any, victim: Sequence) -> Any:
    done = right(ctx, plan, victim)
    return evolve(done, state=evolve(done.state, encoder=plan.state.encoder))


fault(step, "scheduler_step", of="encode", on="encoder", rules="V1-ENC-7")(
    result(evicted=()), "evicted and not reported"
)
