"""Rules of requests whose output follows a grammar. Source: vLLM 0.28.0."""

from collections.abc import Iterator

from spec.vllm_v1.records import Context, Step
from spec.vllm_v1.rules.counting import wrongly_held_back
from spec.vllm_v1.rules.registry import code, of_step, witness

_GRAMMAR = code("structured output")


@of_step("V1-STR-1", _GRAMMAR, witness=lambda _, step: step.before.compiling and step.admitted)
def compiling_requests_wait(_ctx: Context, step: Step) -> Iterator[str]:
    """A request whose grammar is not ready is neither admitted nor loaded, and no step makes it
    ready.
    """
    # One that leaves needs none any more.
    yield from wrongly_held_back(step, "compiling")


@of_step("V1-STR-2", _GRAMMAR)
@witness(lambda ctx, step: any(ctx.requests[id_].grammar for id_ in step.scheduled))
def grammars_are_asked_where_tokens_are_sampled(ctx: Context, step: Step) -> Iterator[str]:
    """A grammar is asked for exactly those requests of the step that have one and whose tokens,
    awaited ones included, are all computed then: they sample.
    """
    # Also where the sampled token will be discarded. In the order in which tokens are handed out.
    due = []
    for row in step.planned.running:
        end = row.computed + step.scheduled.get(row.id, 0)
        samples = row.id in step.scheduled and end >= row.tokens + row.placeholders
        if samples and ctx.requests[row.id].grammar:
            due.append(row.id)
    if list(step.masked) != due:
        yield f"grammars of {list(step.masked)} are asked, expected {due}"
