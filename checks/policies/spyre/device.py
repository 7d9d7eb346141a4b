"""Run the tensors that a release made for its device on the simulated device.

The simulated device keeps a KV cache, refuses what the hardware cannot do, and computes tokens from
the cache entries that the tensors address. A block read before it is written, another request's
slot or a missing mask is refused or changes the tokens, independent of the scheduler's report.
"""

from copy import deepcopy
from math import inf
from typing import Any

import numpy as np
from attrs import define, field

from checks.harness.decoding import RecordError
from checks.harness.system import Json
from engine.core.faults import ConstraintError
from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, PrefillInput, SpyreDevice
from engine.workloads.checked import brief
from spec.core.records import DECODE
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step


@define
class TensorDevice:
    """A device for the steps of one episode, in their order; `steps`: how many it computed."""

    ctx: Context
    steps: int = 0
    _device: SpyreDevice = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._device = SpyreDevice(self.ctx.config)

    def wrong(self, _step: Step, record: Json) -> tuple[str, str] | None:
        """The name and sentence of an error in the step's tensors; None if there is none."""
        if "tensors" not in record:
            return None
        self.steps += 1
        rows, inputs = device_inputs(self.ctx, record)
        if missing := self._missing_block(inputs, record):
            return missing
        try:
            if isinstance(inputs, DecodeInput):
                sampled = self._device.decode(inputs)
            else:
                sampled = self._device.prefill(inputs)
        except ConstraintError as error:
            return f"device: {error.constraint}", str(error)
        return self._wrong_token(dict(zip(rows, sampled.tolist(), strict=False)), record)

    def saved(self) -> Any:
        """A copy of the device's memory."""
        return deepcopy(self._device)

    def restore(self, saved: Any) -> None:
        """Go on from a saved memory, which stays as it is."""
        self._device = deepcopy(saved)

    def _missing_block(
        self, inputs: DecodeInput | PrefillInput, record: Json
    ) -> tuple[str, str] | None:
        """The error if a step writes behind the blocks that the model's cache has."""
        there = record.get("blocks", {}).get("device", inf)
        last = int(inputs.slot_mapping.max()) // self.ctx.config.block_size
        if last <= there:
            return None
        return "device: no such block", f"writes block {last}, the model's cache has {there}"

    def _wrong_token(self, sampled: dict[str, int], record: Json) -> tuple[str, str] | None:
        """The error if a request without fixed output samples another token than the device."""
        for request_id, tokens in record["outputs"].items():
            token = sampled.get(request_id)
            if self.ctx.requests[request_id].output is None and token != tokens[0]:
                says = f"the device samples {token} for {request_id}, served alone {tokens[0]}"
                return "device: token", says
        return None


def device_inputs(ctx: Context, record: Json) -> tuple[list[str], DecodeInput | PrefillInput]:
    """The requests of the rows, and the inputs of the device.

    Raises:
        RecordError: the tensors do not fit the kind of the step.
    """
    tensors = record["tensors"]
    try:
        rows = [ctx.requests[row].id for row in tensors["rows"]]
        if record["kind"] == DECODE:
            return rows, decode_input(tensors)
        return rows, prefill_input(ctx.config, tensors)
    except (LookupError, OverflowError, ValueError):
        allowed = "the tensors of such a step, rows of equally many whole numbers"
        raise RecordError("tensors", brief(tensors), allowed) from None


def decode_input(tensors: Json) -> DecodeInput:
    """The tensors of a decode step."""
    names = ("token_ids", "positions", "slot_mapping", "block_table", "left_padding", "tkv")
    return DecodeInput(**{name: _tensor(tensors[name]) for name in names})


def prefill_input(config: SpyreConfig, tensors: Json) -> PrefillInput:
    """The tensors of a prefill step.

    The release writes right padding after the last token of the request's own block, where the next
    tokens overwrite it before it is read; the simulated device expects it in block 0.
    """
    columns = len(tensors["block_table"][0])
    chunk = columns // config.blocks_per_chunk - 1
    slots = _tensor(tensors["slot_mapping"])
    slots[tensors["length"][0] - chunk * config.chunk_size :] = 0
    names = ("token_ids", "positions", "block_table", "left_padding", "length", "is_last")
    return PrefillInput(
        slot_mapping=slots,
        chunk=_tensor([chunk]),
        **{name: _tensor(tensors[name]) for name in names},
    )


def _tensor(values: object) -> Tensor:
    return np.array(values, dtype=np.int64)
