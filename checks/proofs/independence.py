"""Independence of theorems: which formulas a statement calls, and which of these are defined.

A statement that computes its expected value with the very formula that it judges would hold for any
formula. A headline statement may therefore call a formula only as the judged one, or if an
obligation shows that the formula equals its definition. Calls are observed while the statement is
made.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import spec
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Obligation
from checks.proofs.sampling import drawn
from spec.core import arithmetic, rows

# Statements that the chapters call theorems, and the formulas that each of them judges.
HEADLINES: Mapping[str, frozenset[str]] = {
    "PRV-ANY-3B": frozenset({"exact_volume_holds"}),
    "PRV-ANY-7B": frozenset({"exact_volume_holds"}),
    "PRV-ANY-11": frozenset({"exact_volume_holds"}),
    "PRV-TIG-2": frozenset({"exact_volume_holds", "worst_case_blocks"}),
    "PRV-ANS-8": frozenset({"shipped_volume_holds"}),
    "PRV-VOL-1": frozenset({"documented_volume_holds"}),
    "PRV-RES-1": frozenset({"may_reserve", "promised_blocks"}),
    "PRV-RES-2": frozenset({"still_promised"}),
    "PRV-RES-4": frozenset({"worst_case_blocks"}),
    "PRV-ALN-1": frozenset({"admissions_left", "chosen_from", "overtakes_left"}),
    "PRV-V1-ANY-1": frozenset({"running_tokens"}),
    "PRV-V1-ANY-2": frozenset({"waiting_tokens"}),
    "PRV-V1-KV-2": frozenset({"missing_blocks", "slots_end"}),
    "PRV-V1-KV-7": frozenset({"largest_end", "missing_blocks"}),
    "PRV-NANO-ANY-1A": frozenset({"counted_tokens", "within_budget"}),
    "PRV-NANO-ANY-1B": frozenset({"counted_tokens", "within_budget"}),
    "PRV-NANO-ADM-2": frozenset({"can_allocate"}),
    "PRV-NANO-DEC-4": frozenset({"can_append", "starts_block"}),
}

# Formulas that an obligation shows to equal their definition.
DEFINED: Mapping[str, str] = {"volume": "PRV-DEF-2", "max_tkv": "PRV-DEF-4"}

# Formulas with which statements choose a step or a row, or state a cited fact. The claim about the
# step or row is shown by definition, whichever formula chose it.
WITNESSES = {
    "batch_width_blocks",
    "longest",
    "peak_tkv",
    "peak_volume_until",
    "reaches_block_end",
    "rows_until",
}

_WORDS = (arithmetic.__name__, rows.__name__)
_COMPARED = {"block_count", "block_index"}  # with their definition, in `checks.proofs.words`


def called_formulas(obligation: Obligation) -> set[str]:
    """The formulas of the specification that the obligation's statement calls directly.

    Words of arithmetic and of rows do not count, nor do calls made by a formula.
    """
    called: set[str] = set()

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and _is_formula(frame) and _is_statement(frame.f_back):
            called.add(frame.f_code.co_name)

    with _profiled(look):
        next(drawn(obligation), None)
    return called - _COMPARED


@contextmanager
def _profiled(look: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Within the block, the function sees each call."""
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


def _is_formula(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    name = frame.f_code.co_name
    is_plain = name[0] not in "_<" and frame.f_code.co_filename.endswith(".py")
    return module.startswith(f"{spec.__name__}.") and module not in _WORDS and is_plain


def _is_statement(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_globals.get("__name__", "").startswith(f"{__package__}.")


def undefined_formulas(name: str) -> set[str]:
    """Formulas that a headline calls, does not judge, and that no obligation defines."""
    return called_formulas(OBLIGATIONS[name]) - HEADLINES[name] - DEFINED.keys() - WITNESSES


def independence() -> Iterator[tuple[str, str, str]]:
    """For each headline: its id, the judged formulas, and the defined or choosing formulas."""
    for name, judged in HEADLINES.items():
        others = sorted(called_formulas(OBLIGATIONS[name]) - judged)
        words = [
            f"`{formula}` ({DEFINED.get(formula, 'names a step or row')})" for formula in others
        ]
        yield name, ", ".join(f"`{formula}`" for formula in sorted(judged)), ", ".join(words) or "-"
