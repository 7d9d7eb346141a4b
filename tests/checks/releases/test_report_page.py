"""The report page of a campaign: every defect with its reproduction."""

# ruff: noqa: E501 - the pages

from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

from checks.harness.campaigns.campaign import Campaign, Plan, run_batch
from checks.harness.campaigns.guiding import Start
from checks.harness.comparison import Terms
from checks.harness.system import System
from checks.releases.filing import filed_known, filed_rules
from checks.releases.report_page import page_lines
from spec.spyre.config import released_2_6_3
from tests.checks.command import lockstep
from tests.checks.harness.cases import There
from tests.checks.harness.driver.files import faulty_driver
from tests.checks.policies.spyre.driver import OLDER, freed_to_the_end
from tests.checks.policies.spyre.driver import driver as spyre_driver
from tests.checks.policies.vllm_v1.driver import RELEASED
from tests.checks.policies.vllm_v1.driver import driver as vllm_v1_driver
from tests.recorded.scenes import SCENES


def test_what_no_table_knows_is_filed_with_its_small_case(tmp_path: Path) -> None:
    faulty_driver(tmp_path, "last come first served")

    ran = lockstep("conform", "mine.py", "--episodes", 5, "--report", "page.md")

    page = Path("page.md").read_text(encoding="utf-8")
    assert ran.code == 1
    assert page[page.index("## Not known") :] == snapshot("""\
## Not known: 1

### 1. SPY-PRI-5 is broken: Requests are admitted in the order of their arrival.

- release: toy 1.0
- met: in 2 episodes, first in episode 0 of seed 0
- shows in: step 0 of the case below
- found in step 0: 1 admitted before 0
- the reference followed SPY-ADM-1 (admit of 0): A request is admitted only into a free slot of the running batch. (spyre, First-chunk constraints, Batch capacity)
- the reference followed SPY-RES-2 (reserve of 0): An admitted request holds, or is promised, all blocks that it may ever need. (sendnn-inference 2.6.3, block reservation)
- the reference followed SPY-CHK-1 (allocate of 0): A prefill step computes one chunk and no more. (spyre, Chunked Prefill)
- the reference followed SPY-CHK-3 (chunk of 0): The active chunk is given by the tokens already computed, offset by the left padding. (spyre, Chunked Prefill)

| field | expected | template |
| --- | --- | --- |
| scheduled 0 | `1` | - |
| scheduled 1 | - | `1` |
| outputs 0 | `[41623]` | - |
| outputs 1 | - | `[4849]` |
| finished | `["0"]` | `["1"]` |
| prefilling.id | `"0"` | `"1"` |
| waiting | `["1"]` | `["0"]` |

    block_size=16 chunk_size=256 max_model_len=256 max_num_seqs=1 max_batch_tkv_limit=1000000 interleave=false prefix_caching=false
    {"id":"0","arrival":0,"prompt_len":1,"max_tokens":1}
    {"id":"1","arrival":0,"prompt_len":1,"max_tokens":1}

This input is possible:

- before step 0 `add_request` hands over 0, 1

Arrivals and aborts come between two steps, in this order.

Again: `lockstep conform mine.py --case findings/template-divergence-scheduled-976956a6.jsonl`, without the release with
`--recorded`.

## Known: 0

""")


def first_with(
    system: System, known: str, pinned: dict[str, Any], terms: Terms | None = None
) -> Campaign:
    """A campaign up to the first random case with the known difference."""
    plan = Plan(There(system), terms=terms or Terms(), pinned=pinned)
    return next(
        report
        for report in (run_batch(plan, [Start(n)]) for n in range(500))
        if known in report.examples
    )


def test_a_known_difference_is_filed_with_how_often_it_was_met_and_why() -> None:
    system = spyre_driver(OLDER, fault=freed_to_the_end)
    seen = first_with(system, "SND-4", as_released(max_model_len=64, block_size=4))

    filed = list(filed_known(seen, "sendnn", Path("findings")))

    page = "\n".join(page_lines(seen, [], filed))
    assert page[page.index("## Known") :] == snapshot("""\
## Known: 1

### SND-4. without prefix caching freed blocks go to the end of the free list

- release: sendnn-inference 2.6.1 on vLLM 0.27.1
- met: in 1 episode, first in episode 7 of seed 0
- shows in: step 1 of the case below
- because: vLLM 0.27.1 looks whether caching is on before it puts blocks without content in front; 0.25.1 and 0.28.0 put them in front in any case
- BLK-4 is broken: Blocks are handed out from the head of the free list; of the blocks given back, those without cached content come next, those with it last, a table's tail first.
- found in step 1: free list [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 1], expected [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
- the reference followed SPY-DEC-1 (decode of the batch): In a decode step every decoding request computes one token and samples one. (spyre, Decode padding)
- the reference followed LIF-3 (finish of 0): A request finishes once: with max_tokens tokens, or when it samples the end of sequence. (spyre, Overview)

| field | expected | sendnn |
| --- | --- | --- |
| free_list | `[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]` | `[2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,1]` |

    block_size=4 chunk_size=4 max_model_len=64 max_num_seqs=1 max_batch_tkv_limit=2 prefix_caching=false admission=shipped queue=overtaking pausing=true reading=released
    {"id":"0","arrival":0,"prompt_len":1,"max_tokens":2}

This input is possible:

- before step 0 `add_request` hands over 0

The order is that of `EngineCore.step`: `schedule`, `execute_model`, `sample_tokens`, aborts that came meanwhile, `update_from_output`. Arrivals, and aborts that came while nothing ran, are taken from the input queue between two steps.

Again: `lockstep conform sendnn --case findings/sendnn-divergence-snd-4-5a276bc8.jsonl`, without the release with
`--recorded`.

Not met in this campaign: SND-3, SND-5.\
""")


def as_released(**sizes: int) -> dict[str, Any]:
    config = released_2_6_3()
    keys = ("admission", "queue", "reservation", "interleave", "pausing", "reading")
    return {key: getattr(config, key) for key in keys} | sizes


def page_of_vllm_v1(scene: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The report page of a campaign whose first episode is the scene."""
    system = vllm_v1_driver(RELEASED)
    plan = Plan(There(system))
    monkeypatch.setattr(Plan, "case", lambda _plan, _episode: SCENES[scene].case)
    seen = run_batch(plan, [Start(0)])
    filed = list(filed_rules(seen, "vllm-v1", Path("findings")))
    assert all(defect.recording.terms.rules_only for defect in filed)
    return "\n".join(page_lines(seen, [], filed))


def test_what_a_connector_did_stands_with_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of_vllm_v1("unwritten", monkeypatch)

    titles = [line.split(".")[0] for line in page.splitlines() if line.startswith("### ")]
    assert titles == ["### V1-KV-10", "### V1-KV-12", "### device: read unwritten"]
    section = page[page.index("### V1-KV-12.") :]
    assert "- met: in 1 step, first in episode 0 of seed 0\n" in section
    assert '    {"external":{"a":{"tokens":8,"every":1,"fails":true}}}\n' in section
    assert "- in step 0 the keys and values of a turn out not to come\n" in section


def test_an_episode_without_an_end_is_filed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of_vllm_v1("all_loaded", monkeypatch)

    section = page[page.index("### endless.") :]
    assert "- met: in 1 episode, first in episode 0 of seed 0\n" in section
    assert "- before step 1 the keys and values of a, b have come\n" in section
