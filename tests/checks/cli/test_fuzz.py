"""`lockstep fuzz`, and `lockstep replay` of its findings."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from inline_snapshot import snapshot

from checks import registry
from checks.cli.common import pinned_keys
from checks.harness.campaigns import campaign
from checks.harness.campaigns.campaign import Batch, Campaign
from checks.harness.policy import Engine, evidence_of
from checks.registry import DEFAULT
from spec.core.errors import ConfigError
from tests.checks.command import Ran, lockstep, settings
from tests.checks.harness.cases import faulty_spyre

BATCH = 25  # episodes
KEYS = {"seed", "strictness", "left_out", "set", "episodes", "steps", "actions", "never"} | {
    *("known", "findings", "seconds")
}
FINDING_KEYS = {"kind", "cause", "step", "episode", "times", "file"}


def one_by_one(work: Any, items: Iterable[Any], *_around: Any) -> Iterator[Any]:
    """Run all episodes in this process."""
    return map(work, items)


@pytest.fixture
def _faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The engine of Spyre is the reference with a wrong volume rule, fuzzed in this process."""
    start = faulty_spyre("exact forgets the candidate").start
    wrong = evolve(evidence_of(DEFAULT), engine=Engine(start=start))
    monkeypatch.setitem(registry._PARTS, (DEFAULT, "evidence"), wrong)
    campaign._opened.cache_clear()
    monkeypatch.setattr(campaign, "on_all_cores", one_by_one)
    yield
    campaign._opened.cache_clear()


def without_times(text: str) -> str:
    beside = r"(, (starting|shrinking) [\d.]+ s)*"
    text = re.sub(rf"[\d,.]+ s, [\d,]+ steps/s{beside}", "TIME", text)
    return re.sub(r"shrunk in [\d,]+ runs, [\d,]+ steps", "shrunk in WORK", text)


def faulty_run(*more: object) -> Ran:
    return lockstep("fuzz", "--episodes", 20, *more)


@cache
def finding() -> tuple[Ran, str, str]:
    """A faulty run, and the name and content of the file of its difference."""
    ran = faulty_run()
    path = next(Path("corpus").glob("engine-divergence-*.jsonl"))
    return ran, str(path), path.read_text()


def finding_file() -> Path:
    """The file of the difference, in the current directory."""
    _, name, content = finding()
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(content)
    return Path(name)


# --- clean ------------------------------------------------------------------------------------


def test_without_a_finding_it_says_for_how_much_and_ends_with_0() -> None:
    ran = lockstep("fuzz", "--target", "reference", "--episodes", 30, "--seed", 3)

    assert ran.code == 0
    verdict = without_times(ran.out).splitlines()[-1]
    steps = re.fullmatch(
        r"reference: no unknown difference in 30 episodes, ([\d,]+) steps compared "
        r"\(exact, seed 3\); TIME",
        verdict,
    )
    assert steps is not None
    assert int(steps[1].replace(",", "")) > 700
    assert ran.err == ""
    assert not Path("corpus").exists()


@pytest.mark.parametrize("policy", ["nano-vllm", "vllm-v1"])
def test_the_reference_is_fuzzed_and_judged_by_itself(policy: str) -> None:
    ran = lockstep("fuzz", "--policy", policy, "--using", "reference", "--episodes", 30, "--judge")

    assert ran.code == 0, ran.out
    assert "reference: no unknown difference in 30 episodes, " in ran.out
    assert ", as known: " in ran.out
    assert re.search(r"\(exact, seed 0\), \d+ rules judged in [\d,]+ of them; ", ran.out)


def test_actions_that_never_happened_are_named() -> None:
    ran = lockstep("fuzz", "--target", "reference", "--episodes", 5, "--set", "pausing=false")

    assert "\nnever happened: " in ran.out
    assert "pause; resume" in ran.out


def test_a_campaign_in_time_stops_in_time_and_does_something() -> None:
    ran = lockstep("fuzz", "--target", "reference", "--time", 0.01, "--json", "report.json")

    report = json.loads(Path("report.json").read_text())
    assert ran.code == 0
    assert 1 <= report["episodes"] <= BATCH
    assert report["steps"] > 0


def test_the_report_is_the_same_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def report() -> dict[str, Any]:
        ran = lockstep("fuzz", "--target", "reference", "--episodes", 30, "--json", "-")
        told: dict[str, Any] = json.loads(ran.out)
        del told["seconds"], told["steps_per_second"]
        return told

    on_all = report()
    monkeypatch.setattr(campaign, "on_all_cores", one_by_one)
    assert report() == on_all


