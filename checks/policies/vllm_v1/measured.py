"""Measured claims of the text on vLLM V1: budgets, thresholds, fits, attention and preemption."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from checks.harness.runs.measuring import (
    Measured,
    Served,
    asking,
    falls,
    known,
    rises,
    serve,
    shown,
)
from checks.harness.runs.serving import run_workload
from checks.harness.runs.settings import Settings
from checks.harness.system import REFERENCE
from engine.core.clock import GPU_ESTIMATE
from spec.core.requests import Request
from spec.vllm_v1.config import VllmV1Config

_serve = partial(serve, "vllm-v1")
_BUDGETS = (2_048, 8_192, 32_768)
_CHATS = [asking(f"chat {place}", 100, 64, 7 * place) for place in range(30)]


def _long(gap: float, begin: float = 100) -> list[Request]:
    """Six prompts of 20,000 tokens, one every `gap` units."""
    return [asking(f"long {place}", 20_000, 16, begin + gap * place) for place in range(6)]


def _by_key(requests: Sequence[Request], key: str, values: Sequence[int]) -> list[Served]:
    sizes = {"max_model_len": 32_768, "num_blocks": 20_000}
    return [
        _serve(requests, **sizes | {"max_num_batched_tokens": 8_192, key: value})
        for value in values
    ]


def _ttft_of_long(run: Served) -> float:
    return known([*run.summary.ttft_by_prompt.values()][-1].mean)


_LATENCIES = (
    "ITL mean",
    "ITL p50",
    "ITL p99",
    "TTFT mean",
    "TTFT, long prompts",
    "tokens per unit",
)


def _latencies(run: Served) -> list[str]:
    summary, itl = run.summary, run.summary.itl_units
    throughput = summary.output_tokens_per_unit
    times = (itl.mean, itl.p50, itl.p99, summary.ttft_units.mean, _ttft_of_long(run), throughput)
    return [shown(time) for time in times]


def _table(values: Sequence[int], runs: Sequence[Served]) -> list[tuple[object, ...]]:
    """A row of latencies for each value of a key; 0 stands for none."""
    return [(value or "none", *_latencies(run)) for value, run in zip(values, runs, strict=True)]


def budgets() -> Measured:
    """30 chats of 100 tokens, one every 7 units; six prompts of 20,000, one every 200 units."""
    runs = _by_key([*_CHATS, *_long(200)], "max_num_batched_tokens", _BUDGETS)
    summaries = [run.summary for run in runs]
    return Measured(
        name="Budgets",
        columns=("budget", *_LATENCIES),
        rows=_table(_BUDGETS, runs),
        claims={
            "The smaller the budget, the shorter the p99 of the time between tokens.": rises(
                [summary.itl_units.p99 for summary in summaries]
            ),
            "The larger the budget, the earlier the first token of the long prompts.": falls(
                [_ttft_of_long(run) for run in runs]
            ),
            "The larger the budget, the higher the throughput.": rises(
                [summary.output_tokens_per_unit for summary in summaries]
            ),
            "The smaller the budget, the shorter the mean time between tokens.": rises(
                [summary.itl_units.mean for summary in summaries]
            ),
        },
    )


def burst() -> Measured:
    """The same requests, all at once."""
    requests = [asking(request.id, 100, 64) for request in _CHATS]
    runs = _by_key([*requests, *_long(0, 0)], "max_num_batched_tokens", _BUDGETS)
    return Measured(
        name="Burst",
        columns=("budget", *_LATENCIES),
        rows=_table(_BUDGETS, runs),
        claims={
            "The smaller the budget, the shorter the p99 of the time between tokens.": rises(
                [run.summary.itl_units.p99 for run in runs]
            ),
            "The larger the budget, the earlier the first token of the long prompts.": falls(
                [_ttft_of_long(run) for run in runs]
            ),
            "The larger the budget, the earlier everything is done.": falls(
                [run.summary.duration_units for run in runs]
            ),
        },
    )


def queue() -> Measured:
    """200 prompts of 200 tokens at once, 50 tokens answered."""
    sizes = (256, 1_024, 4_096)
    requests = [asking(f"chat {place}", 200, 50) for place in range(200)]
    runs = _by_key(requests, "max_num_batched_tokens", sizes)
    waiting = [sum(len(step.after.waiting) for step in run.steps) / len(run.steps) for run in runs]
    used = [1 - len(run.steps) / run.summary.duration_units for run in runs]  # a base is 1 unit
    columns = ("budget", "waiting, mean over steps", "time beyond the base of steps", "units")
    measured = zip(sizes, waiting, used, runs, strict=True)
    return Measured(
        name="Queue",
        columns=columns,
        rows=[
            (size, shown(wait), f"{use:.0%}", shown(run.summary.duration_units))
            for size, wait, use, run in measured
        ],
        claims={
            "A larger budget shortens the queue.": falls(waiting),
            "A larger budget uses the device better.": rises(used),
        },
    )


def thresholds() -> Measured:
    """The requests of Budgets with a budget of 8,192 tokens and four thresholds, 0 for none."""
    values = (512, 2_048, 4_096, 0)
    runs = _by_key([*_CHATS, *_long(200)], "long_prefill_token_threshold", values)
    return Measured(
        name="Thresholds",
        columns=("threshold", *_LATENCIES),
        rows=_table(values, runs),
        claims={
            "The lower the threshold, the shorter the p99 of the time between tokens.": rises(
                [run.summary.itl_units.p99 for run in runs]
            ),
            "The lower the threshold, the later the first token of the long prompts.": falls(
                [_ttft_of_long(run) for run in runs]
            ),
            "The lower the threshold, the lower the throughput.": rises(
                [run.summary.output_tokens_per_unit for run in runs]
            ),
        },
    )


def characters() -> Measured:
    """60 chats of 100 tokens, 10 cards of 2,000 and one of 20,000, good and bad configuration."""
    chats = [asking(f"chat {place}", 100, 100, 3 * place) for place in range(60)]
    cards = [asking(f"card {place}", 2_000, 50, 15 * place) for place in range(10)]
    requests = [*chats, *cards, asking("long card", 20_000, 50, 60)]
    sizes = {"max_model_len": 32_768, "num_blocks": 20_000}
    good = _serve(
        requests, max_num_batched_tokens=8_192, long_prefill_token_threshold=2_048, **sizes
    )
    bad = _serve(requests, max_num_batched_tokens=32_768, **sizes)
    steps = [
        sum(
            "long card" in step.scheduled and not step.outputs.get("long card")
            for step in run.steps
        )
        + 1
        for run in (good, bad)
    ]
    rows = [
        (name, *map(shown, (itl.p50, itl.p99, itl.max, run.summary.output_tokens_per_unit)), count)
        for name, run, count in zip(("good", "bad"), (good, bad), steps, strict=True)
        for itl in [run.summary.itl_units]
    ]
    longest = [known(run.summary.itl_units.max) for run in (good, bad)]
    first = [known(next(iter(run.summary.ttft_by_prompt.values())).mean) for run in (good, bad)]
    throughput = [run.summary.output_tokens_per_unit for run in (good, bad)]
    return Measured(
        name="Characters",
        columns=(
            "configuration",
            "ITL p50",
            "ITL p99",
            "ITL max",
            "tokens per unit",
            "steps of the long card",
        ),
        rows=rows,
        claims={
            "Without chunks one card of 20,000 tokens holds all chats up for its whole prefill.": (
                steps[1] == 1 and longest[0] < 20_000 * GPU_ESTIMATE.per_chunk_token < longest[1]
            ),
            "The good configuration has the shorter p99 of the time between tokens.": rises(
                [run.summary.itl_units.p99 for run in (good, bad)]
            ),
            "The bad configuration has the higher throughput.": rises(throughput),
            "A card of 2,000 tokens is always computed in one chunk of up to 2,048.": all(
                step.scheduled.get(card.id, 2_000) in (1, 2_000)
                for step in good.steps
                for card in cards
            ),
            "Chats have their first token earlier with the good configuration.": rises(first),
        },
    )


def attention() -> Measured:
    """A prompt of 2,000 tokens alone, with 0 and with 1,200 of its tokens cached."""
    rows, works = [], []
    for cached in (0, 1_200):
        before = asking("before", 1_200 + 16, 1, shared=cached)
        run = _serve([before, asking("prompt", 2_000, 1, 100, shared=cached)])
        work = next(work for work in run.works if any(it.id == "prompt" for it in work.prefills))
        works.append(work)
        cost = work.duration(GPU_ESTIMATE) - GPU_ESTIMATE.prefill_time
        product = f"{2_000 * work.chunk_tokens:,}"
        rows.append((cached, work.chunk_tokens, f"{work.attended_tokens:,}", product, shown(cost)))
    full, hit = works
    costs = [work.duration(GPU_ESTIMATE) - GPU_ESTIMATE.prefill_time for work in works]
    return Measured(
        name="Attention",
        columns=("cached", "new tokens", "pairs attended", "new x total", "units beyond the base"),
        rows=rows,
        claims={
            "The step computes the new tokens only.": hit.chunk_tokens == 800,
            "Attention takes new x total, within a factor of two.": all(
                1 <= 2_000 * work.chunk_tokens / work.attended_tokens <= 2 for work in works
            ),
            "The cost beyond the base is in proportion to the new tokens, within 5 %.": (
                abs(costs[1] / costs[0] / 0.4 - 1) < 0.05
            ),
            "Attention is in proportion to the new tokens, within 5 %.": (
                abs(hit.attended_tokens / full.attended_tokens / 0.4 - 1) < 0.05
            ),
        },
    )


def amplification() -> Measured:
    """The text's nine prompts of 2,000 tokens, with nothing cached and with its cached parts."""
    parts = (1_200, 1_500, 1_800, 1_900, 0, 500, 1_000, 800, 1_700)
    begun = []
    for caching in (False, True):
        before = asking("before", 1_920, 1, shared=1_904)
        prompts = [
            asking(f"prompt {place}", 2_000, 1, 100, shared=cached)
            for place, cached in enumerate(parts)
        ]
        run = _serve([before, *prompts], max_num_batched_tokens=8_192, prefix_caching=caching)
        step = run.steps[1]
        begun.append((len(step.outputs), sum(step.scheduled.values())))
    (whole, tokens), (with_hits, new_tokens) = begun
    return Measured(
        name="Amplification",
        columns=("caching", "whole prompts in a step", "tokens computed"),
        rows=[("off", whole, f"{tokens:,}"), ("on", with_hits, f"{new_tokens:,}")],
        claims={
            "Nine prompts fit a step with their hits, four without.": (whole, with_hits) == (4, 9),
            "More than twice as many fit.": with_hits > 2 * whole,
        },
    )


