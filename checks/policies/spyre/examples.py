"""Spyre's examples: chunks, padding and jumps, interleaving, admission, prefix hits, pausing."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from attrs import evolve, frozen

from checks.export.examples import Example, Steps, happened_events, request
from spec.core.records import DECODE, PREFILL
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import peak_tkv
from spec.spyre.variants import Admission

# --- prompts in chunks ----------------------------------------------------------------------------

_PUBLISHED = SpyreConfig(
    block_size=64, chunk_size=128, max_model_len=512, max_num_seqs=4, max_batch_tkv_limit=1024
)


def _chunks(steps: Steps) -> list[tuple[int, ...]]:
    """For each chunk: left and right padding, and the range of its tokens."""
    chunks = [step.chunk for step in steps if step.chunk]
    return [(chunk.left_padding, chunk.right_padding, chunk.start, chunk.end) for chunk in chunks]


CHUNKS = Example(
    name="chunks",
    title="A prompt of 302 tokens in three chunks",
    says="64 tokens of padding stand on the left and 18 on the right. So three chunks of 128 tokens"
    " are full, and the last block holds a token.",
    config=_PUBLISHED,
    requests=(request("0", 302, 3),),
    shows=lambda steps: _chunks(steps) == [(64, 18, 0, 64), (64, 18, 64, 192), (64, 18, 192, 302)],
)

SINGLE_CHUNK = Example(
    name="single-chunk",
    title="A prompt of 15 tokens in one chunk",
    says="A block of padding stands on the left. Of the other block 15 places are filled and 49 are"
    " padding.",
    config=_PUBLISHED,
    requests=(request("0", 15, 3),),
    shows=lambda steps: _chunks(steps) == [(64, 49, 0, 15)],
)

# --- the decode batch -----------------------------------------------------------------------------

_SMALL: dict[str, Any] = {
    "block_size": 2,
    "chunk_size": 4,
    "max_num_seqs": 3,
    "prefix_caching": False,
}

JUMPS = Example(
    name="jumps",
    title="A decode batch, and each way in which a tkv jumps",
    says="Rows are padded on the left to the width of the longest. A row that crosses into a new"
    " block loses padding (SPY-TKV-3) or pushes the others (SPY-TKV-4). A long row that leaves"
    " takes the padding with it (SPY-TKV-5), one that joins brings it (SPY-TKV-7).",
    config=SpyreConfig(
        block_size=4,
        chunk_size=8,
        max_model_len=40,
        max_num_seqs=3,
        max_batch_tkv_limit=96,
        prefix_caching=False,
    ),
    requests=(request("0", 3, 11), request("1", 10, 6), request("2", 6, 12)),
    at=5,
    shows=lambda steps: (
        {event.rule for event in happened_events(steps, "jump_tkv")}
        == {"SPY-TKV-3", "SPY-TKV-4", "SPY-TKV-5", "SPY-TKV-7"}
    ),
)

PUBLISHED_JUMPS = Example(
    name="published-jumps",
    title="The published decode batch",
    says="Prompts of 264, 45 and 115 tokens that end with their 62nd, 71st and 67th token. The"
    " limit is 2,048: with the published 1,024 they would not fit, since three rows reach 366.",
    config=evolve(_PUBLISHED, max_batch_tkv_limit=2048),
    requests=tuple(
        Request(id=id_, prompt=Prompt.of_stream(id_, tokens), max_tokens=100, output_len=output)
        for id_, tokens, output in (("0", 264, 62), ("1", 45, 71), ("2", 115, 67))
    ),
    at=7,
    shows=lambda steps: max(step.tkv for step in steps if len(step.scheduled) == 3) == 366,
)

PUBLISHED_CONSTRAINTS = Example(
    name="published-constraints",
    title="The published run with every constraint on admission",
    says="Eight requests under the text's rules. Request 1 waits with two of three chunks done"
    " until request 0 has left, request 4 until request 2 has left, requests 6 and 7 for a slot.",
    config=evolve(_PUBLISHED, max_batch_tkv_limit=1536, admission=Admission.DOCUMENTED),
    # Id, arrival, prompt, max_tokens and output_len, in tokens.
    requests=tuple(
        Request(
            id=id_,
            arrival=arrival,
            prompt=Prompt.of_stream(id_, tokens),
            max_tokens=most,
            output_len=output,
        )
        for id_, arrival, tokens, most, output in (
            *(("0", 0, 40, 300, 20), ("1", 0, 260, 40, 40), ("2", 4, 410, 100, 14)),
            *(("3", 17, 70, 80, 44), ("4", 21, 105, 15, 8), ("5", 46, 10, 200, 40)),
            *(("6", 46, 120, 100, 20), ("7", 46, 130, 40, 12)),
        )
    ),
    at=34,
    shows=lambda steps: (
        {step.refusal for step in steps}
        == {None, "SPY-PRI-3", "SPY-LEN-2", "SPY-VOL-2", "SPY-ADM-1"}
    ),
)

INTERLEAVING = Example(
    name="interleaving",
    title="A long prompt between decode steps",
    says="While request 0 decodes, a decode step follows each chunk of request 1 (SPY-PRI-3).",
    config=SpyreConfig.from_mapping(_SMALL | {"max_model_len": 32, "max_batch_tkv_limit": 200}),
    requests=(request("0", 3, 12), request("1", 18, 3, arrival=2)),
    at=3,
    shows=lambda steps: (
        [step.kind for step in steps[2:12]] == [PREFILL, DECODE] * 5
        and all((step.kind, other.kind) != (PREFILL, PREFILL) for step, other in pairwise(steps))
    ),
)

# --- admission ------------------------------------------------------------------------------------


def _two_requests(admission: str, name: str, says: str, **more: Any) -> Example:
    """The two requests of the documented rule's counterexample, under one of the three rules."""
    limits = {"max_model_len": 16, "max_batch_tkv_limit": 6, "admission": admission}
    return Example(
        name=name,
        title=f"Two requests under the {admission} rule",
        says=says,
        config=SpyreConfig.from_mapping(_SMALL | limits),
        requests=(request("0", 1, 4), request("1", 1, 2)),
        **more,
    )


