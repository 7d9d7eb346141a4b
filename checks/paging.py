"""The paged device next to a scheduler: its steps as tensors, and the tokens that come of them.

A step tells what was computed of whom, and where it lies. From that the tensors are built that a
model runner would build, the paged device does the step, and every token that it samples is held
against the request served alone. Source: nano-vllm, chapter 9; vllm-v1, "Prefix Caching",
"Speculative Decoding" and "Memory Management & Preemption".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from attrs import define, field, frozen

from engine.device.inputs import Tensor
from engine.device.paged.device import PagedDevice
from engine.device.paged.inputs import NO_BLOCK, PagedInput, PagedShape
from engine.tokens import prompt_tokens
from spec.padding import block_count
from spec.policies import vllm_v1_records as v1
from spec.policies.nano_vllm import (
    NanoVllmConfig,
    NanoVllmContext,
    block_index,
    captured_sizes,
    slot,
)
from spec.policies.vllm_v1 import VllmV1Config
from spec.records import DECODE, Step
from spec.requests import VOCABULARY, Request, attended_sum, sampled_token

KEPT = 10  # wrong tokens that are remembered; the first ones tell


@frozen(eq=False)
class Row:
    """What a step computes of one request; lengths in tokens.

    `tokens`: the ids to compute, drafts included. `cached`: tokens before them. `samples`: behind
    how many of the last tokens one is sampled.
    """

    tokens: Tensor
    cached: int
    blocks: Sequence[int]
    samples: int

    @property
    def context(self) -> int:
        """Tokens that the row attends to."""
        return self.cached + len(self.tokens)

    @property
    def sampled_from(self) -> int:
        """Position of the first token that it samples, from 0 in the request."""
        return self.context - self.samples + 1


@frozen(eq=False)
class Load:
    """Keys and values that come from elsewhere: of the request's `tokens` those from `start`."""

    tokens: Tensor
    start: int
    blocks: Sequence[int]


@frozen
class Work:
    """What a step asks of the device: rows by request, after the loads."""

    rows: Mapping[str, Row]
    loads: Sequence[Load] = ()
    is_captured: bool = False


def paged_input(rows: Sequence[Row], block_size: int, is_captured: bool = False) -> PagedInput:
    """The tensors of a batch of rows.

    Whoever handed out too few blocks is refused by the device: a slot is worked out all the same.
    """
    counts = np.array([len(row.tokens) for row in rows])
    cached = np.array([row.cached for row in rows])
    ends = counts.cumsum()
    of = np.repeat(np.arange(len(rows)), counts)
    places = np.arange(ends[-1])
    positions = places + (cached - ends + counts)[of]
    table = _filled_up([row.blocks for row in rows])
    last_column = np.array([len(row.blocks) - 1 for row in rows])
    columns = np.minimum(block_index(positions, block_size), last_column[of])
    unsampled = ends - np.array([row.samples for row in rows])
    return PagedInput(
        token_ids=np.concatenate([row.tokens for row in rows]),
        positions=positions,
        slot_mapping=slot(table[of, columns], positions, block_size),
        cu_seqlens_q=np.concatenate([[0], ends]),
        cached_lens=cached,
        context_lens=cached + counts,
        block_tables=table,
        logits_indices=np.flatnonzero(places >= unsampled[of]),
        is_captured=np.array([int(is_captured)]),
    )


def _filled_up(tables: Sequence[Sequence[int]]) -> Tensor:
    """The tables [rows, width], the shorter ones with -1 behind their blocks."""
    width = max(len(table) for table in tables)
    filled = np.full((len(tables), width), NO_BLOCK, np.int64)
    for row, table in enumerate(tables):
        filled[row, : len(table)] = table
    return filled


def request_tokens(request: Request, start: int, end: int) -> Tensor:
    """Tokens `start` to `end` (not included) of a request, prompt and then output."""
    first, last = (max(place - request.prompt_len, 0) for place in (start, end))
    outputs = np.array([request.output_token(index) for index in range(first, last)], np.int64)
    return np.concatenate([prompt_tokens(request.prompt, start, end), outputs])


