"""The page that files what a campaign met: every defect with what an engineer needs of it."""

# ruff: noqa: E501 - the pages

from pathlib import Path
from typing import Any

import pytest
from checks.conformance import campaign
from checks.conformance.campaign import Campaign, Met, Plan
from checks.conformance.episode import Terms, run_episode
from checks.conformance.finding import Finding
from checks.fuzz.cases import Case
from checks.fuzz.finding import Kind
from tests.checks.conformance.driver_files import faulty_driver
from tests.checks.conformance.faithful import SENDNN, FaithfulLab
from tests.checks.conformance.faithful_v1 import RELEASED, FaithfulV1Lab

from checks.harness.driver.protocol import Json
from checks.releases.filing import filed_known, filed_rules
from checks.releases.report_page import page_lines
from spec.spyre.config import released_2_6_3
from tests.checks.command import lockstep
from tests.recorded.scenes import SCENES, asks


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


UNKNOWN = """\
## Not known: 1

### 1. scheduled differs

- release: toy 1.0
- met: in 5 episodes, first in episode 0 of seed 0
- shows in: step 0 of the case below
- breaks SPY-PRI-5: Requests are admitted in the order of their arrival. (spyre, Priority rules)

| field | expected | template |
| --- | --- | --- |
| scheduled 0 | `1` | - |
| scheduled 1 | - | `1` |
| outputs 0 | `[41623]` | - |
| outputs 1 | - | `[4849]` |
| finished | `["0"]` | `["1"]` |
| chunk.id | `"0"` | `"1"` |
| after.waiting | `["1"]` | `["0"]` |
| after.finished | `["0"]` | `["1"]` |

    block_size=16 chunk_size=256 max_model_len=256 max_num_seqs=1 max_batch_tkv_limit=1000000 interleave=false prefix_caching=false
    {"id":"0","arrival":0,"prompt_len":1,"max_tokens":1}
    {"id":"1","arrival":0,"prompt_len":1,"max_tokens":1}

This input is possible:

- before step 0 `add_request` hands over 0, 1

Arrivals and aborts come between two steps, in this order.

Again: `lockstep conform mine.py --case findings/template-divergence-scheduled-4631196a.jsonl`, without the release with
`--recorded`.

## Known: 0

"""


def test_what_no_table_knows_is_filed_with_its_small_case(tmp_path: Path) -> None:
    faulty_driver(tmp_path, "last come first served")

    ran = lockstep("conform", "mine.py", "--episodes", 5, "--report", "page.md")

    page = Path("page.md").read_text(encoding="utf-8")
    assert ran.code == 1
    assert page[page.index("## Not known") :] == UNKNOWN


KNOWN = """\
## Known: 1

### SND-1. what is reserved for a request stays reserved when its client leaves between two steps

- release: sendnn-inference 2.6.3 on vLLM 0.28.0
- met: in 1 episode, first in episode 3 of seed 0
- shows in: step 1 of the case below
- because: the list of finished requests is emptied by the next schedule() before the update that gives their reservation back
- breaks count: blocks.reserved, it counts 2, its requests and its pool add up to 0

| field | expected | sendnn |
| --- | --- | --- |
| before.blocks.reserved | `0` | `2` |
| blocks.reserved | `0` | `2` |

    block_size=1 chunk_size=1 max_model_len=3 max_num_seqs=1 prefix_caching=false
    {"id":"0","arrival":0,"prompt_len":1,"max_tokens":2,"abort_at":1}

This input is possible:

- before step 0 `add_request` hands over 0
- before step 1 the client of 0 leaves: `abort_requests`

The order is that of `EngineCore.step`: `schedule`, `execute_model`, `sample_tokens`, aborts that came meanwhile, `update_from_output`. Arrivals, and aborts that came while nothing ran, are taken from the input queue between two steps.

Again: `lockstep conform sendnn --case findings/sendnn-divergence-snd-1-dbcd260a.jsonl`, without the release with
`--recorded`.

Not met in this campaign: SND-2, SND-3."""


def leak(records: list[Json]) -> None:
    """What was reserved for who left stays reserved, as in 2.6.3."""
    promised = sum(row["reserved"] for row in records[0]["decoding"])
    for told in records[1:]:
        for state in (told, told.get("before")):
            if state is not None:
                state["blocks"]["reserved"] += promised


def campaign_of(case: Case, found: Finding, **more: Any) -> Campaign:
    met = Met(3, case, Terms(), found)
    return Campaign((), episodes=4, steps=20, judged=20, examples={found.cause: met}, **more)


def test_a_known_difference_is_filed_with_how_often_it_was_met_and_why() -> None:
    lab = FaithfulLab(SENDNN, fault=leak)
    sizes = {"block_size": 4, "chunk_size": 8, "max_model_len": 32, "max_num_seqs": 2}
    config = released_2_6_3(**sizes, max_batch_tkv_limit=64, num_blocks=12)
    case = Case(config, (asks("a", 3, 17, abort_at=1), asks("b", 2, 1, arrival=4)))
    outcome = run_episode(lab, case, Terms())
    assert outcome.known == "SND-1"
    found = Finding(Kind.DIVERGENCE, outcome.steps, "SND-1", "SND-1")
    seen = campaign_of(case, found)
    seen.known["SND-1"] = 1

    filed = list(filed_known(lab, "sendnn", seen, Path("findings")))

    page = "\n".join(page_lines("sendnn", Plan((), SENDNN), seen, [], filed))
    assert page[page.index("## Known") :] == KNOWN


def test_a_rule_that_is_known_not_to_hold_is_filed_with_a_case_that_breaks_it() -> None:
    lab = FaithfulLab(SENDNN)
    config = released_2_6_3(
        block_size=4, chunk_size=4, max_model_len=14, max_num_seqs=2, max_batch_tkv_limit=64
    )
    case = Case(config, (asks("a", 1, 12), asks("b", 3, 11, arrival=1), asks("c", 1, 1)))
    found = Finding(Kind.BROKEN_RULE, 0, "SPY-LEN-1", "SPY-LEN-1")

    (filed,) = filed_rules(lab, "sendnn", campaign_of(case, found), Path("findings"))

    assert filed.id == "SPY-LEN-1"
    assert filed.says == "No tkv exceeds the model's context length."
    assert len(filed.small.case.requests) == 2
    assert filed.recording.alone


def page_of_vllm_v1(scene: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is filed of the first episode, where the scene is drawn in it."""
    lab, plan = FaithfulV1Lab(RELEASED), Plan((), RELEASED)
    monkeypatch.setattr(campaign, "own_lab", lambda _command: lab)
    monkeypatch.setattr(Plan, "case", lambda _plan, _episode: SCENES[scene].case)
    seen = campaign.run_one(plan, 0)
    filed = list(filed_rules(lab, "vllm-v1", seen, Path("findings")))
    return "\n".join(page_lines("vllm-v1", plan, seen, [], filed))


def test_what_a_connector_did_is_told_with_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
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
