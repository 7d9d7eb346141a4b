"""Device errors: constraints that a simulated device checks, and failures of the hardware.

On some of these faults hardware would stop; on the others it would continue and sample wrong
tokens. The simulated device refuses all of them before it writes anything.

Where the text leaves a choice:

- The model length bounds real positions and not tkv. A table consists of whole blocks, so if the
  model length ends inside a block, the tkv of a padded row may exceed it (rule SPY-LEN-1).
- The volume of a prefill counts the real tokens up to the chunk's end. Left padding is not cached,
  and the tkv of a prefill in a trace is the prompt's length.
- A prefill writes left and right padding to block 0. A slot without a token counts as not written.
- A slot may be written again with the same token, because a step whose result was lost is run
  again. The first slot may be written with any token: the block then has new contents.
- The device does not see requests outside the batch. If a block of theirs gets new contents, their
  next read of it is refused.

For the paged device:

- A row may read tokens that another row writes in the same step: every layer of a model writes the
  keys and values of all tokens before it attends to any.
- The last `num_speculative_tokens` slots of a block may be overwritten with other tokens, because
  they may hold rejected drafts. A write discards the tokens behind it in the block.
- An empty block may be copied: a table has blocks for tokens that are not computed yet. The target
  is then empty, too, and a read of it is refused.
- The text does not say in which order a step swaps; vLLM 0.9.2 swaps in, then out, then copies.
- Equal pairs count as one transfer: two sequences that share a block both name it.
- Where rows share a block before it is written, they may write the same token to one slot.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum

import numpy as np
from attrs import define, field

from engine.core.tensors import Flags, Tensor
from spec.core.requests import MOST_TOKEN_ID


class Constraint(Enum):
    """A constraint on the tensors of a step: `str` is its name, `sentence` states it."""

    @property
    def sentence(self) -> str:
        """The constraint as a sentence about legal steps."""
        return str(self.value)

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")

    # The tensors themselves.
    DTYPE = "Every tensor holds 64-bit integers."
    SHAPE = "Every tensor has the shape that its place in the step asks for."
    TOKEN_ID = "Token ids are 0 to 2**31 - 1, and 0 where there is padding."
    BLOCK_ID = "Blocks are those of the pool, and block 0 for padding."
    POSITION = "A real position is the padded one less the left padding; 0 in padding."
    MODEL_LENGTH = "A real position is less than the model's context length."
    # The batch (spyre, "Key concepts" and "Padding").
    BATCH_SIZE = "A prefill has one row, a decode at most max_num_seqs."
    VOLUME = "Batch size times the largest tkv does not exceed the limit."
    # Layout (spyre, "Padding", "Prefill padding" and "Decode padding").
    LEFT_PADDING = "Left padding is whole blocks, fewer than the row or the chunk has."
    EXCESS_PADDING = "Some row of a decode batch has no left padding."
    PADDING_BLOCKS = "A block table has block 0 in its left padding and nowhere else."
    EMPTY_LAST_BLOCK = "The last block of a table holds at least one real token."
    RECTANGLE = "The tkv of all rows of a decode batch lie in the table's last block."
    CHUNK = "A prefill step is a whole chunk, filled to the right unless it is the last."
    # Writes (spyre, "Boundary chunk"; vllm-v1, "KV cache manager").
    WRITE_OUTSIDE = "A token is written to the block that the row's table has for it."
    WRITE_OFFSET = "A token is written to the slot of its padded position in its block."
    WRITE_SHARED = "A block that is written stands once in all tables of the batch."
    WRITE_GAP = "A block is begun at its first slot and goes on at the next one."
    OVERWRITE = "Inside a block, only the same token may be written a second time."
    # Reads: what a row attends to was written for it, or for equal tokens (spyre, "Padding").
    READ_UNWRITTEN = "A row attends only to slots that were written."
    READ_POSITION = "A row finds every block written for the positions that it expects."
    READ_CONTENT = "A block is read only behind the tokens that it was written behind."
    # A paged batch (nano-vllm, chapter 9; vllm-v1, "The Fundamental Insight").
    BATCH_LIMIT = "A batch has no more rows and tokens than there is room for."
    CAPTURED_SIZE = "A captured step has one token a row, and a captured size holds it."
    LENGTHS = "A context is what is cached and what is computed, row after row."
    EMPTY_QUERY = "Every row computes one token or more."
    SAMPLED = "Tokens are sampled behind tokens of the batch, in their order."
    # Its block tables and slots (nano-vllm, "Block Tables").
    TABLE = "A table has blocks of the pool, and -1 behind them."
    TABLE_LENGTH = "A table has a block for every token of the context."
    SLOT = "A slot lies in a block of the pool."
    NEXT_POSITION = "The positions of a row go on where its cached tokens end."
    WRITE_HELD = "A block that is written stands in another table only to be read whole."
    REWRITE = "Inside a block, only drafts may be written over with other tokens."
    # Its transfers (vllm-v0, "Swapping Functions" and "Forking Sequences").
    TRANSFER_BLOCK = "Source and target of a transfer are blocks of their pools."
    TRANSFER_TARGET = "A block is not copied to from two others at once."
    TRANSFER_READ = "A block is not copied to while it is copied from."
    SWAP_SOURCE = "A block that is swapped in was swapped out before."
    SWAP_ORDER = "Swaps out and swaps in of one step have no block in common."


@define(slots=False)
class ConstraintError(Exception):
    """The tensors of a step break a constraint; the code that built them is wrong.

    `constraint`: the broken constraint. `numbers`: the place, the value there and the allowed
    value, by name. The step was not executed: the KV cache is unchanged.
    """

    constraint: Constraint
    numbers: Mapping[str, int | str] = field(factory=dict)

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {value}" for name, value in self.numbers.items())
        return f"the device refuses: {self.constraint}: {self.constraint.sentence} Found: {numbers}"


class Failure(StrEnum):
    """Failures of the hardware with correct inputs."""

    STEP_FAILED = "step failed"  # nothing was computed or written
    RESULT_LOST = "result lost"  # all was computed and written, but the tokens were lost
    STOPPED = "stopped"  # the device computes nothing from now on, its KV cache is lost


@define(slots=False)
class DeviceFailedError(Exception):
    """The hardware failed; `kind` says whether the step was executed."""

    kind: Failure

    def __str__(self) -> str:
        return f"the device failed: {self.kind}"


# --- checks for every device --------------------------------------------------------------------


def refuse_if(wrong: bool, constraint: Constraint, **numbers: int | str) -> None:
    """Refuse the step if `wrong`.

    Raises:
        ConstraintError: with `numbers`: the values and the allowed values, by name.
    """
    if wrong:
        raise ConstraintError(constraint, numbers)


def refuse_where(
    wrong: Flags, constraint: Constraint, axes: tuple[str, ...] = ("row",), **numbers: Tensor | int
) -> None:
    """Refuse the step if any element of `wrong` is set.

    `axes`: names of the axes of `wrong`. `numbers`: tensors that broadcast to its shape.

    Raises:
        ConstraintError: with the first index that is wrong and the numbers there.
    """
    if not np.count_nonzero(wrong):  # the same as `any`, in half the time
        return
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    values = {
        name: int(np.broadcast_to(number, wrong.shape)[place]) for name, number in numbers.items()
    }
    raise ConstraintError(constraint, dict(zip(axes, place, strict=True)) | values)


def check_form(inputs: object, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check dtype and shape: the attributes `shapes` of `inputs` are 64-bit integers.

    Raises:
        ConstraintError: for the first tensor with another dtype or shape.
    """
    for name, shape in shapes.items():
        tensor: Tensor = getattr(inputs, name)
        if tensor.dtype != np.int64:
            raise ConstraintError(Constraint.DTYPE, {"tensor": name, "dtype": str(tensor.dtype)})
        if tensor.shape != shape:
            numbers = {"tensor": name, "shape": str(tensor.shape), "expected": str(shape)}
            raise ConstraintError(Constraint.SHAPE, numbers)


def check_tokens(axis: str, token_ids: Tensor, is_real: Flags | bool) -> None:
    """Check that token ids are in range, and 0 in padding.

    Raises:
        ConstraintError: for the first token id that is not.
    """
    most = MOST_TOKEN_ID if is_real is True else np.where(is_real, MOST_TOKEN_ID, 0)
    wrong = (token_ids < 0) | (token_ids > most)
    refuse_where(wrong, Constraint.TOKEN_ID, (axis,), token_id=token_ids, largest=most)