# --- findings -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("_faulty")
def test_a_divergence_is_printed_with_both_sides_rule_workload_and_replay() -> None:
    ran = faulty_run("--seed", 1, *settings("admission=exact", "oversized=refused"))

    assert ran.code == 1
    divergence = without_times(ran.out).split("\n\n")[0]
    assert "\n".join(line.rstrip() for line in divergence.splitlines()) == snapshot("""\
SPY-VOL-4 is broken: A request joins if and only if no step of the worst case exceeds the limit: no
  other joins, none is preempted, each generates all it may.
  found in step 2: 1 passed, batch of 1
  differs in step 2:
  field          expected       engine
  kind           "decode"       "prefill"
  scheduled 0    1              -
  scheduled 1    -              1
  tkv            3              1
  volume         3              1
  refusal        "SPY-VOL-4"    -
  outputs 0      [5274]         -
  outputs 1      -              [4849]
  and 10 more
  the reference followed there:
    SPY-VOL-4 (refuses an admission of the reference): A request joins if and only if no step of the
      worst case exceeds the limit: no other joins, none is preempted, each generates all it may.
    SPY-DEC-5 (allocate of 0): A row's last block holds its newest token and is padded to the
      block's right boundary.
  configuration: block_size=2 chunk_size=2 max_model_len=4 max_batch_tkv_limit=6
    prefix_caching=false queue=shortest
  {"id":"0","arrival":0,"prompt_len":1,"max_tokens":3}
  {"id":"1","arrival":0,"prompt_len":1,"max_tokens":3}
  met 2 times, first in episode 17 of seed 1: block_size=16 chunk_size=48 max_model_len=74
    max_batch_tkv_limit=125 prefix_caching=false queue=shortest long_output_first=true crowd=false
    short_answers=true boundaries=0.0 shared=0.4 repeated=0.5 continued=0.5 prescribed=0.7
    early_ends=0.2 aborts=0.2 gap=0 tight_pool=false tight_limit=true odd_model_len=true
    hits_inside=false
  shrunk in WORK
  again: lockstep replay corpus/engine-divergence-kind-2d1dd672.jsonl --target engine
  look at it: lockstep view corpus/engine-divergence-kind-2d1dd672.jsonl\
""")


@pytest.mark.usefixtures("_faulty")
def test_the_printed_command_replays_it() -> None:
    path, found = finding_file(), finding()[0]
    command = re.findall(rf"again: lockstep (replay {path} .*)", found.out)[0]

    ran = lockstep(*command.split())

    assert ran.code == lockstep("replay", path).code == 1
    assert ran.out.splitlines()[-1] == "the divergence is confirmed"
    assert ran.out.splitlines()[0] in found.out


@pytest.mark.usefixtures("_faulty")
def test_a_finding_is_not_confirmed_by_another_target_or_once_it_has_changed() -> None:
    path = finding_file()

    other = lockstep("replay", path, "--target", "reference", "--json", "-")
    assert (other.code, json.loads(other.out)["finding"]) == (0, None)
    assert re.search(r"reference: nothing found in \d+ steps compared \(exact\)", other.err)
    as_recorded = [
        lockstep("replay", path, "--target", target, "--expect", "recorded").code
        for target in ("engine", "reference")
    ]
    assert as_recorded == [0, 1]

    path.write_text(re.sub('"cause":"[a-z._]+"', '"cause":"tkv"', path.read_text()))
    changed = lockstep("replay", path)
    assert changed.code == 1
    says = r"the file says: divergence in step \d+, tkv; engine does otherwise"
    assert re.search(says, changed.out)


def test_a_finding_of_a_target_that_is_not_there_is_refused(tmp_path: Path) -> None:
    source = next((Path(__file__).parents[2] / "corpus").glob("*.jsonl"))
    path = tmp_path / "finding.jsonl"
    path.write_text(source.read_text().replace('"target":"reference"', '"target":"gone"'))

    ran = lockstep("replay", path)

    assert ran.code == 2
    assert ran.err.startswith(f"lockstep: {path}: target: found 'gone'; allowed: ")


@pytest.mark.usefixtures("_faulty")
def test_the_same_seed_gives_the_same_bytes() -> None:
    first, name, content = finding()
    second = faulty_run("--corpus", "other")

    assert without_times(first.out) == without_times(second.out).replace("other/", "corpus/")
    assert (Path("other") / Path(name).name).read_text() == content


@pytest.mark.usefixtures("_faulty")
def test_the_report_has_the_finding_with_its_case_and_the_strictness() -> None:
    pinned = ("--set", "admission=exact", "--set", "block_size=2")
    ran = faulty_run("--strictness", "decisions", "--json", "report.json", *pinned)

    assert re.search(r"engine: \d+ findings? in 20 episodes, .* \(decisions, seed 0\);", ran.out)
    report = json.loads(Path("report.json").read_text())
    first = report["findings"][0]
    assert (first["kind"], first["cause"], first["rule"]) == ("divergence", "kind", "SPY-VOL-4")
    assert first["config"]["block_size"] == 2
    assert report["set"] == {"admission": "exact", "block_size": 2}
    assert report.keys() >= KEYS | {"target", "judged", "interrupted", "steps_per_second"}
    assert first.keys() >= FINDING_KEYS | {"rule", "requests"}
    assert '"strictness":"decisions"' in Path(first["file"]).read_text()
    assert lockstep("replay", first["file"]).code == 1


def test_an_interrupted_campaign_says_what_is_known_and_ends_with_3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted_after_one(
        work: Callable[[Batch], Campaign], batches: Iterable[Batch], *_around: Any
    ) -> Iterator[Campaign]:
        yield work(next(iter(batches)))
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "on_all_cores", interrupted_after_one)

    ran = lockstep("fuzz", "--target", "reference", "--episodes", 100)

    assert ran.code == 3
    assert "reference: interrupted; no unknown difference in 3 episodes, " in ran.out


def test_one_pinned_size_goes_with_any_other() -> None:
    assert pinned_keys(("block_size=3",), DEFAULT) == {"block_size": 3}
    assert pinned_keys(("chunk_size=96",), DEFAULT) == {"chunk_size": 96}
    with pytest.raises(ConfigError):
        pinned_keys(("block_size=0",), DEFAULT)
