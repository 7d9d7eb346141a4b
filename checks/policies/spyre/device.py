"""The tensors that a release made for its device, given to ours.

The simulated device keeps a KV cache, refuses what the hardware cannot do, and computes tokens from
what the tensors point at. A block read before it was written, another request's slot or a missing
mask is refused or changes the tokens, whatever the scheduler says of itself.
"""

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
    """A device for the steps of one episode, in their order; `steps`: that it did."""

    ctx: Context
    steps: int = 0
    _device: SpyreDevice = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._device = SpyreDevice(self.ctx.config)

    def wrong(self, _step: Step, record: Json) -> tuple[str, str] | None:
        """What is wrong with the step's tensors, if the record has them: a name and a sentence."""
        if "tensors" not in record:
            return None
        self.steps += 1
        rows, given = inputs_of(self.ctx, record)
        try:
            if isinstance(given, DecodeInput):
                sampled = self._device.decode(given)
            else:
                sampled = self._device.prefill(given)
        except ConstraintError as error:
            return f"device: {error.constraint}", str(error)
        return self._wrong_token(dict(zip(rows, sampled.tolist(), strict=False)), record)

    def _wrong_token(self, sampled: dict[str, int], record: Json) -> tuple[str, str] | None:
        """A request without prescribed tokens samples what the device computes."""
        for request_id, tokens in record["outputs"].items():
            found = sampled.get(request_id)
            if self.ctx.requests[request_id].output is None and found != tokens[0]:
                says = f"the device samples {found} for {request_id}, served alone {tokens[0]}"
                return "device: token", says
        return None


def inputs_of(ctx: Context, record: Json) -> tuple[list[str], DecodeInput | PrefillInput]:
    """The requests of the rows, and what the device was given.

    Raises:
        RecordError: the record's tensors are none of such a step.
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

    The release lets right padding be written behind the last token of its own block, which is not
    read before the request's next tokens take its place; our device wants it in block 0.
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
