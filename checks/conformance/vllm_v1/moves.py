"""What moved in a step of vLLM V1, as the states around it show."""

from collections.abc import Iterator

from spec.policies.vllm_v1_records import Step
from spec.records import Event

VISIBLE = (
    *("preempt", "catch_up", "prefix_hit", "allocate", "admit", "rollback", "finish"),
    *("load", "promote"),  # no driver has a connector: there are none
)


def seen_events(step: Step, block_size: int) -> tuple[Event, ...]:
    """Victims, then what each request was given, then verdicts on drafts, and ends."""
    return (
        *(Event("preempt", one, "") for one in step.preempted),
        *_given(step, block_size),
        *(
            Event("rollback", one, "", count, step.accepted.get(one, 0))
            for one, count in step.drafts.items()
        ),
        *(Event("finish", one, "") for one in step.finished),
    )


def _given(step: Step, block_size: int) -> Iterator[Event]:
    """Blocks and tokens; a newcomer's cached blocks are those that its computed tokens fill."""
    held = {row.id: row.blocks for row in step.before.running}
    for row in step.planned.running:
        tokens, admitted = step.scheduled.get(row.id, 0), row.id in step.admitted
        old = row.blocks[: row.computed // block_size] if admitted else held[row.id]
        if admitted and old:
            yield Event("prefix_hit", row.id, "", (), old)
        if row.blocks[len(old) :]:
            yield Event("allocate", row.id, "", held.get(row.id, ()), row.blocks[len(old) :])
        if tokens:
            yield Event("admit" if admitted else "catch_up", row.id, "", row.computed, tokens)
