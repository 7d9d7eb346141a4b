"""Run with the name of a fault: plants it in the compiled machine and prints the first difference.

The machine must be plain Python for that (`NUMBA_DISABLE_JIT=1`): compiled functions do not notice
that another is replaced.
"""

import sys
from typing import Any

from checks.explore.compiled.agreement import compare
from checks.policies.spyre.compiled import admission, formulas, machine, names, pool, work
from checks.policies.spyre.compiled.model import SpyreCompiled
from checks.policies.spyre.model import spyre_model
from checks.policies.spyre.policy import POLICY

WORDS = 5


def admits_beyond_the_limit(number: int, *columns: Any) -> Any:
    *batch, limit, max_model_len, block_size, last_tkv = columns
    return HOLDS(number, *batch, 2 * limit, max_model_len, block_size, last_tkv)


def pads_by_one_block_more(tokens: int, width: int, size: int) -> Any:
    return PADDING(tokens, width, size) + size


def evicts_what_was_freed_last(setting: Any, w: Any, request: int, held: int) -> None:
    RELEASE(setting, w, request, held)
    free = w[names.AT, names.N_FREE]
    w[names.FREE, :free] = w[names.FREE, :free][::-1].copy()


def finds_the_newest_content(setting: Any, w: Any, request: int) -> None:
    w[names.AT, names.STAMPS] = -100
    CACHE(setting, w, request)


def keeps_the_tkv_of_a_decode(setting: Any, w: Any, kind: int, tkv: int) -> None:
    is_prefill = kind == names.PREFILL
    REMEMBER(setting, w, kind, w[names.AT, names.LAST_TKV] if is_prefill else tkv)


def decodes_what_was_paused_last(setting: Any, w: Any, one: int, other: int) -> Any:
    return GOES_BEFORE(setting, w, other, one)


HOLDS, PADDING = formulas.condition_holds, formulas.row_left_padding
RELEASE, CACHE = pool.release, pool.cache_full_blocks
REMEMBER, GOES_BEFORE = machine.remember, machine.goes_before


def reserves_nothing(*_: Any) -> int:
    return 0


# By what it does wrong: where it is planted, what stands there then, and who notices.
FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "joins behind the batch": (machine, "put_first", work.put_last, "exact"),
    "an abort is an end": (machine, "ABORTED", names.FINISHED, "exact"),
    "reserves nothing": (admission, "reserved_of", reserves_nothing, "dry pool"),
    "admits beyond the limit": (admission, "condition_holds", admits_beyond_the_limit, "exact"),
    "pads by one block more": (machine, "row_left_padding", pads_by_one_block_more, "documented"),
    "evicts what was freed last": (machine, "release", evicts_what_was_freed_last, "eviction"),
    "finds the newest content": (
        *(machine, "cache_full_blocks", finds_the_newest_content),
        "dialogue",
    ),
    "keeps the tkv of a decode": (machine, "remember", keeps_the_tkv_of_a_decode, "shipped"),
    "decodes what was paused last": (
        *(machine, "goes_before", decodes_what_was_paused_last),
        "pausing",
    ),
}


def main(fault: str) -> None:
    """Compare the machines on the instance that shows the fault."""
    module, name, wrong, title = FAULTS[fault]
    instance = next(one for one in POLICY.instances if one.name == title)
    setattr(module, name, wrong)
    model = spyre_model(instance)
    print(compare(model, SpyreCompiled(instance, model.ctx, WORDS)).difference)


if __name__ == "__main__":
    main(sys.argv[1])