def _waits(steps: Steps, rule: str) -> bool:
    """True if the second request waits in steps 2 and 3 for this rule, and no step has more."""
    refusals = [step.refusal for step in steps[2:4]]
    return refusals == [rule, rule] and max(step.volume for step in steps) == 4


DOCUMENTED = _two_requests(
    "documented",
    name="documented",
    says="Request 1 is let in, and step 3 has volume 2 x 4 = 8 where the limit is 6.",
    at=3,
    shows=lambda steps: (steps[3].tkv, steps[3].volume) == (4, 8),
)
DOCUMENTED_EXACT = _two_requests(
    "exact",
    name="documented-exact",
    says="Request 1 waits in steps 2 and 3 (SPY-VOL-4), and no step has more than volume 4.",
    at=2,
    shows=lambda steps: _waits(steps, "SPY-VOL-4"),
)
DOCUMENTED_SHIPPED = _two_requests(
    "shipped",
    name="documented-shipped",
    says="Request 1 waits in steps 2 and 3 (SPY-VOL-3), and no step has more than volume 4.",
    at=2,
    shows=lambda steps: _waits(steps, "SPY-VOL-3"),
)


def _three_requests(admission: str, name: str, says: str, **more: Any) -> Example:
    """Three requests: the documented rule refuses one rightly and admits one wrongly."""
    limits = {"max_model_len": 16, "max_batch_tkv_limit": 11, "admission": admission}
    return Example(
        name=name,
        title=f"Three requests under the {admission} rule",
        says=says,
        config=SpyreConfig.from_mapping(_SMALL | limits),
        requests=(request("0", 1, 6), request("1", 3, 6), request("2", 1, 2)),
        **more,
    )


def _refusals(steps: Steps) -> dict[int, str]:
    return {step.index: step.refusal for step in steps if step.refusal}


