"""`lockstep check`: logs of releases without and with a defect, and lines that are none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.cli import check
from checks.harness.logs import watching
from checks.harness.logs.reading import Abort, LogError, LogReader
from tests.checks.command import lockstep
from tests.checks.harness.logs.written import (
    DECISIONS,
    RECORDED,
    Json,
    log_lines,
    watched,
    write_log,
)

V1 = "vllm-v1-0.28.0-preempted_last"  # 18 steps with preemptions
OUTCOMES = {
    path.stem: json.loads(path.read_text().splitlines()[-1])["outcome"]
    for path in sorted(RECORDED.glob("*.jsonl"))
}
EQUAL = [
    name
    for name, outcome in OUTCOMES.items()
    if outcome["known"] is None and not name.startswith("vllm-v1-0.33.0-session")
]  # a log names requests as they arrive: the turns of sessions behind them are not known


@pytest.mark.parametrize("name", EQUAL)
def test_the_log_of_a_release_is_equal_in_every_step(name: str, tmp_path: Path) -> None:
    watch = watched(write_log(tmp_path / "log.jsonl", log_lines(name)))

    assert (watch.seen.findings, watch.seen.compared) == ({}, watch.seen.steps)
    assert watch.seen.steps >= OUTCOMES[name]["steps"] > 0
    assert watch.judged_rules


def test_a_known_difference_ends_the_comparison_and_is_no_finding(tmp_path: Path) -> None:
    name = "vllm-v1-0.28.0-padding_cut"
    watch = watched(write_log(tmp_path / "log.jsonl", log_lines(name)))

    assert (watch.seen.known, watch.seen.findings) == ("VLM-1", {})
    assert watch.seen.compared == OUTCOMES[name]["steps"] < watch.seen.steps


def test_decisions_alone_are_compared_and_what_they_do_not_say_is_named(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", log_lines(V1, DECISIONS))
    ran = lockstep("check", log, "--json", tmp_path / "r.json")
    report = json.loads((tmp_path / "r.json").read_text())

    assert (ran.code, ran.err) == (0, "")
    assert report["compared"] == report["steps"] == 18
    assert set(DECISIONS) - {"statistics"} <= {*report["compared_fields"]}
    assert {"rows", "waiting", "planned"} <= {*report["missing_fields"]}
    assert "V1-BUD-1" in report["judged"]
    assert report["not_judged"]["V1-KV-1"] == "blocks"
    assert not {*report["judged"]} & {*report["not_judged"]}
    assert "not judged without blocks" in ran.out


# --- defects --------------------------------------------------------------------------------------


def one_token_more(step: int, record: Json) -> None:
    if step == 3:
        name = next(iter(record["scheduled"]))
        record["scheduled"][name] += 1


def shared_block(step: int, record: Json) -> None:
    if step == 2:
        first, second, *_ = record["block_tables"].values()
        second[-1] = first[-1]


def lost_output(step: int, record: Json) -> None:
    if step == 5:
        del record["outputs"][next(iter(record["outputs"]))]


def unseen_victim(step: int, record: Json) -> None:
    if step == 3:
        record["preempted"] = []


def counted_twice(step: int, record: Json) -> None:
    if step == 6 and "statistics" in record:
        record["statistics"]["usage"] += 0.25


Defect = Callable[[int, Json], None]
FIELDS: list[tuple[Defect, str, int]] = [
    (one_token_more, "scheduled", 3),
    (lost_output, "outputs", 5),
    (unseen_victim, "preempted", 3),
    (counted_twice, "statistics.usage", 6),
]


@pytest.mark.parametrize(("defect", "field", "step"), FIELDS)
def test_a_defect_in_a_decision_is_found_by_its_field_and_cut(
    defect: Defect, field: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = write_log(tmp_path / "log.jsonl", log_lines(V1, DECISIONS, defect))
    ran = lockstep("check", log, "--json", "r.json")
    (found, *_) = json.loads(Path("r.json").read_text())["findings"]

    assert ran.code == 1
    assert (found["kind"], found["cause"]) == ("divergence", field)
    line = log.read_text().splitlines()[found["line"] - 1]
    assert '"step"' in line
    again = lockstep("conform", "template", "--case", found["file"], "--recorded")
    assert (again.code, again.err) == (1, "")
    assert f"{field} differs from the specification" in again.out
    assert "as recorded" in again.out


def test_a_block_of_two_requests_breaks_a_rule_and_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = write_log(tmp_path / "log.jsonl", log_lines(V1, None, shared_block))
    ran = lockstep("check", log, "--json", "r.json")
    found = json.loads(Path("r.json").read_text())["findings"]

    assert ran.code == 1
    assert {entry["step"] for entry in found} == {2}
    assert {entry["rule"] for entry in found} == {"divergence", "V1-KV-2"}
    for entry in found:
        again = lockstep("conform", "template", "--case", entry["file"], "--recorded")
        assert (again.code, again.err) == (1, "")
        assert entry["cause"].partition(".")[0] in again.out
        assert "as recorded" in again.out


# --- bad lines ------------------------------------------------------------------------------------


def _lines() -> list[Json]:
    return [*log_lines(V1, DECISIONS)]


def changed(place: int, **fields: Any) -> str:
    lines = _lines()
    lines[place] = fields
    return "".join(f"{json.dumps(line)}\n" for line in lines)


STEP: Json = {"scheduled": {}, "outputs": {}}
BAD = {
    "": "log.jsonl, line 1: line: found nothing; allowed: the header of a lockstep-log",
    "{}\n": "log.jsonl, line 1: format: found nothing; allowed: lockstep-log",
    changed(1, arrive={"id": "x", "prompt_len": 0, "max_tokens": 1}): (
        "log.jsonl, line 2: arrive.prompt_len: found 0; allowed: a whole number of tokens from"
        " 1 to 1048576"
    ),
    changed(1, abort=3): "log.jsonl, line 2: abort: found 3; allowed: a text",
    changed(2, step={"outputs": {}}): (
        "log.jsonl, line 3: step.scheduled: found nothing; allowed: a value, in every line of this"
        " kind"
    ),
    changed(2, step=STEP | {"finished": 3}): (
        "log.jsonl, line 3: step.finished: found 3; allowed: a list"
    ),
    changed(2, step=STEP | {"rows": [{"computed": 3}]}): (
        "log.jsonl, line 3: step.rows[0].id: found nothing; allowed: a value, in every line of this"
        " kind"
    ),
    changed(2, step=STEP | {"drafts": {"x": "many"}}): (
        "log.jsonl, line 3: step.drafts.x: found 'many'; allowed: a whole number"
    ),
    changed(2, step=STEP | {"at": "03:12"}): (
        "log.jsonl, line 3: step.at: found '03:12'; allowed: a finite number, 0 or more"
    ),
    changed(2, step=STEP | {"outputs": {"x": 1}}): (
        "log.jsonl, line 3: step.outputs: found 'x'; allowed: requests that have arrived"
    ),
    changed(2, step=STEP | {"seconds": "?"}): (
        "log.jsonl, line 3: step.seconds: found '?'; allowed: a finite number, 0 or more"
    ),
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_line_is_refused_with_its_place(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.jsonl").write_text(text)
    ran = lockstep("check", "log.jsonl")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"lockstep: {BAD[text]}\n"


# --- growing and long logs ------------------------------------------------------------------------


def test_a_log_is_followed_and_an_unfinished_line_is_not_read(tmp_path: Path) -> None:
    lines = [f"{json.dumps(line)}\n" for line in log_lines(V1, DECISIONS)]
    log = tmp_path / "log.jsonl"
    log.write_text(lines[0] + lines[1][:9])
    rest = iter([lines[1][9:], "".join(lines[2:])])

    def grows() -> bool:
        more = next(rest, "")
        with log.open("a") as file:
            file.write(more)
        return bool(more)

    entries = [*LogReader(log, grows)]

    assert len(entries) == len(lines) - 1
    log.write_text(lines[0] + lines[1][:9])
    assert [*LogReader(log)] == []


def test_a_followed_log_ends_with_its_first_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(Path("log.jsonl"), log_lines(V1, DECISIONS, one_token_more))

    ran = lockstep("check", "log.jsonl", "--follow", "--json", "r.json")

    assert ran.code == 1
    assert json.loads(Path("r.json").read_text())["steps"] == 4 < 18


def test_a_log_is_followed_as_it_grows_until_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{json.dumps(line)}\n" for line in log_lines(V1, DECISIONS)]
    log = Path("log.jsonl")
    log.write_text("".join(lines[:3]))
    rest = [lines[3][:20], lines[3][20:], *lines[4:]]

    def pause(_seconds: float) -> None:
        if rest:
            with log.open("a") as file:
                file.write(rest.pop(0))
        else:
            monkeypatch.setattr(check, "stopping", lambda: True)

    monkeypatch.setattr(check, "sleep", pause)
    ran = lockstep("check", log, "--follow", "--json", "r.json")
    report = json.loads(Path("r.json").read_text())

    assert (ran.code, ran.err) == (3, "")
    assert report["steps"] == report["compared"] == 18


def test_an_asynchronous_log_is_judged_and_not_compared(tmp_path: Path) -> None:
    header, *lines = log_lines(V1, DECISIONS)
    log = write_log(tmp_path / "log.jsonl", iter([header | {"asynchronous": True}, *lines]))
    watch = watched(log)

    assert (watch.seen.compared, watch.seen.findings) == (0, {})
    assert "have their own results are compared" in watch.seen.not_compared
    assert "  not compared: asynchronous scheduling decides" in lockstep("check", log).out
    assert "V1-BUD-1" in watch.judged_rules


def test_a_rule_about_changes_between_steps_does_not_judge_a_log_without_states(
    tmp_path: Path,
) -> None:
    lines = log_lines("sendnn-pausing", ["scheduled", "outputs", "finished"])
    watch = watched(write_log(tmp_path / "log.jsonl", lines))

    assert watch.not_judged["LIF-7"] == watch.not_judged["LIF-9"] == "before"
    assert watch.judged_rules == ["SPY-KEY-1"]  # of the configuration


def test_a_client_that_leaves_while_another_request_finishes_is_gone(tmp_path: Path) -> None:
    config = {"policy": "spyre", "block_size": 4, "chunk_size": 4, "max_num_seqs": 1}
    recorded = ["kind", "scheduled", "outputs", "finished"]
    header: Json = {"format": "lockstep-log", "version": 1, "policy": "spyre", "config": config}
    arrivals: list[Json] = [
        {"arrive": {"id": id_, "prompt_len": 3, "max_tokens": 2}} for id_ in "ab"
    ]
    steps: list[Json] = [
        {"kind": "prefill", "scheduled": {"a": 3}, "outputs": {"a": 1}},
        {
            **{"kind": "decode", "scheduled": {"a": 1}, "outputs": {"a": 1}, "finished": ["a"]},
            "abort_running": ["b"],
        },
        {"kind": "idle", "scheduled": {}, "outputs": {}},
    ]
    entries: list[Json] = [{"step": step} for step in steps]
    lines = [header | {"recorded": recorded}, *arrivals, *entries]
    watch = watched(write_log(tmp_path / "log.jsonl", iter(lines)))

    assert (watch.seen.findings, watch.seen.compared) == ({}, 3)


def test_requests_that_left_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_MOST_GONE", 4)
    header, *lines = log_lines("vllm-v1-0.28.0-chunks_and_decodes")
    names = [line["arrive"]["id"] for line in lines if "arrive" in line]
    many = [header]
    for turn in range(20):
        text = json.dumps(lines)
        for name in names:
            text = text.replace(f'"{name}"', f'"{name}{turn}"')
        many += json.loads(text)
    kept = {"recorded": ["scheduled", "outputs", "finished", "admitted"]}
    many = [many[0] | kept, *map(_decisions, many[1:])]
    watch = watched(write_log(tmp_path / "log.jsonl", iter(many)))

    assert watch.seen.requests == 20 * len(names)
    assert (watch.seen.findings, watch.seen.compared) == ({}, watch.seen.steps)
    for by_request in (watch.ctx.requests, watch._decoder.arrivals):
        assert len(by_request) <= 8 + len(names)


def _decisions(line: Json) -> Json:
    if "step" not in line:
        return line
    fields = ("scheduled", "outputs", "finished", "admitted")
    return {"step": {key: value for key, value in line["step"].items() if key in fields}}


def test_a_request_that_arrives_twice_is_refused(tmp_path: Path) -> None:
    lines = _lines()
    log = write_log(tmp_path / "log.jsonl", iter([*lines[:2], lines[1]]))

    with pytest.raises(LogError, match="an id of its own"):
        watched(log)


def test_an_abort_is_an_entry_of_its_own(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "log.jsonl", log_lines("vllm-v1-0.28.0-gone_in_every_phase", DECISIONS)
    )

    assert sum(isinstance(entry, Abort) for entry in LogReader(log)) == 3


def test_a_total_of_the_plugin_is_compared_too(tmp_path: Path) -> None:
    def used_more(step: int, record: Json) -> None:
        if step == 2:
            record["statistics"] = {"usage": 0.9}

    fields = ("kind", "scheduled", "outputs", "finished", "tkv", "statistics")
    log = write_log(tmp_path / "log.jsonl", log_lines("sendnn-interleaved", fields, used_more))
    watch = watched(log)

    assert [finding.cause for finding in watch.seen.findings.values()] == ["statistics.usage"]
    assert watch.seen.compared == 2


def test_lengths_are_compared_where_tokens_are_not_known(tmp_path: Path) -> None:
    def lengths(_step: int, record: Json) -> None:
        record["outputs"] = {name: len(tokens) for name, tokens in record["outputs"].items()}

    watch = watched(write_log(tmp_path / "log.jsonl", log_lines(V1, DECISIONS, lengths)))

    assert (watch.seen.findings, watch.seen.compared) == ({}, 18)
