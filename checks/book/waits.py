"""Tables of runs side by side: the work of each step, and the rule that keeps a request waiting."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from checks.book.source import bullets, sections, table
from checks.explore.exploring import sentence
from checks.export.examples import Example
from checks.export.policy import presentation_of
from checks.registry import claims_of
from spec.core.records import SomeStep

Served = tuple[Example, Sequence[SomeStep]]


def waits_table(runs: Sequence[Served]) -> str:
    """A column for each run, a row for each step, then the sentences of the named rules."""
    columns = ["step", *(example.title for example, _ in runs)]
    cells = [[_in_words(example, step) for step in steps] for example, steps in runs]
    rows = [
        (f'<span id="step-{index}">{index}</span>', *row)
        for index, row in enumerate(zip_longest(*cells, fillvalue="-"))
    ]
    named = {step.refusal for _, steps in runs for step in steps if step.refusal}
    rules = bullets(f"**{rule}:** {sentence(rule)}" for rule in sorted(named))
    return sections(table(columns, rows), rules)


def _in_words(example: Example, step: SomeStep) -> str:
    return "; ".join(_parts(example, step))


def _parts(example: Example, step: SomeStep) -> Iterator[str]:
    picture = presentation_of(example.config.policy).picture
    ctx = claims_of(example.config.policy).context_of(example.config, example.requests)
    yield f"{step.kind} {', '.join(step.scheduled)}".rstrip()
    for meter in picture.meters(ctx, step):
        if meter.limit is not None and meter.value > meter.limit:
            yield f"**{meter.name} {meter.value}, limit {meter.limit}**"
    if step.refusal:
        yield f"{picture.refused(ctx, step) or 'a request'} waits: {step.refusal}"
