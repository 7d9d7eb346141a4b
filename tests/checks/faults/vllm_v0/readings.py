"""Choices of another reading of the text: each alone is a fault in the repaired reading."""

from typing import Any

from attrs import evolve

from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.variants import CHOICES, Choices, Reading
from tests.checks.faults.patches import Wrong
from tests.checks.faults.vllm_v0.table import fault

WRONG_CHOICES = {
    "higher_number_first": ("priority", "V0-ORD-11"),
    "blocked_by_long": ("chunked, multi-step", "V0-ORD-1"),
    "samples_first_chunk": ("chunked, delay", "V0-CHK-6"),
    "swaps_uncomputed": ("lookahead, swap", "V0-SWP-2"),
    "counts_siblings": ("outgrows the GPU", "V0-BUD-5"),
    "keeps_victims_apart": ("priority, swap", "V0-BLK-4, V0-LIF-6, V0-PRI-6, V0-SWP-2"),
    "marks_swapped": ("chunked, caching, swap", "V0-PRG-1"),
    "slots_at_worst": ("outgrows the GPU", "V0-PRE-1"),
    "frees_infeasible": ("outgrows the GPU", "V0-BLK-4, V0-BLK-5"),
    "needs_cpu_space": ("swap, little room on the CPU", "V0-PRG-1"),
    "swaps_in_chunks": ("chunked, caching, swap", "V0-PRG-1"),
    "recomputes_by_word": ("forks, recompute", "V0-PRG-1"),
    "overdraws": ("combined, one token short", "V0-PRG-1"),
    "shares_any_budget": ("partial prefills, three", "V0-PRG-2"),
    "begins_with_leftovers": ("partial prefills, two long", "V0-CHK-4"),
    "fills_gaps": ("documented, chunked, forks", "V0-ORD-4, V0-PRG-4"),
    "sorts_late": ("combined, priority", "V0-ORD-11"),
    "finishing_first_under_way": ("chunked, caching, an answer", "V0-ORD-11"),
    "forgets_scheduled": ("chunked, delay", "V0-ADM-6"),
    "computed_when_allocated": ("chunked, caching, an answer", "V0-PFX-3"),
    "watermark_when_alone": ("swap, watermark, alone", "V0-PRG-2, V0-SWP-6"),
    "limits_chunks": ("chunked, beyond the model", "V0-ADM-3"),
    "gives_way_blindly": ("chunked, caching, an answer", "V0-SEQ-7"),
    "counts_filled_only": ("swap, little room on the CPU", "V0-PRE-5"),
    "refunds_victims": ("swap, little room on the CPU", "V0-BUD-5"),
    "keeps_cross": ("encoder, swap", "V0-BLK-10, V0-BLK-3, V0-BLK-4, V0-SWP-2"),
}


def otherwise(name: str) -> Wrong:
    """The repaired reading with one choice made the other way."""
    usual: Any = CHOICES[Reading.REPAIRED]
    wrong: Choices = evolve(usual, **{name: not getattr(usual, name)})
    return lambda _right, _self: wrong


for name, (instance, rules) in WRONG_CHOICES.items():
    fault(VllmV0Config, "choices", on=instance, rules=rules)(otherwise(name), f"choice {name}")
