"""Measured claims of the text on nano-vLLM: cache hits, full pools, the cost of a preemption."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from checks.harness.runs.measuring import Measured, asking, falls, known, rises, serve, shown

_serve = partial(serve, "nano-vllm")


def hits() -> Measured:
    """A prompt of 2,048 tokens of which a share is cached."""
    shares = (0, 256, 512, 1_024, 1_536)
    times = []
    for cached in shares:
        before = asking("before", 1_800, 1, shared=cached)
        run = _serve([before, asking("prompt", 2_048, 1, 100, shared=cached)])
        times.append(known([*run.summary.ttft_by_prompt.values()][-1].max))
    saved = [1 - time / times[0] for time in times]
    pace = [
        (before - after) / (more - less)
        for (less, more), (before, after) in zip(pairwise(shares), pairwise(times), strict=True)
    ]
    rows = [
        (cached, f"{cached / 2_048:.1%}", shown(time), f"{part:.1%}")
        for cached, time, part in zip(shares, times, saved, strict=True)
    ]
    return Measured(
        name="Hits",
        columns=("cached tokens", "share hit", "TTFT", "share saved"),
        rows=rows,
        claims={
            "The more is hit, the earlier the first token.": falls(times),
            "Each hit token saves the same time, within 5 %.": max(pace) < 1.05 * min(pace),
            "The share of TTFT saved is the share hit, within a percentage point.": all(
                abs(part - cached / 2_048) < 0.01
                for cached, part in zip(shares, saved, strict=True)
            ),
        },
    )


def pool() -> Measured:
    """12 chats of 500 tokens, one every 2 units, 100 answered, in smaller and smaller pools."""
    sizes = (64, 24, 12)
    requests = [asking(f"chat {place}", 500, 100, 2 * place) for place in range(12)]
    summaries = [_serve(requests, num_blocks=blocks).summary for blocks in sizes]
    first = [known(summary.ttft_units.mean) for summary in summaries]
    whole = [known(summary.end_to_end_units.mean) for summary in summaries]
    return Measured(
        name="Pool",
        columns=("blocks", "TTFT mean", "end to end, mean", "preemptions"),
        rows=[
            (blocks, shown(ttft), shown(time), summary.preemptions)
            for blocks, ttft, time, summary in zip(sizes, first, whole, summaries, strict=True)
        ],
        claims={
            "The fewer blocks, the longer a request takes in the mean.": rises(whole),
            "In the smallest pool new requests wait longer for their first token.": (
                first[-1] > max(first[:-1])
            ),
        },
    )


def evictions() -> Measured:
    """The last sequence is evicted for the first one's third block, at some length."""
    lengths = (1_024, 2_048, 3_072)
    rows, delays, again = [], [], []
    for length in lengths:
        first = asking("first", 500, 300)
        last = asking("last", length - 100, 90, 10)
        run = _serve([first, last], num_blocks=2 + length // 256)
        delays.append(known(run.summary.itl_units.max))
        prefills = [it for work in run.works for it in work.prefills if it.id == "last"]
        again.append(prefills[-1].reused)
        rows.append((prefills[-1].tokens, prefills[-1].reused, shown(delays[-1])))
    ratio = [delay / row[0] for delay, row in zip(delays, rows, strict=True)]
    return Measured(
        name="Evictions",
        columns=("tokens at eviction", "found in the cache", "delay in units"),
        rows=rows,
        claims={
            "The delay is in proportion to the tokens at eviction, within 10 %.": (
                max(ratio) < 1.1 * min(ratio)
            ),
            "The longer the evicted sequence, the longer the delay.": rises(delays),
            "The cache reduces what is computed again.": all(again),
            "A victim computes its whole prompt and all generated tokens again.": not any(again),
        },
    )


def waste() -> Measured:
    """Requests of 7 and 6 tokens with 4 in common; then 1,000 requests with a prompt of 256."""
    runs = [
        _serve(
            [asking("a", 7, 1, shared=4 * it), asking("b", 6, 1, 50, shared=4 * it)], block_size=2
        )
        for it in (0, 1)
    ]
    many = [asking(f"user {place}", 300, 1, 2 * place, shared=256) for place in range(1_000)]
    served = _serve(many)
    reused, asked = served.summary.reused_tokens, sum(request.prompt_len for request in many)
    alone, shared = (run.computed for run in runs)
    share = f"{(alone - shared) / alone:.0%}"
    return Measured(
        name="Waste",
        columns=("requests", "computed without sharing", "computed with sharing", "saved"),
        rows=[
            ("two", alone, shared, f"{alone - shared}, {share}"),
            ("1,000", f"{asked:,}", f"{served.computed:,}", f"{asked - served.computed:,}"),
        ],
        claims={
            "Of 13 tokens 4 are wasted, 31 %.": (alone, shared, share) == (13, 9, "31%"),
            "Every request but the first hits the prompt of 256 tokens.": reused == 256 * 999,
            "10,000 requests an hour waste 2,560,000 tokens, within 1 %.": (
                abs(10 * (asked - served.computed) / 2_560_000 - 1) < 0.01
            ),
        },
    )


def admissions() -> Measured:
    """Eight prompts of 2,048 tokens at once, a budget of 4,096: how many begin in one step."""
    readings = (
        ("nothing cached", 0, "full_length"),
        ("1,536 cached, as released", 1_536, "full_length"),
        ("1,536 cached, as in the text", 1_536, "new_tokens"),
    )
    rows = []
    for name, cached, gate in readings:
        prompts = [asking(f"prompt {place}", 2_048, 1, 100, shared=cached) for place in range(8)]
        requests = [asking("before", 1_800, 1, shared=cached), *prompts]
        run = _serve(requests, max_num_batched_tokens=4_096, token_gate=gate)
        rows.append((name, max(len(step.scheduled) for step in run.steps)))
    without, released, text = (count for _, count in rows)
    return Measured(
        name="Admissions",
        columns=("prompts", "begin in one step"),
        rows=rows,
        claims={
            "Hits let more requests begin in one step.": released > without,
            "As released, skipped tokens do not count against the budget.": released == text,
        },
    )


MEASURED: tuple[Callable[[], Measured], ...] = (*(hits, admissions, pool, evictions, waste),)