def model_token(request: Request, index: int) -> int:
    """What the model samples as the `index`-th token of the request served alone.

    Where the workload prescribes a token, the request gets that one instead.
    """
    if request.output is None or index >= len(request.output):
        return request.output_token(index)
    return sampled_token(attended_sum([*request.prompt.tokens(), *request.output[:index]]))


# --- nano-vLLM ------------------------------------------------------------------------------------


def nano_vllm_shape(config: NanoVllmConfig) -> PagedShape:
    """The device that a nano-vLLM scheduler of this configuration works for."""
    return PagedShape(
        block_size=config.block_size,
        first_block=0,
        num_blocks=config.pool_blocks,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        # The budget is that of a prefill step; a decode has a token for every sequence.
        max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_num_seqs),
        captured_sizes=captured_sizes(config.max_num_seqs, config.graph_sizes),
    )


def nano_vllm_work(ctx: NanoVllmContext, step: Step) -> Work:
    """A prefill or a decode: each row computes what it is behind, and samples one token."""
    rows = {}
    for row in step.batch:
        cached = row.computed - step.scheduled[row.id]
        tokens = request_tokens(ctx.requests[row.id], cached, row.computed)
        rows[row.id] = Row(tokens, cached, row.blocks, samples=1)
    return Work(rows, is_captured=step.kind == DECODE)


# --- vLLM V1 --------------------------------------------------------------------------------------


def vllm_v1_shape(config: VllmV1Config) -> PagedShape:
    """The device that a vLLM V1 scheduler of this configuration works for."""
    return PagedShape(
        block_size=config.block_size,
        first_block=1,
        num_blocks=config.pool_blocks,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.token_budget,
        num_speculative_tokens=config.num_speculative_tokens,
    )


def vllm_v1_work(ctx: v1.Context, step: v1.Step) -> Work:
    """Everybody catches up; loads that ended since the step before come first.

    Who lacks what a connector should have brought computes all of it again, so that nothing which
    is computed in this step counts: it is left out, and its blocks are as good as never written.
    """
    planned = {one.id: one for one in step.planned.running}
    computing = [planned[one] for one in step.scheduled if one not in step.failed_loads]
    loads = _ended_loads(ctx, step)
    for one in computing:
        if one.id in step.external:
            loads.append(_load(ctx, one, one.computed - step.external[one.id]))
    rows = {one.id: _vllm_v1_row(ctx.requests[one.id], step, one) for one in computing}
    return Work(rows, loads)


def _vllm_v1_row(request: Request, step: v1.Step, one: v1.Sequence) -> Row:
    """The row with its drafts: those that are accepted are its next tokens, the others are not."""
    end = one.computed + step.scheduled[one.id]
    drafts = step.drafts.get(one.id, 0)
    tokens = request_tokens(request, one.computed, end)
    rejected = len(tokens) - drafts + step.accepted.get(one.id, 0)
    tokens[rejected:] = (tokens[rejected:] + 1) % VOCABULARY
    samples = drafts + 1 if end >= one.tokens else 0
    return Row(tokens, one.computed, one.blocks, samples)


def _ended_loads(ctx: v1.Context, step: v1.Step) -> list[Load]:
    """Asynchronous loads that are complete; what stood before them was cached here already."""
    promoted = {event.id for event in step.happened("promote")}
    cached = step.before.pool.keys
    return [
        _load(ctx, one, sum(block in cached for block in one.blocks) * ctx.config.block_size)
        for one in step.before.skipped
        if one.id in promoted and one.load is v1.Load.LOADED
    ]


def _load(ctx: v1.Context, one: v1.Sequence, start: int) -> Load:
    return Load(request_tokens(ctx.requests[one.id], 0, one.computed), start, one.blocks)


# --- side by side ---------------------------------------------------------------------------------


class Stepped(Protocol):
    """What is asked of a step, whoever took it."""

    @property
    def index(self) -> int:
        """Its number, from 0."""

    @property
    def outputs(self) -> Mapping[str, Sequence[int]]:
        """Tokens sampled, by request."""


StepT = TypeVar("StepT", bound=Stepped)


