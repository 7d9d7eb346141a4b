"""Pictures of nano-vLLM: two queues, and the tokens of a prefill step beside their budget."""

from collections.abc import Iterator

from checks.export.pages.picture import Meter, Picture, scheduled_tokens
from spec.core.records import PREFILL
from spec.nano_vllm.records import Context, Step


def meters(ctx: Context, step: Step) -> Iterator[Meter]:
    """The tokens of a prefill step with their budget; the sequences of the batch."""
    config = ctx.config
    limit = config.max_num_batched_tokens if step.kind == PREFILL else None
    yield scheduled_tokens(step, limit)
    yield Meter(name="batch", value=len(step.batch), limit=config.max_num_seqs, unit="requests")


PICTURE = Picture(
    numbers=("prefill_len", "computed", "generated", "hit_blocks"),
    queues=("waiting", "running"),
    meters=meters,
)
