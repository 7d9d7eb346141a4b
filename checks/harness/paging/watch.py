"""Token-by-token comparison of a scheduler with the paged device and with serving alone."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np
from attrs import define, field, frozen

from checks.harness.paging.rows import Load, PagedWork, model_token
from engine.paged.device import PagedDevice
from engine.paged.inputs import PagedShape
from engine.paged.rows import Row, paged_input
from spec.core.blocks import block_count
from spec.core.records import SomeContext, SomeStep
from spec.core.requests import Request

KEPT = 10  # wrong tokens that are stored

StepT = TypeVar("StepT", bound=SomeStep)


@frozen
class WrongToken:
    """A token that differs from that of the request served alone; `index`: in its output, from 0.

    `by`: the side with the wrong token, device or scheduler. `found`: None if it has no token.
    """

    step: int
    id: str
    index: int
    by: str
    found: int | None
    alone: int

    def __str__(self) -> str:
        token = "no token" if self.found is None else f"token {self.found}"
        place = f"step {self.step}: request {self.id}, output {self.index}"
        return f"{place}: {token} by the {self.by}, {self.alone} served alone"


@define
class PagedWatch(Generic[StepT]):
    """Repeats every observed step on the paged device and compares the tokens.

    `requests`: by id, or by sequence id if requests have several sequences. `device_work`: the
    device's work in a step. `read_outputs`: the tokens that a step delivered, by the same ids.

    `wrong`: the first KEPT wrong tokens. `steps`, `computed`, `loaded` and `sampled` count the
    steps and their tokens: a run without findings shows that it compared something.
    """

    shape: PagedShape
    requests: Mapping[str, Request]
    device_work: Callable[[StepT], PagedWork]
    read_outputs: Callable[[StepT], Mapping[str, Sequence[int]]] = attrgetter("outputs")
    wrong: list[WrongToken] = field(factory=list)
    steps: int = 0
    computed: int = 0
    loaded: int = 0
    sampled: int = 0
    device: PagedDevice = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.device = PagedDevice(self.shape)

    def observe(self, step: StepT) -> None:
        """Compute the step on the device and compare its tokens.

        Call it before the requests that finish in the step are removed from `requests`.

        Raises:
            ConstraintError: the device refuses the step.
        """
        work = self.device_work(step)
        if not work.is_known:
            return
        if work.transfers is not None:
            self.device.transfer(work.transfers)
        for load in work.loads:
            receive_load(self.device, load, self.shape.block_size)
            self.loaded += len(load.tokens) - load.start
        samples: list[int] = []
        if work.rows:
            rows = [*work.rows.values()]
            tensors = paged_input(rows, self.shape.block_size, work.is_captured)
            samples = self.device.compute(tensors).tolist()
            self.computed += len(tensors.token_ids)
        self.steps += 1
        for row_id, row in work.rows.items():
            own, samples = samples[: row.samples], samples[row.samples :]
            forks = (child for child, parent in work.forked.items() if parent == row_id)
            for request_id in (row_id, *forks):
                self._compare(step, request_id, row, own)

    def _compare(self, step: StepT, request_id: str, row: Row, samples: Sequence[int]) -> None:
        """Compare the due and delivered tokens of device and scheduler with serving alone."""
        request, outputs = self.requests[request_id], self.read_outputs(step).get(request_id, ())
        first = max(
            row.first_sampled_position - request.prompt_len, 0
        )  # a prompt may be cut before its end
        due = min(row.due, 1) if request_id in step.finished else row.due
        for place in range(max(len(outputs), due)):
            index = first + place
            computed, output = _at(samples, place), _at(outputs, place)
            self._check(step, request_id, index, "device", computed, model_token(request, index))
            self._check(step, request_id, index, "scheduler", output, request.output_token(index))
        self.sampled += len(outputs)

    def _check(
        self, step: StepT, request_id: str, index: int, by: str, found: int | None, alone: int
    ) -> None:
        if found != alone and len(self.wrong) < KEPT:
            self.wrong.append(WrongToken(step.index, request_id, index, by, found, alone))


def receive_load(device: PagedDevice, load: Load, block_size: int) -> None:
    """Copy keys and values that another instance computed into the request's blocks."""
    end = len(load.tokens)
    columns = np.arange(load.start // block_size, block_count(end, block_size))
    whole = Row(load.tokens, 0, range(block_count(end, block_size)), samples=0, due=0)
    other = PagedDevice(_shape_of_one(block_size, end))
    other.compute(paged_input([whole], block_size))
    device.load(np.take(load.blocks, columns), other, columns)


def paged_watch(
    ctx: SomeContext, work: Callable[[Any, StepT], PagedWork], **sizes: Any
) -> PagedWatch[StepT]:
    """The paged device beside a scheduler.

    `work`: the device's work in a step of this context. `sizes`: fields of the device's shape that
    not every configuration has.
    """
    config = ctx.config
    shape = PagedShape(
        block_size=config.block_size,
        num_blocks=config.pool_blocks,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        **sizes,
    )
    return PagedWatch(shape, ctx.requests, partial(work, ctx))


def _at(tokens: Sequence[int], place: int) -> int | None:
    return tokens[place] if place < len(tokens) else None


def _shape_of_one(block_size: int, tokens: int) -> PagedShape:
    """The shape of a device for one request of `tokens` tokens."""
    return PagedShape(
        block_size=block_size,
        first_block=0,
        num_blocks=block_count(tokens, block_size),
        max_model_len=tokens,
        max_num_seqs=1,
        max_num_batched_tokens=tokens,
    )
