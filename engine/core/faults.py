"""How a simulated device says no: what it refuses, and how it fails.

Hardware would stop at some of this and at the rest compute on and give wrong tokens. The simulated
device refuses both alike, before it writes anything.

Where the text leaves a choice:

- Model length bounds real positions and not tkv. A table is whole blocks, so with a model length
  inside a block a padded row may reach beyond it (rule SPY-LEN-1) while its tokens do not.
- The volume of a prefill is that of the real tokens up to the chunk's end, as its tkv in a trace is
  the prompt's length: nothing is cached for left padding.
- A prefill gives padding and right padding to block 0; a slot that holds no token counts as never
  written.
- A slot may be written again with the same token, because a step whose result was lost is run
  again. The first slot may be written with any token: it begins the block anew.
- Requests that hold a block and are not in the batch are not seen. If such a block is begun anew,
  they are refused when they next read it.

And for the paged device:

- A row may read what another row writes in the same step, as every layer of a model writes the keys
  and values of all tokens before it attends to any.
- The last slots of a block may be written over with other tokens, as many as there can be rejected
  drafts. Whatever stands behind the newest token is gone.
- A block that holds nothing may be copied, as tables have blocks for tokens that are still to come.
  Its target then holds nothing, too, and is refused when it is read.
- The text does not say which swaps a step begins with; vLLM 0.9.2 swaps in, then out, then copies.
- Equal pairs are one: sequences that share a block are swapped one after the other.
- Where blocks are shared before they are written, rows may write the same tokens to one slot.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum

import numpy as np
from attrs import define, field

from engine.core.tensors import Flags, Tensor
from spec.core.requests import MOST_TOKEN_ID


class Constraint(Enum):
    """Something that a device refuses: `str` is its name, `sentence` what a legal step is like."""

    @property
    def sentence(self) -> str:
        """What every step must keep to."""
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
    """The tensors ask for what the hardware cannot do: an error of whatever built them.

    `constraint` names what was broken, `numbers` where, what was found and what is allowed. The
    step was not done: the cache is as it was before.
    """

    constraint: Constraint
    numbers: Mapping[str, int | str] = field(factory=dict)

    def __str__(self) -> str:
        found = ", ".join(f"{name} {value}" for name, value in self.numbers.items())
        return f"the device refuses: {self.constraint}: {self.constraint.sentence} Found: {found}"


class Failure(StrEnum):
    """How a device can fail through no fault of its inputs."""

    STEP_FAILED = "step failed"  # nothing was computed or written
    RESULT_LOST = "result lost"  # all was computed and written, the tokens did not arrive
    STOPPED = "stopped"  # nothing is computed from now on, the cache is lost


@define(slots=False)
class DeviceFailedError(Exception):
    """The hardware failed; `kind` says what is left of the step."""

    kind: Failure

    def __str__(self) -> str:
        return f"the device failed: {self.kind}"


# --- refusals that every device needs -----------------------------------------------------------


def refuse_if(wrong: bool, constraint: Constraint, **numbers: int | str) -> None:
    """Refuse a step that is wrong as a whole.

    Raises:
        ConstraintError: with `numbers`, what was found and what is allowed.
    """
    if wrong:
        raise ConstraintError(constraint, numbers)


def refuse_where(
    wrong: Flags, constraint: Constraint, axes: tuple[str, ...] = ("row",), **numbers: Tensor | int
) -> None:
    """Refuse a step that is wrong somewhere.

    `axes` name the axes of `wrong`; `numbers` are tensors of its shape, or that stretch to it.

    Raises:
        ConstraintError: with the first place that is wrong and the numbers there.
    """
    if not np.count_nonzero(wrong):  # what `any` says, in half the time
        return
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    found = {name: int(np.broadcast_to(one, wrong.shape)[place]) for name, one in numbers.items()}
    raise ConstraintError(constraint, dict(zip(axes, place, strict=True)) | found)


def check_form(given: object, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Every tensor of a step, by name, has 64-bit integers in this shape.

    Raises:
        ConstraintError: the first tensor that has not.
    """
    for name, shape in shapes.items():
        tensor: Tensor = getattr(given, name)
        if tensor.dtype != np.int64:
            raise ConstraintError(Constraint.DTYPE, {"tensor": name, "dtype": str(tensor.dtype)})
        if tensor.shape != shape:
            found = {"tensor": name, "shape": str(tensor.shape), "expected": str(shape)}
            raise ConstraintError(Constraint.SHAPE, found)


def check_tokens(axis: str, token_ids: Tensor, is_real: Flags | bool) -> None:
    """Token ids are in range, and 0 where there is padding.

    Raises:
        ConstraintError: the first token id that is not.
    """
    most = MOST_TOKEN_ID if is_real is True else np.where(is_real, MOST_TOKEN_ID, 0)
    wrong = (token_ids < 0) | (token_ids > most)
    refuse_where(wrong, Constraint.TOKEN_ID, (axis,), token_id=token_ids, largest=most)
