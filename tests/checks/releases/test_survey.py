"""`lockstep survey` with releases that are the template, one of them faulty; the page it writes."""

# ruff: noqa: E501 - the pages

import json
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from checks.harness.case import Case
from checks.harness.comparison import Terms
from checks.harness.finding import Finding, Kind
from checks.releases.survey import Small, chosen
from spec.spyre.config import SpyreConfig
from tests.checks.command import lockstep
from tests.recorded.scenes import asks

pytestmark = pytest.mark.usefixtures("toys")


def test_the_page_names_what_each_release_breaks_and_the_smallest_case() -> None:
    asked = ("survey", "toy", "--versions", "1.0..1.2", "--episodes", 4)
    ran = lockstep(*asked, "--report", "page.md", "--json", "r.json")

    report = json.loads(Path("r.json").read_text(encoding="utf-8"))["releases"]
    assert (ran.code, ran.err) == (1, "not installed: toy==1.0\n")
    assert ran.out == Path("page.md").read_text(encoding="utf-8")
    assert ran.out == snapshot("""\
# What releases of toy break

Versions 1.0..1.2, seed 0. The random cases are judged alone: by the rules, by
the simulated device, and by whether the release counts its own blocks right; nothing is
compared. A number says in how many of them something is broken; *small*: in none of
them, but in a small case that another release led to.

- 1.1: toy 1.0
- 1.2: toy 1.0

| | 1.1 | 1.2 |
| --- | --- | --- |
| random cases | 4 | 4 |
| steps judged | 124 | 123 |
| SPY-PRI-5: Requests are admitted in the order of their arrival. (case 1) | 1 | - |

## The smallest cases

### Case 1. SPY-PRI-5: Requests are admitted in the order of their arrival.

- 1.1, step 0: 1 admitted before 0

    block_size=16 chunk_size=256 max_model_len=256 max_num_seqs=1 max_batch_tkv_limit=1000000 interleave=false prefix_caching=false
    {"id":"0","arrival":0,"prompt_len":1,"max_tokens":1}
    {"id":"1","arrival":0,"prompt_len":1,"max_tokens":1}

Again: `lockstep bisect findings/template-broken-rule-spy-pri-5-976956a6.jsonl --versions 1.0..1.2`
""")
    assert report["1.2"]["broken"] == []
    assert [violation["cause"] for violation in report["1.1"]["broken"]] == ["SPY-PRI-5"]


def test_a_case_of_the_survey_runs_again_alone_and_on_every_release() -> None:
    lockstep("survey", "toy", "--versions", "1.1..1.1", "--episodes", 4)
    case = next(Path("findings").glob("*.jsonl"))

    wrong = lockstep("conform", "toy==1.1", "--case", case)
    recorded = lockstep("conform", "toy==1.1", "--case", case, "--recorded")
    right = lockstep("conform", "toy==1.2", "--case", case)
    both = lockstep("bisect", case, "--driver", "toy", "--versions", "1.1..1.2")

    assert (wrong.code, recorded.code, right.code, both.code) == (1, 1, 0, 1)
    assert wrong.out == recorded.out
    assert "broken rule in step 0: SPY-PRI-5: " in wrong.out
    assert wrong.out.endswith("as recorded\n")
    assert "the file says: " in right.out
    assert "breaks SPY-PRI-5 in step 0" in both.out
    assert "holds in" in both.out


def test_a_survey_goes_on_where_it_stopped_and_equals_its_own_report() -> None:
    asked = ["survey", "toy", "--versions", "1.1..1.2", "--json", "r.json", "--episodes"]

    def report() -> object:
        return json.loads(Path("r.json").read_text(encoding="utf-8"))

    lockstep(*asked, 2)
    at_once = report()
    Path("r.json").rename("earlier.json")
    lockstep(*asked, 1, "--resume", "kept")
    assert {path.name for path in Path().glob("kept*")} == {"kept.1.1", "kept.1.2"}
    lockstep(*asked, 2, "--resume", "kept")
    assert report() == at_once

    assert lockstep(*asked, 2, "--expect", "earlier.json").code == 0
    other = lockstep(*asked, 1, "--expect", "earlier.json")
    assert (other.code, "episodes: found 1; allowed: 2, as there" in other.err) == (2, True)


def test_releases_that_break_nothing_hold() -> None:
    assert lockstep("survey", "toy", "--versions", "1.2..1.2", "--episodes", 1).code == 0


def test_without_any_installed_release_nothing_is_run() -> None:
    ran = lockstep("survey", "toy", "--versions", "1.0..1.0")

    assert (ran.code, ran.out) == (2, "")
    assert "installed releases: lockstep driver install toy" in ran.err


def small(cause: str, *prompts: int) -> Small:
    requests = tuple(asks(str(index), length, 1) for index, length in enumerate(prompts))
    return Small((Kind.BROKEN_RULE, cause), Case(SpyreConfig(), requests), Terms())


def test_of_each_cause_the_case_that_most_releases_show_and_then_the_smallest_is_told() -> None:
    cases = [small("A", 5), small("A", 9), small("A", 7), small("B", 3)]
    found = Finding(Kind.BROKEN_RULE, 0, "A", "")
    everywhere = [{0: found, 1: found, 2: found}, {1: found, 2: found}, {3: found}]

    assert chosen(cases, everywhere) == [2, 3]
    assert chosen(cases, [{0: found}, {1: found}]) == [0, 1]
