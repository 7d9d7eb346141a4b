"""The pictures of every policy show its state."""

import json
from typing import Any

import pytest

from checks.export.pages.document import MOST_INLINE, document_of, unpacked
from checks.export.pages.picture import ranges
from checks.harness.case import Case
from checks.harness.runs.serving import served
from checks.harness.views.live import Live, offer
from checks.harness.views.showing import Shown, document_of_steps
from checks.registry import POLICIES, claims_of
from spec.core.configuration import PolicyConfig
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import NanoVllmConfig
from spec.spyre.config import SpyreConfig
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v1.config import VllmV1Config

Json = dict[str, Any]


def request(id_: str, prompt: int | Prompt, max_tokens: int, **more: Any) -> Request:
    own = Prompt.of_stream(id_, prompt) if isinstance(prompt, int) else prompt
    return Request(id=id_, prompt=own, max_tokens=max_tokens, **more)


def situations(config: PolicyConfig, *requests: Request) -> list[Json]:
    """The situations of a run of the reference, one for each step."""
    case = Case(config, requests)
    ctx = claims_of(config.policy).context_of(config, requests)
    return [frame[0] for frame in document_of_steps(ctx, served(case), title="")["frames"]]


def numbers(text: str) -> list[int]:
    """The numbers in a text of ranges; inverse of `ranges`."""
    runs = [[*map(int, run.split("-"))] for run in text.split(",") if text]
    return [number for run in runs for number in range(run[0], run[-1] + 1)]


def cells(row: Json) -> list[tuple[str, str]]:
    return [(cell["kind"], cell.get("blocks", cell.get("count"))) for cell in row["cells"]]


SPYRE = SpyreConfig(
    block_size=4, chunk_size=8, max_model_len=32, max_num_seqs=3, max_batch_tkv_limit=32
)


def test_ranges_keep_the_order() -> None:
    assert ranges([3, 7, 8, 9, 4, 3]) == "3,7-9,4,3"
    assert numbers("3,7-9,4,3") == [3, 7, 8, 9, 4, 3]
    assert ranges([]) == ""


def test_rows_of_a_decode_batch_end_in_the_same_column_behind_their_padding() -> None:
    shown = situations(SPYRE, request("a", 10, 4), request("b", 3, 4))

    both = next(step for step in shown if step["kind"] == "decode" and len(step["rows"]) == 2)
    by_id = {row["id"]: row for row in both["rows"]}
    assert cells(by_id["b"])[0] == ("padding", "0,0")
    lengths = [
        sum(len(numbers(cell["blocks"])) for cell in row["cells"] if cell["kind"] != "reserved")
        for row in both["rows"]
    ]
    assert lengths == [3, 3]
    assert [meter["name"] for meter in both["meters"]][:2] == ["volume", "tkv"]


def test_a_prompt_is_drawn_padded_and_its_chunk_is_marked() -> None:
    first, *_ = situations(SPYRE, request("a", 10, 2))

    (row,) = first["rows"]
    assert (row["place"], row["note"].split(",")[0]) == ("prefill", "chunk 1 of 2")
    marked = [(cell["kind"], cell.get("now", False)) for cell in row["cells"]]
    assert marked[:2] == [("padding", True), ("own", True)]
    assert ("pending", False) in marked


@pytest.mark.parametrize("max_tokens", [1, 3])
def test_a_finished_request_holds_no_block_any_more(max_tokens: int) -> None:
    last = situations(SPYRE, request("a", 10, max_tokens))[-1]

    (row,) = last["rows"]
    kinds = {cell["kind"] for cell in row["cells"]}
    assert (last["finished"], last["pools"][0]["held"]) == (["a"], "")
    assert "freed" in kinds
    assert not kinds & {"own", "shared", "cached"}


def test_a_refusal_says_which_request_waits_and_why() -> None:
    tight = SpyreConfig(
        block_size=4, chunk_size=8, max_model_len=32, max_num_seqs=3, max_batch_tkv_limit=12
    )

    shown = situations(tight, request("a", 8, 4), request("b", 8, 4))

    refused = [step["refused"] for step in shown if step["refused"]]
    assert {"rule": "SPY-VOL-4", "id": "b"} in refused


def test_changed_numbers_have_what_they_were() -> None:
    shown = situations(SPYRE, request("a", 10, 4))

    decode = next(step for step in shown if step["kind"] == "decode")
    assert decode["rows"][0]["numbers"]["computed"] == [10, 11]
    assert decode["rows"][0]["numbers"]["generated"] == [1, 2]


def test_blocks_that_requests_share_are_shown_shared() -> None:
    prompt = Prompt.of_parts([("system", 8), ("own", 2)])
    config = VllmV1Config(block_size=4, num_blocks=8, max_num_seqs=2, max_model_len=32)

    shown = situations(config, request("a", prompt, 6), request("b", prompt, 6, arrival=1))

    last = next(step for step in shown if len(step["rows"]) == 2)
    assert [cells(row)[0] for row in last["rows"]] == [("shared", "1-2")] * 2
    assert last["pools"][0]["shared"] == [[1, 2], [2, 2]]


