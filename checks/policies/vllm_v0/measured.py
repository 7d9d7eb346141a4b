"""Measured claims of the text on vLLM V0: strategies, preemption modes, delay and priorities."""

from collections.abc import Callable
from functools import partial

from checks.harness.measuring import Measured, asking, falls, rises, serve, shown

_serve = partial(serve, "vllm-v0")


def strategies() -> Measured:
    """20 chats of 100 tokens, one every 4 units, and four prompts of 2,000 beside them."""
    chats = [asking(f"chat {place}", 100, 40, 4 * place) for place in range(20)]
    longs = [asking(f"long {place}", 2_000, 10, 20 + 25 * place) for place in range(4)]
    runs = [
        _serve(
            [*chats, *longs],
            chunked_prefill=chunked,
            max_num_batched_tokens=budget,
            max_model_len=2_048,
        )
        for chunked, budget in ((False, 8_192), (True, 512))
    ]
    first, decodes = (run.summary for run in runs)
    rows = [
        (
            name,
            *map(
                shown,
                (
                    it.itl_units.p99,
                    it.ttft_units.mean,
                    it.output_tokens_per_unit,
                    it.duration_units,
                ),
            ),
        )
        for name, it in (("prefills first", first), ("decodes first, chunks of 512", decodes))
    ]
    return Measured(
        name="Strategies",
        columns=("strategy", "ITL p99", "TTFT mean", "tokens per unit", "units"),
        rows=rows,
        claims={
            "Prefills first has the higher throughput.": falls(
                [it.output_tokens_per_unit for it in (first, decodes)]
            ),
            "Decodes first has the shorter p99 of the time between tokens.": falls(
                [it.itl_units.p99 for it in (first, decodes)]
            ),
            "Chunks slow the execution down.": rises(
                [it.duration_units for it in (first, decodes)]
            ),
            "Chunks beside decodes are all done sooner.": falls(
                [it.duration_units for it in (first, decodes)]
            ),
            "Decodes first has the earlier first token in the mean.": falls(
                [it.ttft_units.mean for it in (first, decodes)]
            ),
        },
    )


def modes() -> Measured:
    """8 chats of 100 tokens, 100 answered, in 60 blocks; the clock charges nothing for a swap."""
    requests = [asking(f"chat {place}", 100, 100) for place in range(8)]
    runs = [
        _serve(requests, num_blocks=60, num_cpu_blocks=200, preemption_mode=mode, max_model_len=256)
        for mode in ("recompute", "swap")
    ]
    swapped = [sum(sum(work.transfers.values()) for work in run.works) for run in runs]
    times = [run.summary.duration_units for run in runs]
    rows = [
        (mode, run.summary.preemptions, f"{run.computed:,}", blocks, shown(time))
        for mode, run, blocks, time in zip(("recompute", "swap"), runs, swapped, times, strict=True)
    ]
    return Measured(
        name="Modes",
        columns=("mode", "preemptions", "prompt tokens computed", "blocks moved", "units"),
        rows=rows,
        claims={
            "Swapping avoids that tokens are computed again.": (
                runs[1].computed == 800 < runs[0].computed
            ),
            "Recomputing takes longer, if moving blocks costs nothing.": falls(times),
            "Recomputing needs no memory beside the GPU's, swapping does.": (
                swapped[0] == 0 < swapped[1]
            ),
        },
    )


def delays() -> Measured:
    """24 prompts of 100 tokens, one every 2 units, held back by multiples of 2 units."""
    factors = (0.0, 1.0, 4.0)
    requests = [asking(f"chat {place}", 100, 20, 2 * place) for place in range(24)]
    runs = [_serve(requests, delay_factor=factor, prefill_time=2) for factor in factors]
    prefills = [run.summary.steps["prefill"] for run in runs]
    ttft = [run.summary.ttft_units.mean for run in runs]
    rows = [
        (f"{factor:g}", count, shown(time), shown(run.summary.duration_units))
        for factor, count, time, run in zip(factors, prefills, ttft, runs, strict=True)
    ]
    return Measured(
        name="Delays",
        columns=("delay factor", "prefill steps", "TTFT mean", "units"),
        rows=rows,
        claims={
            "Waiting for a batch takes fewer prefill steps.": falls(prefills),
            "Too much delay increases latency.": rises(ttft[1:]),
        },
    )


def priorities() -> Measured:
    """The text's example: B and C run, A is more urgent and finds no room."""
    requests = [
        asking("B", 32, 40, priority=3),
        asking("C", 32, 40, priority=5),
        asking("A", 32, 10, 5, priority=1),
    ]
    run = _serve(requests, num_blocks=6, scheduling="priority", max_model_len=128)
    victims = [
        event.id for step in run.steps for event in step.events if event.transition == "preempt"
    ]
    return Measured(
        name="Priorities",
        columns=("preemptions counted", "first victim"),
        rows=[(run.summary.preemptions, victims[0])],
        claims={
            "C is preempted for A.": victims[0] == "C",
            "The number of preemptions is counted.": run.summary.preemptions == len(victims) > 0,
        },
    )


MEASURED: tuple[Callable[[], Measured], ...] = (strategies, modes, delays, priorities)