@frozen
class WrongToken:
    """A token that is not the one of the request served alone; `index` from 0 in its output.

    `by`: who has it wrong, the device or the scheduler. `found` is None where it has none.
    """

    step: int
    id: str
    index: int
    by: str
    found: int | None
    alone: int

    def __str__(self) -> str:
        told = "no token" if self.found is None else f"token {self.found}"
        place = f"step {self.step}: request {self.id}, output {self.index}"
        return f"{place}: {told} by the {self.by}, {self.alone} served alone"


@define
class PagedWatch(Generic[StepT]):
    """Does every step that it is shown on the paged device as well; `observe` them in order.

    `wrong`: the first few wrong tokens. `steps`, and the tokens that were computed, `loaded` and
    `sampled` in them, so that a run without a finding shows that there was something to find.
    """

    shape: PagedShape
    requests: Mapping[str, Request]
    work_of: Callable[[StepT], Work]
    wrong: list[WrongToken] = field(factory=list)
    steps: int = 0
    computed: int = 0
    loaded: int = 0
    sampled: int = 0
    device: PagedDevice = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.device = PagedDevice(self.shape)

    def observe(self, step: StepT) -> None:
        """Build the tensors, compute, compare.

        Requests that finish with the step must still be known: observe before they are forgotten.

        Raises:
            ConstraintError: the device refuses the step.
        """
        work = self.work_of(step)
        for load in work.loads:
            self._load(load)
        samples: list[int] = []
        if work.rows:
            rows = [*work.rows.values()]
            given = paged_input(rows, self.shape.block_size, work.is_captured)
            samples = self.device.compute(given).tolist()
            self.computed += len(given.token_ids)
        self.steps += 1
        for request_id, row in work.rows.items():
            own, samples = samples[: row.samples], samples[row.samples :]
            self._compare(step, request_id, row, own)

    def _load(self, load: Load) -> None:
        """What another instance has computed arrives in the request's blocks."""
        end, size = len(load.tokens), self.shape.block_size
        columns = np.arange(load.start // size, block_count(end, size))
        whole = Row(load.tokens, 0, range(block_count(end, size)), samples=0)
        other = PagedDevice(_shape_of_one(size, end))
        other.compute(paged_input([whole], size))
        self.device.load(np.take(load.blocks, columns), other, columns)
        self.loaded += end - load.start

    def _compare(self, step: StepT, request_id: str, row: Row, samples: Sequence[int]) -> None:
        """Each output token of the step, by the device and by the scheduler, with that alone."""
        request, outputs = self.requests[request_id], step.outputs.get(request_id, ())
        first = row.sampled_from - request.prompt_len
        for place, output in enumerate(outputs):
            index = first + place
            found = samples[place] if place < len(samples) else None
            self._hold(step, request_id, index, "device", found, model_token(request, index))
            self._hold(step, request_id, index, "scheduler", output, request.output_token(index))
        self.sampled += len(outputs)

    def _hold(
        self, step: StepT, request_id: str, index: int, by: str, found: int | None, alone: int
    ) -> None:
        if found != alone and len(self.wrong) < KEPT:
            self.wrong.append(WrongToken(step.index, request_id, index, by, found, alone))


def _shape_of_one(block_size: int, tokens: int) -> PagedShape:
    """A device for one request of so many tokens."""
    return PagedShape(
        block_size=block_size,
        first_block=0,
        num_blocks=block_count(tokens, block_size),
        max_model_len=tokens,
        max_num_seqs=1,
        max_num_batched_tokens=tokens,
    )


def nano_vllm_watch(ctx: NanoVllmContext) -> PagedWatch[Step]:
    """The device next to a nano-vLLM scheduler."""
    return PagedWatch(
        nano_vllm_shape(ctx.config), ctx.requests, lambda step: nano_vllm_work(ctx, step)
    )


def vllm_v1_watch(ctx: v1.Context) -> PagedWatch[v1.Step]:
    """The device next to a vLLM V1 scheduler."""
    return PagedWatch(vllm_v1_shape(ctx.config), ctx.requests, lambda step: vllm_v1_work(ctx, step))