def fits() -> Measured:
    """What one step holds: 200 chats decode and a prompt of 10,000 comes; 50 chats; 300 decodes."""
    sizes = {"max_model_len": 16_384, "num_blocks": 20_000, "max_num_seqs": 512}
    chats = [asking(f"chat {place}", 100, 60) for place in range(300)]
    with_long = [*chats[:200], asking("long", 10_000, 1, 250)]
    rag = _serve(with_long, max_num_batched_tokens=16_384, **sizes)
    whole = next(step.scheduled for step in rag.steps if "long" in step.scheduled)
    first = _serve(chats, max_num_batched_tokens=4_096, **sizes).steps
    prompts = sum(tokens == 100 for tokens in first[0].scheduled.values())
    decodes = max(sum(tokens == 1 for tokens in step.scheduled.values()) for step in first)
    return Measured(
        name="Fits",
        columns=("budget", "one step holds"),
        rows=[
            ("16,384", f"{whole['long']:,} tokens of a prompt and {len(whole) - 1} decodes"),
            ("4,096", f"{prompts} whole prompts of 100 tokens"),
            ("4,096", f"{decodes} decodes of one token, all that there are"),
        ],
        claims={
            "A budget of 16,384 allows a prompt of 10,000 tokens and some decodes.": (
                whole["long"] == 10_000 and len(whole) > 1
            ),
            "A budget of 4,096 fits about 40 prompts of 100 tokens.": 38 <= prompts <= 42,
            "A budget of 4,096 fits about 40 requests that generate one token each.": decodes <= 45,
        },
    )


