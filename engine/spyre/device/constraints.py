"""What the simulated device refuses, each constraint with its name and its sentence.

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
- Who holds a block and is not in the batch is not seen. If such a block is begun anew, they are
  refused when they next read it.

And for the paged device:

- A row may read what another row writes in the same step, as every layer of a model writes the keys
  and values of all tokens before it attends to any.
- The last slots of a block may be written over with other tokens, as many as there can be rejected
  drafts. Whatever stands behind the newest token is gone.
"""

from collections.abc import Mapping
from enum import StrEnum


class Constraint(StrEnum):
    """The name of something that the device refuses; `SAYS` has its sentence."""

    # The tensors themselves.
    DTYPE = "dtype"
    SHAPE = "shape"
    TOKEN_ID = "token id"
    BLOCK_ID = "block id"
    POSITION = "position"
    MODEL_LENGTH = "model length"
    # The batch (spyre, "Key concepts" and "Padding").
    BATCH_SIZE = "batch size"
    VOLUME = "volume"
    # Layout (spyre, "Padding", "Prefill padding" and "Decode padding").
    LEFT_PADDING = "left padding"
    EXCESS_PADDING = "excess padding"
    PADDING_BLOCKS = "padding blocks"
    EMPTY_LAST_BLOCK = "empty last block"
    RECTANGLE = "rectangle"
    CHUNK = "chunk"
    # Writes (spyre, "Boundary chunk"; vllm-v1, "KV cache manager").
    WRITE_OUTSIDE = "write outside"
    WRITE_OFFSET = "write offset"
    WRITE_SHARED = "write shared"
    WRITE_GAP = "write gap"
    OVERWRITE = "overwrite"
    # Reads: what a row attends to was written for it, or for equal tokens (spyre, "Padding").
    READ_UNWRITTEN = "read unwritten"
    READ_POSITION = "read position"
    READ_CONTENT = "read content"
    # A paged batch (nano-vllm, chapter 9; vllm-v1, "The Fundamental Insight").
    BATCH_LIMIT = "batch limit"
    CAPTURED_SIZE = "captured size"
    LENGTHS = "lengths"
    EMPTY_QUERY = "empty query"
    SAMPLED = "sampled"
    # Its block tables and slots (nano-vllm, "Block Tables").
    TABLE = "table"
    TABLE_LENGTH = "table length"
    SLOT = "slot"
    NEXT_POSITION = "next position"
    WRITE_HELD = "write held"
    REWRITE = "rewrite"


SAYS: Mapping[Constraint, str] = {
    Constraint.DTYPE: "Every tensor holds 64-bit integers.",
    Constraint.SHAPE: "Every tensor has the shape that its place in the step asks for.",
    Constraint.TOKEN_ID: "Token ids are 0 to 2**31 - 1, and 0 where there is padding.",
    Constraint.BLOCK_ID: "Blocks are those of the pool, and block 0 for padding.",
    Constraint.POSITION: "A real position is the padded one less the left padding; 0 in padding.",
    Constraint.MODEL_LENGTH: "A real position is less than the model's context length.",
    Constraint.BATCH_SIZE: "A prefill has one row, a decode at most max_num_seqs.",
    Constraint.VOLUME: "Batch size times the largest tkv does not exceed the limit.",
    Constraint.LEFT_PADDING: "Left padding is whole blocks, fewer than the row or the chunk has.",
    Constraint.EXCESS_PADDING: "Some row of a decode batch has no left padding.",
    Constraint.PADDING_BLOCKS: "A block table has block 0 in its left padding and nowhere else.",
    Constraint.EMPTY_LAST_BLOCK: "The last block of a table holds at least one real token.",
    Constraint.RECTANGLE: "The tkv of all rows of a decode batch lie in the table's last block.",
    Constraint.CHUNK: "A prefill step is a whole chunk, filled to the right unless it is the last.",
    Constraint.WRITE_OUTSIDE: "A token is written to the block that the row's table has for it.",
    Constraint.WRITE_OFFSET: "A token is written to the slot of its padded position in its block.",
    Constraint.WRITE_SHARED: "A block that is written stands once in all tables of the batch.",
    Constraint.WRITE_GAP: "A block is begun at its first slot and goes on at the next one.",
    Constraint.OVERWRITE: "Inside a block, only the same token may be written a second time.",
    Constraint.READ_UNWRITTEN: "A row attends only to slots that were written.",
    Constraint.READ_POSITION: "A row finds every block written for the positions that it expects.",
    Constraint.READ_CONTENT: "A block is read only behind the tokens that it was written behind.",
    Constraint.BATCH_LIMIT: "A batch has no more rows and tokens than there is room for.",
    Constraint.CAPTURED_SIZE: "A captured step has one token a row, and a captured size holds it.",
    Constraint.LENGTHS: "A context is what is cached and what is computed, row after row.",
    Constraint.EMPTY_QUERY: "Every row computes one token or more.",
    Constraint.SAMPLED: "Tokens are sampled behind tokens of the batch, in their order.",
    Constraint.TABLE: "A table has blocks of the pool, and -1 behind them.",
    Constraint.TABLE_LENGTH: "A table has a block for every token of the context.",
    Constraint.SLOT: "A slot lies in a block of the pool.",
    Constraint.NEXT_POSITION: "The positions of a row go on where its cached tokens end.",
    Constraint.WRITE_HELD: "A block that is written stands in another table only to be read whole.",
    Constraint.REWRITE: "Inside a block, only drafts may be written over with other tokens.",
}
