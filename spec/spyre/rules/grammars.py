"""Rules of structured output: which requests wait until their grammars are ready.

Source: sendnn-inference 2.6.3, prefill candidates; which tokens a grammar allows is not modelled.
"""

from collections.abc import Iterator

from spec.core.judging import ids
from spec.spyre.records import Context, Step
from spec.spyre.rules.registry import of_step, release, witness

_CANDIDATES = release("prefill candidates")


@of_step("SPY-STR-1", _CANDIDATES)
@witness(lambda _, step: step.before.compiling)
def no_prefill_without_a_grammar(_ctx: Context, step: Step) -> Iterator[str]:
    """Until its grammar is ready a request counts as one that has not arrived: it is not prefilled,
    and keeps no other from its prefill.
    """
    # That it keeps no other from it is what the rules of priority say.
    if early := ids(step.happened("admit")) & step.before.compiling:
        yield f"{sorted(early)} admitted, the grammar is not ready"


@of_step("SPY-STR-2", _CANDIDATES)
@witness(lambda _, step: step.before.compiling)
def steps_make_no_grammar_ready(_ctx: Context, step: Step) -> Iterator[str]:
    """A step makes no grammar ready; that of a request that leaves is not awaited any more."""
    # After it no request has come since the last step.
    due = step.before.compiling & ids(step.after.present)
    if step.after.compiling != due:
        yield f"compiling {sorted(step.after.compiling)}, expected {sorted(due)}"
    if step.after.behind:
        yield f"{step.after.behind} have come since the step"