def preemption() -> Measured:
    """12 chats of 200 tokens, 200 answered, in pools of 320, 200 and 120 blocks of 16 tokens."""
    requests = [asking(f"chat {place}", 200, 200, 2 * place) for place in range(12)]
    rows, runs = [], []
    for caching in (False, True):
        for blocks in (320, 200, 120):
            run = _serve(requests, num_blocks=blocks, max_model_len=512, prefix_caching=caching)
            summary = run.summary
            runs.append(run)
            rows.append(
                (
                    "on" if caching else "off",
                    blocks,
                    summary.preemptions,
                    f"{run.computed:,}",
                    shown(summary.duration_units),
                )
            )
    without, cached = runs[:3], runs[3:]
    return Measured(
        name="Preemption",
        columns=("caching", "blocks", "preemptions", "prompt tokens computed", "units"),
        rows=rows,
        claims={
            "Preemptions cost computed tokens again.": rises([run.computed for run in without[:2]]),
            "They cost time.": rises([run.summary.duration_units for run in without[:2]]),
            "A victim starts over from the beginning, with caching too.": (
                cached[2].computed >= without[2].computed
            ),
        },
    )


def thrash() -> Measured:
    """Six prompts of 150 tokens, 40 answered, in 30 blocks; chunks of 32; every rule judged."""
    requests = [asking(f"chat {place}", 150, 40, place) for place in range(6)]
    rows, runs = [], []
    for reserve in (True, False):
        config = VllmV1Config(
            num_blocks=30,
            max_model_len=256,
            max_num_batched_tokens=64,
            long_prefill_token_threshold=32,
            reserve_full_prompt=reserve,
            prefix_caching=False,
        )
        run = run_workload(Settings(config, GPU_ESTIMATE), requests, using=REFERENCE)
        runs.append(run)
        summary = run.summary
        rows.append(
            (
                str(reserve).lower(),
                summary.preemptions,
                shown(summary.duration_units),
                len(run.broken),
            )
        )
    kept, loose = (run.summary for run in runs)
    return Measured(
        name="Thrash",
        columns=("reserve_full_prompt", "preemptions", "units", "broken rules"),
        rows=rows,
        claims={
            "Without the reservation more requests are preempted.": loose.preemptions
            > kept.preemptions,
            "It takes longer.": loose.duration_units > kept.duration_units,
            "No rule is broken either way.": not any(run.broken for run in runs),
        },
    )


