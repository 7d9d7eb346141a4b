"""The format `mooncake`: like `azure`, and which prompts begin with the same blocks."""

from engine.workloads.checked import MOST_TOKENS, NOTHING, brief, json_object, seconds, whole
from engine.workloads.own import own_stream
from spec.core.blocks import block_count
from spec.core.errors import WorkloadError
from spec.core.requests import Prompt, Request

BLOCK_TOKENS = 512  # of the blocks that the ids stand for, whatever our own block size
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")

_MOST_MILLISECONDS = 10**12
_MOST_HASH_ID = 2**64 - 1


class MooncakeRows:
    """Reads the lines of one file. Keys beyond the four that are needed are ignored."""

    def takes_as_header(self, _line: str) -> bool:
        """False: the format has no header."""
        return False

    def request(self, line: str, row: int) -> Request | None:
        """The request of one line; None if it has no prompt or generated nothing."""
        entry = dict.fromkeys(KEYS, NOTHING) | json_object(line)
        arrival_ms = seconds("timestamp", entry["timestamp"], _MOST_MILLISECONDS, "milliseconds")
        prompt_len = whole("input_length", entry["input_length"], 0, MOST_TOKENS, "tokens")
        output_len = whole("output_length", entry["output_length"], 0, MOST_TOKENS, "tokens")
        parts = _parts(entry["hash_ids"], prompt_len, str(row))
        if prompt_len == 0 or output_len == 0:
            return None
        return Request(
            id=str(row),
            prompt=Prompt.of_parts(parts),
            max_tokens=output_len,
            arrival_time=arrival_ms / 1000,
        )


def _parts(hash_ids: object, prompt_len: int, request_id: str) -> list[tuple[str, int]]:
    """A stream for each full block, shared by all prompts that have its id.

    A last block that is not full is the request's own: what others with that id have in common
    with it is not known, and no full block depends on it.
    """
    blocks = block_count(prompt_len, BLOCK_TOKENS)
    if not isinstance(hash_ids, list) or len(hash_ids) != blocks:
        allowed = f"a list of {blocks} ids, one for each {BLOCK_TOKENS} tokens begun"
        raise WorkloadError("hash_ids", brief(hash_ids), allowed)
    ids = [whole(f"hash_ids[{index}]", one, 0, _MOST_HASH_ID) for index, one in enumerate(hash_ids)]
    full, rest = divmod(prompt_len, BLOCK_TOKENS)
    shared = [(f"hash {one}", BLOCK_TOKENS) for one in ids[:full]]
    return [*shared, (own_stream(request_id), rest)] if rest else shared
