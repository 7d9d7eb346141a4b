"""Known differences of vLLM V1, rows of the table in `checks.releases.known`."""

from collections.abc import Iterator

from checks.harness.difference import Evidence, KnownDifference
from checks.harness.system import Action
from spec.vllm_v1.config import Scheduling, VllmV1Config
from spec.vllm_v1.records import Step

Actions = tuple[Action, ...]
Steps = tuple[Step, ...]

# --- padding that a threshold cuts, rolled back as if it had not --------------------------------


def _cut_padding(config: VllmV1Config, step: Step) -> Iterator[str]:
    """Newcomers of one token next to decodes only, whose padding is cut (V1-SPC-5)."""
    drafts, threshold = config.num_speculative_tokens, config.long_prefill_token_threshold
    if not 0 < threshold < 1 + drafts:
        return
    scheduled = [row for row in step.planned.running if row.id in step.scheduled]
    earlier = [row for row in scheduled if row.id not in step.admitted]
    if not earlier or any(row.prefilling for row in earlier):
        return
    for row in scheduled:
        if row.id in step.admitted and row.tokens - row.computed == 1:
            yield row.id


def _rolls_back_too_much(evidence: Evidence) -> bool:
    """It takes all of the padding for verified and rejected, though only a part was scheduled."""
    if evidence.index >= len(evidence.found):
        return False
    expected, found = evidence.expected[evidence.index], evidence.found[evidence.index]
    cut = list(_cut_padding(evidence.config, expected))
    drafts = evidence.config.num_speculative_tokens
    return bool(cut) and all(found.drafts.get(one) == drafts for one in cut)


def _cut_due(config: VllmV1Config, _actions: Actions, steps: Steps) -> int | None:
    return next((step.index for step in steps if any(_cut_padding(config, step))), None)


# --- who is stepped over comes back the other way round -----------------------------------------


def _returns_reversed(evidence: Evidence) -> bool:
    if evidence.index >= len(evidence.found) or not _steps_over(evidence.config):
        return False
    queues = (evidence.expected[evidence.index], evidence.found[evidence.index])
    due, found = ([one.id for one in step.planned.waiting] for step in queues)
    count = found.index(due[0]) + 1 if due and due[0] in found else 0
    return count > 1 and found == [*reversed(due[:count]), *due[count:]]


def _steps_over(config: VllmV1Config) -> bool:
    return not config.chunked_prefill and config.scheduling is Scheduling.FCFS


def _reversed_due(config: VllmV1Config, _actions: Actions, steps: Steps) -> int | None:
    """Where nothing ended the walk over the queue, all who still wait were stepped over."""
    if not _steps_over(config):
        return None
    walked = (step for step in steps if step.refusal is None and len(step.planned.waiting) > 1)
    return next((step.index for step in walked), None)


# --- who has lost a load is taken for decoding ---------------------------------------------------


def _behind_by_loss(step: Step) -> Iterator[str]:
    """Who was scheduled to its end in the step, and then set back for what did not come."""
    rows = {row.id: row for row in step.planned.running}
    for one in step.after.running:
        row = rows[one.id]
        if one.id in step.failed_loads and row.computed + step.scheduled[one.id] >= row.tokens:
            yield one.id


def _decodes_in_spite(evidence: Evidence) -> bool:
    """It is marked as if its prompt were computed, and so is given drafts to verify."""
    if evidence.index >= len(evidence.found):
        return False
    behind = list(_behind_by_loss(evidence.expected[evidence.index]))
    found = {row.id: row for row in evidence.found[evidence.index].after.running}
    drafts = evidence.config.num_speculative_tokens
    return bool(behind) and all(
        one in found and not found[one].prefilling and found[one].drafts == drafts for one in behind
    )


def _loss_due(_config: VllmV1Config, _actions: Actions, steps: Steps) -> int | None:
    return next((step.index for step in steps if any(_behind_by_loss(step))), None)


KNOWN_DIFFERENCES = (
    KnownDifference(
        "VLM-1",
        "vllm-v1",
        ("vLLM 0.28.0",),
        "where a threshold cuts the padding of a newcomer, all of it is rolled back: fewer tokens"
        " than none may count as computed",
        "the drafts that it was padded with are all rejected, also those that were not scheduled",
        _rolls_back_too_much,
        _cut_due,
    ),
    KnownDifference(
        "VLM-2",
        "vllm-v1",
        ("vLLM 0.11.2",),
        "without chunked prefill, requests that are stepped over come back in reverse order",
        "each is put in front of those before it, and then all in front of the queue as they are",
        _returns_reversed,
        _reversed_due,
    ),
    KnownDifference(
        "VLM-3",
        "vllm-v1",
        ("vLLM 0.28.0",),
        "who loses external keys and values within a step is given drafts like one that decodes",
        "that its prompt is computed is noted before the connector tells what is missing",
        _decodes_in_spite,
        _loss_due,
    ),
)