def test_the_token_budget_of_vllm_v1_is_a_meter_with_a_part_for_each_request() -> None:
    config = VllmV1Config(
        block_size=4, num_blocks=16, max_num_seqs=4, max_model_len=32, max_num_batched_tokens=6
    )

    shown = situations(config, request("a", 4, 4), request("b", 9, 4))

    assert shown[0]["meters"][0] == {
        "name": "tokens",
        "value": 6,
        "limit": 6,
        "unit": "tokens",
        "parts": [["a", 4], ["b", 2]],
        "over": False,
    }


def test_what_vllm_v0_swaps_out_is_drawn_on_the_cpu() -> None:
    config = VllmV0Config(
        block_size=2,
        num_blocks=4,
        num_cpu_blocks=4,
        max_num_seqs=2,
        max_model_len=8,
        preemption_mode="swap",  # type: ignore[arg-type]
    )

    shown = situations(config, request("a", 3, 4), request("b", 3, 4))

    swapped = [row for step in shown for row in step["rows"] if row["place"] == "swapped"]
    assert {kind for row in swapped for kind, _ in cells(row)} == {"cpu"}
    assert [pool["name"] for pool in shown[0]["pools"]] == ["GPU blocks", "CPU blocks"]


def test_nano_vllm_has_both_queues() -> None:
    config = NanoVllmConfig(
        block_size=2, num_blocks=4, max_num_seqs=2, max_model_len=8, max_num_batched_tokens=8
    )

    (first, *_) = situations(config, request("a", 3, 2), request("b", 3, 2), request("c", 3, 2))

    queues = {queue["name"]: [row["id"] for row in queue["requests"]] for queue in first["queues"]}
    assert queues == {"waiting": ["c"], "running": ["a", "b"]}


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_show_every_held_block_and_a_refused_request_waits_behind_the_step(
    policy: str,
) -> None:
    """In the first situations of a run of every eighth default instance."""
    live, blocks, refusals = Live(), 0, 0
    for instance in json.loads(offer(policy))["instances"][::8]:
        opened = json.loads(live.open(json.dumps(instance)))
        for (shown,) in unpacked(opened["document"])[:40]:
            drawn = {
                block
                for row in shown["rows"]
                for cell in row["cells"]
                if cell["kind"] not in ("padding", "cpu") and "finish" not in row["note"]
                for block in numbers(cell.get("blocks", ""))
            }
            held = set(numbers(shown["pools"][0]["held"]))
            assert held - drawn <= waiting_with_blocks(shown), (instance["title"], shown["label"])
            blocks += len(held)
            if shown["refused"] and shown["refused"]["id"] is not None:
                waiting = [row["id"] for queue in shown["queues"] for row in queue["requests"]]
                prefills = [row["id"] for row in shown["rows"] if row["place"] == "prefill"]
                assert shown["refused"]["id"] in (*waiting, *prefills)
                refusals += 1
    assert blocks > 20
    assert refusals


def waiting_with_blocks(shown: Json) -> set[int]:
    """Blocks of encoders and of requests that wait after a load, which have no rows."""
    waits = any(queue["requests"] for queue in shown["queues"])
    has_cross = shown["pools"][0]["name"] == "GPU blocks"
    return set(numbers(shown["pools"][0]["held"])) if waits or has_cross else set()


def test_a_long_run_is_packed_and_unpacks_to_the_same() -> None:
    requests = [request(str(at), 3, 8, arrival=at * 9) for at in range(40)]
    case = Case(SPYRE, tuple(requests))
    ctx = claims_of(SPYRE.policy).context_of(SPYRE, requests)
    steps = [*served(case)]
    assert len(steps) > MOST_INLINE

    whole = document_of_steps(ctx, steps, title="")
    shown = Shown(ctx)
    few = document_of(ctx, [(shown.moment(step),) for step in steps[:9]], title="")

    assert "frames" not in whole
    assert whole["overview"]["count"] == len(steps) == len(unpacked(whole))
    assert unpacked(whole)[:9] == few["frames"]
    assert few["overview"]["kinds"] == whole["overview"]["kinds"][:9]


def test_measures_have_a_value_or_none_for_every_step() -> None:
    requests = [request("a", 10, 4), request("b", 3, 4)]
    ctx = claims_of(SPYRE.policy).context_of(SPYRE, requests)

    overview = document_of_steps(ctx, served(Case(SPYRE, tuple(requests))), title="")["overview"]

    volume = overview["measures"][0]
    assert (volume["name"], volume["limit"]) == ("volume", 32)
    given = [value is not None for value in volume["values"]]
    assert given == [kind == "d" for kind in overview["kinds"]]