def recomputation() -> Measured:
    """The same six prompts: how often each token is computed, by the preemptions of its request."""
    requests = [asking(f"chat {place}", 150, 40, place) for place in range(6)]
    sizes = {"num_blocks": 30, "max_model_len": 256, "max_num_batched_tokens": 64}
    rows, again, most = [], list[int](), list[bool]()
    for reserve in (True, False):
        keys = {"long_prefill_token_threshold": 32, "reserve_full_prompt": reserve}
        run = _serve(requests, prefix_caching=False, **sizes, **keys)
        times, preempted = _times_computed(run), _preemptions(run)
        tokens = sum(times.values())
        again.append(tokens - len(times))
        most.append(all(count <= 1 + preempted[id_] for (id_, _), count in times.items()))
        share = f"{again[-1] / tokens:.0%}"
        highest = max(times.values())
        rows.append((str(reserve).lower(), preempted.total(), f"{tokens:,}", share, highest))
    return Measured(
        name="Recomputation",
        columns=("reserve_full_prompt", "preemptions", "tokens computed", "again", "most often"),
        rows=rows,
        claims={
            "A token is computed once, and once more for each preemption of its request at most.": (
                all(most)
            ),
            "Without the reservation more is computed again.": rises(again),
        },
    )


def _times_computed(run: Served) -> Counter[tuple[str, int]]:
    """How often each token was computed, by request and position."""
    steps: Any = run.steps
    return Counter(
        (row.id, position)
        for step in steps
        for row in step.planned.running
        for position in range(row.computed, row.computed + step.scheduled.get(row.id, 0))
    )


def _preemptions(run: Served) -> Counter[str]:
    """How often each request was preempted."""
    steps: Any = run.steps
    return Counter(id_ for step in steps for id_ in step.preempted)


MEASURED: tuple[Callable[[], Measured], ...] = (
    *(budgets, burst, queue, thresholds, characters, attention, amplification, fits),
    *(preemption, thrash, recomputation),
)
