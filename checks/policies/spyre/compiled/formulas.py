"""The formulas of `spec/spyre` that the compiled machine calls, by name.

Lengths are in tokens unless the name ends in `_blocks` or `_chunks`. `length` and `remaining` are
columns: for each row of the batch its tokens, and the tokens that it may still generate.
"""

from collections.abc import Callable
from typing import Any

from checks.explore.compiled.jit import generated_module
from checks.explore.compiled.printing import Choice, Formula, module_source
from checks.policies.spyre.compiled.names import MOST_MEMBERS, MOST_REQUESTS
from spec.spyre import padding, reservation
from spec.spyre.admission import Member
from spec.spyre.variants import ADMISSIONS, Condition, Joining

CONDITIONS = tuple(condition for variant in ADMISSIONS.values() for condition in variant.conditions)


def _of_columns(condition: Condition) -> Callable[..., Any]:
    """The condition as a function of columns and numbers."""

    def holds(
        length: list[Any],
        remaining: list[Any],
        candidate_length: Any,
        candidate_remaining: Any,
        limit: Any,
        max_model_len: Any,
        block_size: Any,
        last_tkv: Any,
    ) -> Any:
        members = [Member(*member) for member in zip(length, remaining, strict=True)]
        candidate = Member(candidate_length, candidate_remaining)
        return condition.holds(
            Joining(
                decoding=members,
                candidate=candidate,
                limit=limit,
                max_model_len=max_model_len,
                block_size=block_size,
                last_tkv=last_tkv,
            )
        )

    return holds


_LAYOUT = ("hit_blocks", "left_padding_blocks", "blocks_per_chunk", "chunks")
_PLAIN = (
    Formula(
        name="left_padding",
        function=padding.left_padding,
        parameters=("prompt_len", "block_size", "chunk_size"),
    ),
    Formula(
        name="chunk_count", function=padding.chunk_count, parameters=("prompt_len", "chunk_size")
    ),
    Formula(
        name="active_chunk",
        function=padding.active_chunk,
        parameters=("computed", "left_padding_tokens", "chunk_size"),
    ),
    Formula(
        name="counted_end",
        function=padding.counted_end,
        parameters=("computed", "chunk", "left_padding_tokens", "chunk_size", "prompt_len"),
    ),
    Formula(name="reused_blocks", function=padding.reused_blocks, parameters=_LAYOUT),
    Formula(
        name="row_left_padding",
        function=padding.row_left_padding,
        parameters=("tokens", "width_blocks", "block_size"),
    ),
    Formula(name="volume", function=padding.volume, parameters=("batch_size", "tkv")),
    Formula(
        name="worst_case_blocks",
        function=reservation.worst_case_blocks,
        parameters=("prefill_len", "remaining", "block_size"),
    ),
    Formula(
        name="may_reserve",
        function=reservation.may_reserve,
        parameters=("worst_case", "shared", "free", "reserved"),
    ),
    Formula(
        name="promised_blocks",
        function=reservation.promised_blocks,
        parameters=("worst_case", "held"),
    ),
)
_OF_ROWS = tuple(
    Formula(
        name=name,
        function=function,
        columns=("length",),
        parameters=("block_size",),
        rows=range(1, MOST_REQUESTS + 1),
    )
    for name, function in (
        ("batch_width_blocks", padding.batch_width_blocks),
        ("max_tkv", padding.max_tkv),
    )
)
_CONDITION = Choice(
    "condition_holds",
    [
        Formula(
            name=f"condition_{number}",
            function=_of_columns(condition),
            columns=("length", "remaining"),
            parameters=(
                *("candidate_length", "candidate_remaining", "limit", "max_model_len"),
                *("block_size", "last_tkv"),
            ),
            rows=range(MOST_MEMBERS + 1),
        )
        for number, condition in enumerate(CONDITIONS)
    ],
)
_MODULE: Any = generated_module(
    "lockstep_formulas_of_spyre",
    lambda: module_source("Formulas of spec/spyre.", [*_PLAIN, *_OF_ROWS, _CONDITION]),
)

left_padding = _MODULE.left_padding
chunk_count = _MODULE.chunk_count
active_chunk = _MODULE.active_chunk
counted_end = _MODULE.counted_end
reused_blocks = _MODULE.reused_blocks
row_left_padding = _MODULE.row_left_padding
volume = _MODULE.volume
worst_case_blocks = _MODULE.worst_case_blocks
may_reserve = _MODULE.may_reserve
promised_blocks = _MODULE.promised_blocks
batch_width_blocks = _MODULE.batch_width_blocks
max_tkv = _MODULE.max_tkv
condition_holds = _MODULE.condition_holds
