"""Pages of rules and instances show everything that the records hold."""

from collections.abc import Iterable
from pathlib import Path

from checks.book.drawing import Films
from checks.book.instances import instance_pages
from checks.book.releases import release_pages
from checks.book.rules import rule_pages
from checks.book.runs import Shown, shown_runs, shown_witnesses, story
from checks.book.source import Page
from checks.evidence import CONFORMED, EXPLORED, recorded
from checks.explore.instance import title_of
from checks.explore.policy import machine_of
from checks.registry import RULES

BROKEN = Shown("SPY-VOL-1", "documented", "batch 2 x tkv 4 = 8, limit 6", "a.jsonl", ("first",))
SPEAKS = Shown("SPY-ADM-1", "exact", "", "b.jsonl", ("step 4",))


def page_texts(pages: Iterable[Page]) -> dict[str, str]:
    return {page.path: page.text for page in pages}


def drawn(run: Shown, name: str) -> str:
    return f"<{name} {run.trace}>"


def test_each_rule_has_a_page_and_each_policy_a_list() -> None:
    pages = page_texts(rule_pages([BROKEN], drawn))

    assert pages.keys() >= {f"rules/{id_}.md" for id_ in RULES}
    assert pages.keys() >= {"rules/spyre.md", "rules/nano-vllm.md", "rules/vllm-v1.md"}


def test_a_refuted_rule_shows_how_it_is_broken_and_by_what_it_is_judged() -> None:
    page = page_texts(rule_pages([BROKEN], drawn))["rules/SPY-VOL-1.md"]

    assert page.startswith("# SPY-VOL-1\n\n> Batch size times max-tkv never exceeds the limit")
    judged = sum("SPY-VOL-1" in entry["rules"] for entry in recorded(EXPLORED).values())
    assert f"refuted in 1 instance of {judged}" in page
    assert "<broken a.jsonl>" in page
    assert "lockstep replay counterexamples/a.jsonl" in page
    assert "`spec/spyre/rules/" in page
    assert "Max batch-tkv limit" in page  # its source
    assert "[documented](../instances/documented.md) (refuted)" in page
    assert "**PRV-VOL**, 1 claim refuted:\n\n- The formula with admission=documented" in page
    assert page.count("| ") < 40  # no table of proofs, which would be wider than its page
    assert "sendnn-inference 2.6.3 on vLLM 0.28.0" in page


def test_a_rule_that_holds_shows_a_step_on_which_it_speaks() -> None:
    page = page_texts(rule_pages([SPEAKS], drawn))["rules/SPY-ADM-1.md"]

    assert "## A step on which it speaks" in page
    assert "<speaks b.jsonl>" in page
    assert "How it is broken" not in page


def test_an_instance_says_what_is_in_it_and_what_holds() -> None:
    page = page_texts(instance_pages([BROKEN], drawn))["instances/documented.md"]

    assert "29 states, 50 transitions" in page
    assert "| 0 | 1 | 1 of `own 0` | 4 |" in page
    assert "| `max_batch_tkv_limit` | `6` |" in page
    assert "## How SPY-VOL-1 is broken" in page
    assert "Each request may sample the end of sequence with any token." in page


def test_an_instance_says_who_waits_for_what_and_who_reads_no_cache() -> None:
    pages = page_texts(instance_pages([], drawn))

    grammar = "The grammar of request 1 is ready some time after its arrival."
    assert grammar in pages["instances/vllm-v1-in-flight-grammar.md"]
    assert "Request 1 reads no cache." in pages["instances/vllm-v1-cache-not-read.md"]
    images = "Images of request 0 are encoded after its arrival, or fail to be."
    assert images in pages["instances/images.md"]


def test_a_release_says_what_it_breaks() -> None:
    pages = page_texts(release_pages(Films({}, {})))

    assert "SND-3" in pages["releases/index.md"]
    assert "LIF-5" in pages["releases/sendnn-inference-2-6-3-on-vllm-0-28-0.md"]


def test_a_broken_rule_of_a_release_has_a_run_and_the_cases_can_be_drawn_again() -> None:
    trace = "sendnn-counted_ahead.jsonl"
    films = Films({trace: 5}, {trace: ""}, {trace: {"SPY-CHK-3": 2}})
    page = page_texts(release_pages(films))["releases/sendnn-inference-2-6-3-on-vllm-0-28-0.md"]
    seen = recorded(CONFORMED)["sendnn-inference 2.6.3 on vLLM 0.28.0"]

    chunk, other = page.split("### SPY-CHK-3")[1].split("### SPY-CHK-5")
    assert 'name="spy-chk-3" src="../steps/sendnn-counted_ahead.js" at="2"' in chunk
    assert f"Broken in {seen['broken']['SPY-CHK-3']:,} steps." in chunk
    assert "live.html" not in chunk  # a release does not run in the browser
    assert "counted_ahead" not in other.split("###")[0]
    assert f"lockstep conform sendnn==2.6.3 --seed 1 --episodes {seen['episodes']}" in page
    assert "(../rules/SPY-PAU-6.md#how-it-is-broken)" in page


def test_of_each_rule_a_witness_is_shown_from_the_smallest_instance() -> None:
    wanted = shown_witnesses(recorded(EXPLORED))

    assert {rule for rules in wanted.values() for rule in rules} == {*RULES}


def test_the_runs_of_an_instance_end_where_the_rule_speaks_or_is_broken(tmp_path: Path) -> None:
    (two,) = (
        instance for instance in machine_of("spyre").instances if title_of(instance) == "documented"
    )
    shown = {(run.rule, bool(run.found)): run for run in shown_runs([two], tmp_path)}
    broken = shown["SPY-VOL-1", True]

    assert broken.found == "batch 2 x tkv 4 = 8, limit 6"
    assert broken.story[-1] == (
        "**Step 3**, decode: 1 token of request 1, 1 token of request 0; jump tkv 1; finished: 1"
    )
    assert (tmp_path / broken.trace).exists()
    assert all((tmp_path / run.trace).exists() for run in shown.values())


def test_a_run_is_described_action_by_action() -> None:
    assert story(["arrive 1", "abort 1"], []) == (
        "Request 1 arrives",
        "The client of request 1 goes away",
    )
