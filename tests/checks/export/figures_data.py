"""The published figures: the runs behind them, and what we read off them, in our own words.

The numbers here were written down from the figures, so that the tests prove something without
the published files too.
"""

from collections.abc import Sequence

from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from tests.checks.export.runs import Run, configured, run_of
from tests.requests import request


def small_config(max_batch_tkv_limit: int) -> SpyreConfig:
    """The header of three of the four figures."""
    return configured(64, 128, 512, max_num_seqs=4, max_batch_tkv_limit=max_batch_tkv_limit)


def prefill_figure(prompt_len: int) -> Run:
    return run_of(small_config(1024), request("0", prompt_len, max_tokens=3))


# The published header says 1024. The New Request alone may grow to 1,818 tokens of tkv, and the
# three rows of the tkv-jump figure have 3 x 367: no scheduler that keeps the limit serves either.
LIMIT_THAT_ADMITS = 2048


def prefix_figure() -> Run:
    """The second request comes when the first has left its blocks in the cache."""
    config = configured(64, 256, 2048, max_num_seqs=4, max_batch_tkv_limit=LIMIT_THAT_ADMITS)
    cached = Prompt.of_parts([("common", 921), ("only the first", 389)])
    new = Prompt.of_parts([("common", 921), ("only the second", 398)])
    return run_of(
        config,
        Request(id="Cached Request", prompt=cached, max_tokens=86),
        Request(id="New Request", prompt=new, max_tokens=500, arrival=100),
    )


def whole_prompt_figure() -> Run:
    """Prefix caching, second figure: the same prompt again, of seven whole blocks."""
    config = configured(64, 256, 2048, max_num_seqs=4, max_batch_tkv_limit=LIMIT_THAT_ADMITS)
    prompt = Prompt.of_stream("common", 448)
    return run_of(
        config,
        Request(id="Cached Request", prompt=prompt, max_tokens=300),
        Request(id="New Request", prompt=prompt, max_tokens=500, arrival=400),
    )


def answer_figure() -> Run:
    """Prefix caching, third figure: a prompt that goes on from 380 tokens of an answer."""
    config = configured(64, 256, 2048, max_num_seqs=4, max_batch_tkv_limit=LIMIT_THAT_ADMITS)
    first = Request(id="Cached Request", prompt=Prompt.of_stream("common", 699), max_tokens=452)
    answer = [first.output_token(index) for index in range(380)]
    prompt = Prompt.of_tokens([*first.prompt.tokens(), *answer, *range(30)])
    new = Request(id="New Request", prompt=prompt, max_tokens=500, arrival=500)
    return run_of(config, first, new)


def tkv_jump_figure() -> Run:
    """Three requests that end early: with their 62nd, 71st and 67th token."""
    return run_of(
        small_config(LIMIT_THAT_ADMITS),
        request("0", 264, max_tokens=100, output_len=62),
        request("1", 45, max_tokens=100, output_len=71),
        request("2", 115, max_tokens=100, output_len=67),
    )


TKV_JUMP_LINES = 69  # decode lines; the figure begins with the first in which all three decode

# By line, from 0: what moves by anything but +1, as (id, tkv in the line before, tkv).
TKV_JUMPS: dict[int, list[tuple[str, int, int]]] = {
    12: [("2", 320, 257)],
    17: [("1", 320, 257)],
    53: [("1", 292, 357), ("2", 297, 362)],
    59: [("1", 362, 171), ("2", 367, 176)],
    66: [("1", 177, 114)],
}
TKV_JUMP_ENDS = {58: ["0"], 65: ["2"], 68: ["1"]}
# (tkv, padding) of the rows 0, 1 and 2 in the first line, and of the one row in the last.
TKV_JUMP_FIRST: Sequence[tuple[int, int]] = [(268, 0), (304, 256), (309, 192)]
TKV_JUMP_LAST: Sequence[tuple[int, int]] = [(116, 0)]