LATER = _three_requests(
    "documented",
    name="later",
    says="In step 5 request 1 is kept waiting (SPY-VOL-2). In step 8 request 2 is let in, and"
    " step 9 has volume 2 x 6 = 12 where the limit is 11.",
    at=5,
    shows=lambda steps: (
        _refusals(steps)
        == {1: "SPY-PRI-3", **dict.fromkeys(range(2, 6), "SPY-VOL-2"), 7: "SPY-PRI-3"}
        and (steps[8].chunk.id, steps[9].tkv, steps[9].volume) == ("2", 6, 12)
    ),
)
LATER_EXACT = _three_requests(
    "exact",
    name="later-exact",
    says="In step 5 request 1 waits as well (SPY-VOL-4). In step 8 request 2 is kept waiting, too,"
    " until request 1 has left, and no step has more than volume 8.",
    at=5,
    shows=lambda steps: (
        {**_refusals(steps), 1: "SPY-VOL-4", 7: "SPY-VOL-4"}
        == dict.fromkeys([*range(1, 6), *range(7, 12)], "SPY-VOL-4")
        and max(step.volume for step in steps) == 8
    ),
)

_WORST_CASE = SpyreConfig(
    block_size=8,
    chunk_size=16,
    max_model_len=128,
    max_num_seqs=4,
    max_batch_tkv_limit=200,
    prefix_caching=False,
    interleave=False,
)


@frozen
class _Departure:
    """The numbers that `exact` computes for one departure, after all requests have joined.

    `steps`: the first and the last step that it covers; a request leaves in the last. `rows`: the
    number of rows that live until then. `peak`: the largest tkv until then, in tokens.
    """

    steps: tuple[int, int]
    rows: int
    peak: int

    @property
    def compared(self) -> int:
        """The number that is compared with the limit, in tokens."""
        return self.rows * self.peak


def _departures(steps: Steps) -> list[_Departure]:
    """The departures in their order, from the first decode step on."""
    first = next(step for step in steps if step.kind == DECODE)
    # Tokens of each row before the first decode step, and how many steps it still has.
    rows = [
        (row.computed, sum(row.id in step.outputs for step in steps[first.index :]))
        for row in first.before.decoding
    ]
    departures: list[_Departure] = []
    for left in sorted({left for _, left in rows}):
        alive = [tokens for tokens, steps_left in rows if steps_left >= left]
        begin = departures[-1].steps[1] + 1 if departures else first.index
        peak = peak_tkv(alive, left, _WORST_CASE.block_size)
        departures.append(_Departure((begin, first.index + left - 1), len(alive), int(peak)))
    return departures


def _compared(steps: Steps) -> Mapping[int, int]:
    return {departure.steps[1]: departure.compared for departure in _departures(steps)}


def _until(steps: Steps, departure: _Departure) -> Steps:
    first, last = departure.steps
    return steps[first : last + 1]


def _reached(steps: Steps) -> Mapping[int, int]:
    """For each departure, the first step whose volume equals its number, and that number."""
    return {
        index: departure.compared
        for departure in _departures(steps)
        for index in [
            step.index for step in _until(steps, departure) if step.volume == departure.compared
        ][:1]
    }


def _covers(steps: Steps) -> bool:
    """True if no step exceeds the next departure's number, and each number is attained."""
    departures = _departures(steps)
    below = all(
        step.volume <= departure.compared
        for departure in departures
        for step in _until(steps, departure)
    )
    return below and len(departures) == len(_reached(steps)) == 4


def _reached_in_both_ways(steps: Steps) -> bool:
    """True if a number is reached where a row fills its block, and one in a last step only."""
    reached = _reached(steps)
    fills = [steps[index].tkv % _WORST_CASE.block_size == 0 for index in reached]
    is_last = [index in _compared(steps) for index in reached]
    return [*zip(fills, is_last, strict=True)] == [(True, False)] * 3 + [(False, True)]


def _worst_case(name: str, title: str, says: str, **more: Any) -> Example:
    """The four requests of the pictures of the exact rule."""
    return Example(
        name=name,
        title=title,
        says=says,
        config=_WORST_CASE,
        requests=(
            *(request("0", 12, 14), request("1", 30, 34)),
            *(request("2", 5, 42), request("3", 20, 24)),
        ),
        **more,
    )


