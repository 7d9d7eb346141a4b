"""Measured claims of the text on vLLM V0: strategies, caching, preemption, delay, priorities."""

from collections.abc import Callable
from functools import partial

from checks.harness.runs.measuring import Measured, asking, falls, known, rises, serve, shown

_serve = partial(serve, "vllm-v0")


# Both orders with the release's default budget, then decodes first with a small one.
_STRATEGIES = {
    "prefills first": {"chunked_prefill": False, "max_num_batched_tokens": 2_048},
    "decodes first, chunks of 2,048": {"chunked_prefill": True, "max_num_batched_tokens": 2_048},
    "decodes first, chunks of 512": {"chunked_prefill": True, "max_num_batched_tokens": 512},
}


def strategies() -> Measured:
    """20 chats of 100 tokens, one every 4 units, and four prompts of 2,000 beside them."""
    chats = [asking(f"chat {place}", 100, 40, 4 * place) for place in range(20)]
    longs = [asking(f"long {place}", 2_000, 10, 20 + 25 * place) for place in range(4)]
    runs = [_serve([*chats, *longs], max_model_len=2_048, **keys) for keys in _STRATEGIES.values()]
    p99 = [known(run.summary.itl_units.p99) for run in runs]
    chat = [known(next(iter(run.summary.ttft_by_prompt.values())).mean) for run in runs]
    throughput = [known(run.summary.output_tokens_per_unit) for run in runs]
    units = [run.summary.duration_units for run in runs]
    figures = zip(p99, chat, throughput, units, strict=True)
    return Measured(
        name="Strategies",
        columns=("strategy", "ITL p99", "TTFT, chats", "tokens per unit", "units"),
        rows=[
            (name, *map(shown, figure)) for name, figure in zip(_STRATEGIES, figures, strict=True)
        ],
        claims={
            "Prefills first has the highest throughput.": throughput[0] > max(throughput[1:]),
            "Decodes first has the shorter p99 of the time between tokens, whatever the chunks.": (
                max(p99[1:]) < p99[0]
            ),
            "Chunks of 512 slow the execution down.": units[0] < units[2],
            "Chunks of 2,048 beside decodes are all done sooner.": units[1] < units[0],
            "Chats have their first token earlier with chunks.": min(chat[1:]) < chat[0],
        },
    )


def batch() -> Measured:
    """60 prompts of 500 tokens, all at once, 40 answered."""
    prompts = [asking(f"prompt {place}", 500, 40) for place in range(60)]
    runs = [_serve(prompts, max_model_len=2_048, **keys) for keys in _STRATEGIES.values()]
    throughput = [known(run.summary.output_tokens_per_unit) for run in runs]
    return Measured(
        name="Batch",
        columns=("strategy", "tokens per unit", "units"),
        rows=[
            (name, shown(rate), shown(run.summary.duration_units))
            for name, rate, run in zip(_STRATEGIES, throughput, runs, strict=True)
        ],
        claims={
            "Prefills first has a higher throughput than chunks of 512.": (
                throughput[0] > throughput[2]
            ),
            "It has a higher one than chunks with the same budget, by more than 1 %.": (
                throughput[0] > 1.01 * throughput[1]
            ),
        },
    )


def reuse() -> Measured:
    """20 prompts of 300 tokens, one every 5 units, of which the first 256 are common."""
    requests = [asking(f"user {place}", 300, 1, 5 * place, shared=256) for place in range(20)]
    without, cached = (_serve(requests, prefix_caching=caching) for caching in (False, True))
    return Measured(
        name="Reuse",
        columns=("prefix caching", "prompt tokens computed"),
        rows=[("off", f"{without.computed:,}"), ("on", f"{cached.computed:,}")],
        claims={
            "Without caching all is computed, with caching less.": (
                cached.computed < without.computed == 20 * 300
            ),
            "Every request but the first computes only what is not cached.": (
                cached.computed == 300 + 19 * (300 - 256)
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


MEASURED: tuple[Callable[[], Measured], ...] = (
    *(strategies, batch, reuse, modes, delays, priorities),
)