WORST_CASE = _worst_case(
    "worst-case",
    title="Four requests, each generating all that it may",
    says="The line is the volume of each step. The dots are the four numbers that exact compares"
    " with the limit, one for each departure. No step until then is higher, and some step is as"
    " high.",
    shows=_covers,
    marks=_compared,
)
WORST_CASE_ROWS = _worst_case(
    "worst-case-rows",
    title="How many rows decode",
    says="The line is the number of requests in each step, the boxes are what is counted for the"
    " departure at their right end. From the first decode step on they are the same.",
    meter="batch",
    shows=lambda steps: all(
        len(step.batch) == departure.rows
        for departure in _departures(steps)
        for step in _until(steps, departure)
    ),
    levels=lambda steps: {departure.steps: departure.rows for departure in _departures(steps)},
)
WORST_CASE_PEAKS = _worst_case(
    "worst-case-peaks",
    title="How far the rows reach",
    says="The line is the max-tkv of each step, the boxes are the peak until the departure at their"
    " right end. No step rises above its box.",
    meter="tkv",
    shows=lambda steps: all(
        step.tkv <= departure.peak
        for departure in _departures(steps)
        for step in _until(steps, departure)
    ),
    levels=lambda steps: {departure.steps: departure.peak for departure in _departures(steps)},
)
WORST_CASE_COVERED = _worst_case(
    "worst-case-covered",
    title="Rows times peak",
    says="The line is the volume of each step, the boxes are rows times peak: what exact compares"
    " with the limit. No step rises above its box, so it is enough to compare the boxes.",
    meter="volume",
    shows=_covers,
    levels=lambda steps: {departure.steps: departure.compared for departure in _departures(steps)},
)
WORST_CASE_REACHED = _worst_case(
    "worst-case-reached",
    title="A step that is as high as its box",
    says="The dots are the first steps that are as high as a box. In three of them a row fills its"
    " block: max-tkv is a multiple of 8. In the last box no row does, and its last step is the"
    " highest.",
    meter="volume",
    shows=_reached_in_both_ways,
    levels=lambda steps: {departure.steps: departure.compared for departure in _departures(steps)},
    marks=_reached,
)

# --- prefix caching, pausing ----------------------------------------------------------------------

_CACHING = SpyreConfig(
    block_size=64, chunk_size=256, max_model_len=2048, max_num_seqs=4, max_batch_tkv_limit=2048
)


def _begins_like(id_: str, max_tokens: int, arrival: int, *parts: tuple[str, int]) -> Request:
    prompt = Prompt.of_parts(parts)
    return Request(id=id_, prompt=prompt, max_tokens=max_tokens, arrival=arrival)


PREFIX = Example(
    name="prefix",
    title="A prompt that begins like an earlier one",
    says="The new request shares its first 921 tokens. Chunks that are cached as a whole are"
    " skipped. The chunk at the boundary is computed in full: it reads its cached blocks, and"
    " writes in their place to block 0 (SPY-PFX-5).",
    config=_CACHING,
    requests=(
        _begins_like("Cached", 2, 0, ("common", 921), ("first", 389)),
        _begins_like("New", 3, 8, ("common", 921), ("second", 398)),
    ),
    at=8,
    shows=lambda steps: steps[8].chunk.cached_tokens > 0 and steps[8].chunk.inner_padding > 0,
)

WHOLE_PREFIX = Example(
    name="whole-prefix",
    title="The same prompt again, of seven whole blocks",
    says="Everything is cached, and still the last chunk is computed: it yields the first token"
    " (SPY-PFX-4).",
    config=_CACHING,
    requests=(
        _begins_like("Cached", 2, 0, ("common", 448)),
        _begins_like("New", 3, 4, ("common", 448)),
    ),
    at=4,
    shows=lambda steps: (
        steps[4].chunk.cached_tokens > 0 and steps[4].chunk.end == 448 and "New" in steps[4].outputs
    ),
)


def _goes_on_from_an_answer() -> tuple[Request, ...]:
    """A request, and one whose prompt is the first one's prompt and 380 tokens of its answer."""
    prompt = Prompt.of_stream("common", 699)
    first = Request(id="Cached", prompt=prompt, max_tokens=382)
    answer = first.output_tokens(380)
    longer = Prompt.of_tokens([*prompt.tokens(), *answer, *range(30)])
    return first, Request(id="New", prompt=longer, max_tokens=3, arrival=500)


ANSWER = Example(
    name="answer",
    title="A prompt that goes on from an answer",
    says="699 tokens of the prompt and 380 of the answer come again, 16 whole blocks. Of their"
    " 1,024 tokens 896 are read from the cache, and 128 are redirected at the boundary.",
    config=_CACHING,
    requests=_goes_on_from_an_answer(),
    at=500,
    shows=lambda steps: any(
        (chunk.id, chunk.cached_tokens, chunk.inner_padding) == ("New", 896, 128)
        for step in steps
        if (chunk := step.chunk)
    ),
)

PAUSING = Example(
    name="pausing",
    title="Requests take turns",
    says="Three rows fit until step 5. From then on some are paused (SPY-PAU-2). The longest paused"
    " decode first (SPY-PAU-3), and what they hold stays theirs.",
    config=SpyreConfig.from_mapping(
        _SMALL
        | {"max_model_len": 16, "max_batch_tkv_limit": 18, "admission": "shipped"}
        | {"queue": "overtaking", "pausing": True}
    ),
    requests=(request("0", 3, 9), request("1", 3, 9), request("2", 2, 9)),
    at=6,
    shows=lambda steps: (
        bool(happened_events(steps[6:7], "pause"))
        and not happened_events(steps[:6], "pause")
        and bool(happened_events(steps[7:8], "resume"))
        and all(step.volume <= 18 for step in steps)
    ),
)

# --- Spyre in one page ----------------------------------------------------------------------------

_ONE_PAGE = SpyreConfig(
    block_size=4, chunk_size=8, max_model_len=32, max_num_seqs=3, max_batch_tkv_limit=36
)

ONE_PAGE = Example(
    name="one-page",
    title="Three requests, step by step",
    says="B's prompt takes two chunks with a decode step between them. C waits for the volume"
    " limit. In step 7 B crosses into a fourth block, A is padded, and tkv jumps from 12 to 15.",
    config=_ONE_PAGE,
    requests=(request("A", 6, 8), request("B", 10, 5), request("C", 5, 4)),
    at=7,
    shows=lambda steps: [step.tkv for step in steps[6:8]] == [12, 15],
)

ONE_PAGE_PREFIX = Example(
    name="one-page-prefix",
    title="A prompt whose first ten tokens are cached",
    says="Two whole blocks are found. The first chunk is skipped; the second is computed in full,"
    " reads the cached block in it and writes over none.",
    config=_ONE_PAGE,
    requests=(
        _begins_like("X", 2, 0, ("common", 10), ("first", 8)),
        _begins_like("Y", 2, 4, ("common", 10), ("second", 8)),
    ),
    at=4,
    shows=lambda steps: (
        _cached(steps) == [("X", 0, 0), ("X", 0, 0), ("X", 0, 0), ("Y", 4, 4), ("Y", 4, 4)]
    ),
)


def _cached(steps: Steps) -> list[tuple[str, int, int]]:
    """For each chunk: its request, the reused tokens, and the redirected tokens."""
    chunks = [step.chunk for step in steps if step.chunk]
    return [(chunk.id, chunk.cached_tokens, chunk.inner_padding) for chunk in chunks]


EXAMPLES = (
    *(
        CHUNKS,
        SINGLE_CHUNK,
        JUMPS,
        PUBLISHED_JUMPS,
        PUBLISHED_CONSTRAINTS,
        INTERLEAVING,
        DOCUMENTED,
        DOCUMENTED_EXACT,
        DOCUMENTED_SHIPPED,
    ),
    *(LATER, LATER_EXACT),
    *(WORST_CASE, WORST_CASE_ROWS, WORST_CASE_PEAKS, WORST_CASE_COVERED, WORST_CASE_REACHED),
    *(PREFIX, WHOLE_PREFIX, ANSWER, PAUSING),
    *(ONE_PAGE, ONE_PAGE_PREFIX),
)
