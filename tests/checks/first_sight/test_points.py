"""Problems that a new user met in the first hour, each fixed."""

import json
from pathlib import Path

import pytest
from attrs import evolve

from checks.drivers.lockstep_driver import Driver, at_fault
from checks.harness.campaigns.recording import read_recording, refuse_impossible
from checks.harness.campaigns.wording import reported
from checks.harness.comparing import Difference
from checks.harness.finding import Alone, Finding, Kind
from checks.harness.views.viewing import document_of_file
from checks.registry import RULES
from lockstep import api
from tests.checks.command import lockstep
from tests.recorded.scenes import SCENES

V1 = Path(__file__).parents[3] / "checks" / "drivers" / "template_vllm_v1.py"
RECORDED = Path(__file__).parents[2] / "recorded"
BUDGET = 'budget = self.config["max_num_batched_tokens"]\n'
LEAVE = (
    "        self.running ="
    " [request_id for request_id in self.running if request_id not in finished]\n"
)
LATE = "        self.bad = bool(finished) and any(self.left(row) > 1 for row in self.running)\n"
START = "        self.scheduler = Scheduler(config, self.requests)\n"
STATE = "        present = [*self.scheduler.waiting, *self.scheduler.running]\n"
ABORT = "        for queue in (self.waiting, self.running):\n"


def driver(*changes: tuple[str, str]) -> Path:
    """The template of V1 with these changes, as a file."""
    text = V1.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = Path("d.py")
    path.write_text(text, encoding="utf-8")
    return path


def a_token_less() -> Path:
    """After some steps the budget is one too small."""
    fresh = "        self.generated: dict[str, int] = {}\n"
    return driver(
        (fresh, f"{fresh}        self.bad = False\n"),
        (BUDGET, f"{BUDGET.rstrip()} - self.bad\n"),
        (LEAVE, LEAVE + LATE),
    )


def test_a_finding_of_a_driver_that_leaves_planned_out_is_viewed() -> None:
    """Point 1: it ended with a KeyError of the request that finishes."""
    ran = lockstep("conform", a_token_less(), "--episodes", 10)
    (path,) = Path("findings").iterdir()

    viewed = lockstep("view", path)
    document = document_of_file(path)

    assert (ran.code, viewed.code, viewed.err) == (1, 0, "")
    assert document["violation"]["rule"] == "V1-BUD-3"
    assert document["violation"]["frame"] == document["divergence"]["frame"] == 1
    assert ' at="1"' in Path(f"{path.stem}.html").read_text(encoding="utf-8")


def test_a_field_that_differs_beside_events_without_rules_is_printed() -> None:
    """Point 2: the events of a driver have no rule, which was looked up."""
    finding = Finding(Kind.DIVERGENCE, 0, "planned.skipped.computed", "rows.computed differs")

    assert (finding.rule, finding.rule_or_kind) == ("", "divergence")
    assert finding.headline == "rows.computed differs"


def test_a_difference_without_a_broken_rule_is_not_called_one() -> None:
    """Point 3."""
    alone = Alone(steps=5, tokens=True)
    finding = Finding(Kind.DIVERGENCE, 1, "scheduled", "scheduled differs", alone=alone)

    assert (finding.rule, finding.name) == ("", "differs: scheduled")
    assert finding.evidence == (
        "in step 1; no rule broke in 3 further steps; its tokens equal those served alone, as it"
        " reports them"
    )
    other = evolve(finding, alone=Alone(steps=3, tokens=False))
    assert other.evidence.endswith("in 1 further step; its tokens differ from those served alone")


def test_the_rule_that_breaks_later_is_the_one_that_is_named() -> None:
    """Point 3: the reference's rules are what it followed, and come last."""
    broken = Finding(Kind.BROKEN_RULE, 4, "V1-KV-2", "", broken=(("V1-KV-2", "1 of 0"),))
    followed = (("V1-PRE-4", "refuses an admission of the reference"),)
    alone = Alone(steps=6, wrong=broken)
    finding = Finding(
        Kind.DIVERGENCE, 3, "after.pool.references", "", followed=followed, alone=alone
    )

    assert finding.headline == f"V1-KV-2 is broken: {RULES['V1-KV-2'].sentence}"
    assert finding.evidence == "found in step 4, where it goes on by itself: 1 of 0"
    assert (finding.name, finding.rule_or_kind) == ("V1-KV-2", "V1-KV-2")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            (START, f'        raise ValueError("no")\n{START}'),
            "cannot begin an episode: ValueError",
        ),
        ((START, f"        raise SystemExit(3)\n{START}"), "cannot begin an episode: DriverGone"),
        ((STATE, f"        self.rows[0]\n{STATE}"), "an error of the driver template-vllm-v1"),
    ],
)
def test_a_driver_in_error_is_named_and_nothing_is_recorded(
    change: tuple[str, str], says: str
) -> None:
    """Points 4 and 5."""
    for command in (("conform",), ("fuzz", "--target")):
        ran = lockstep(*command, driver(change), "--episodes", 2)

        assert ran.code == 2
        assert says in ran.err
        assert "No verdict: mend the driver." in ran.err
        assert not Path("findings").exists()
    with pytest.raises(api.InputError, match="No verdict"):
        api.conform("d.py", episodes=2)


def test_an_error_of_the_scheduler_in_the_same_file_is_a_finding() -> None:
    ran = lockstep(
        "conform", driver((ABORT, f"        {{}}[request_id]\n{ABORT}")), "--episodes", 20
    )

    assert ran.code == 1
    assert ran.out.startswith("crash: KeyError: '")
    assert "abort)\n" in ran.out.splitlines(keepends=True)[0]


def test_an_error_in_a_module_beside_the_driver_is_annotated_there() -> None:
    Path("sched.py").write_text("def leave(request_id):\n    {}[request_id]\n", encoding="utf-8")
    made = driver((ABORT, f"        import sched; sched.leave(request_id)\n{ABORT}"))

    ran = lockstep("conform", made, "--episodes", 20, "--format", "github")

    assert "\n::error file=sched.py,line=2,title=crash%3A KeyError" in ran.out


def test_what_a_hello_says_that_it_cannot_do_is_heeded_of_a_recorded_case() -> None:
    """Point 4: a connector, and aborts."""
    recording = read_recording(RECORDED / "vllm-v1-0.28.0-loads.jsonl")
    hello = evolve(recording.hello, config={"connector": ["none"]})
    with pytest.raises(
        api.InputError, match="connector of the case: found 'async'; allowed: \"none"
    ):
        refuse_impossible(hello, recording.case, recording.terms, recording.path)

    gone = SCENES["gone_in_every_phase"]
    without = evolve(hello, config={}, abilities=frozenset())
    with pytest.raises(api.InputError, match="abort_at of the case"):
        refuse_impossible(without, gone.case, gone.terms, recording.path)


# --- whose error it is ----------------------------------------------------------------------------


class Tested:
    """A scheduler under test."""

    def asks(self, helper: object) -> None:
        helper.missing()  # type: ignore[attr-defined]

    def calls(self, helper: "Helper") -> None:
        helper.help(1, 2)  # type: ignore[call-arg]

    def fails(self) -> None:
        none: dict[int, int] = {}
        [none[key] for key in (1,)]

    def computes(self, *, tokens: int) -> int:
        return tokens // 0


class Helper:
    """A part of the driver that the scheduler calls."""

    def help(self) -> None:
        """Help."""


class Declared(Driver):  # type: ignore[misc]
    under_test = (Tested,)


def raised(call: object, *given: object, **more: object) -> Exception:
    try:
        call(*given, **more)  # type: ignore[operator]
    except Exception as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "whose"),
    [
        (raised(Tested().fails), "scheduler"),
        (raised(Tested().computes, tokens=1), "scheduler"),
        (raised(Tested().asks, Helper()), "driver"),  # lacks what the scheduler asks for
        (raised(Tested().asks, None), "scheduler"),
        (raised(Tested().calls, Helper()), "driver"),
        (raised(Tested().computes), "driver"),  # was called as another release has it
        (raised(Helper().help, 1), "driver"),
        (raised(int, "x"), "driver"),
        (raised(Driver().run), "driver"),
    ],
)
def test_frames_and_the_object_at_fault_decide_whose_error_it_is(
    error: Exception, whose: str
) -> None:
    assert at_fault(Declared(), error) == whose


def test_of_a_driver_that_declares_nothing_it_is_not_known() -> None:
    assert at_fault(Driver(), raised(Tested().fails)) == ""
    assert at_fault(Driver(), raised(Driver().run)) == "driver"


def test_a_request_that_a_scheduler_does_not_end_keeps_sampling() -> None:
    """That it was not ended is the scheduler's error, and so no error of the driver's."""
    asked = Driver()
    asked.requests = {"a": {"output": [7, 8], "output_len": 2, "max_tokens": 2}}
    asked.action = {}

    assert [asked.token("a", index) for index in range(4)] == [7, 8, 0, 0]


# --- time -----------------------------------------------------------------------------------------


def test_time_bounds_shrinking_and_the_campaign_continues() -> None:
    """Point 8."""
    ran = lockstep("conform", a_token_less(), "--time", 0.4, "--json", "r.json")
    (finding,) = json.loads(Path("r.json").read_text())["findings"]
    assert ran.code == 1
    if finding["cut"]:
        assert finding["cut"] == "the time that --time gives"
        assert f"--case {finding['file']} --shrink" in ran.out

    again = lockstep(
        "conform", "d.py", "--case", finding["file"], "--shrink", "--findings", "small"
    )

    assert again.code == 1
    (small,) = [read_recording(path) for path in Path("small").iterdir()]
    assert len(small.case.requests) == 2
    assert small.case.choices
    assert small.own_steps is not None


def test_a_case_without_its_draws_cannot_be_made_smaller() -> None:
    path = RECORDED / "vllm-v1-0.28.0-drafts.jsonl"
    ran = lockstep("conform", V1, "--case", path, "--shrink")
    assert ran.code == 2
    assert "choices: found (); allowed: the draws of its case" in ran.err


def test_a_driver_that_does_not_say_hello_in_time_is_named() -> None:
    Path("slow.py").write_text("import time\ntime.sleep(60)\n")
    ran = lockstep("conform", "slow.py", "--episodes", 1, "--start-time", 0.5)
    assert ran.code == 3
    assert ran.err.endswith(" after its start; --start-time gives it more\n")


# --- messages -------------------------------------------------------------------------------------


def test_fields_are_named_as_a_record_names_them() -> None:
    """Point 10."""
    case = SCENES["prefix_hit"].case
    seen = [
        Difference("after.finished", "", frozenset("0"), frozenset()),
        Difference("finished", "", ("0",), ()),
        Difference("after.running.computed", "1", 2, 3),
        Difference("before.pool.references", "4", 1, None),
        Difference("planned.running.blocks", "1", (1,), (2,)),
        Difference("after.pool.keys", "2", b"x", None),
    ]
    names = [
        f"{difference.field} {difference.place}".strip() for difference in reported(case, seen)
    ]
    assert names == [
        "finished",
        "rows.computed 1",
        "before.references 4",
        "planned.block_tables 1",
        "cached 2",
    ]


def test_messages_say_what_happened_and_what_to_do() -> None:
    """Point 10."""
    assert (
        lockstep("run", "no.jsonl").err
        == "lockstep: cannot read no.jsonl: no such file or directory\n"
    )
    assert "`lockstep driver new PATH` writes one" in lockstep("conform", "nodriver.py").err
    path = RECORDED / "vllm-v1-0.28.0-drafts.jsonl"
    assert f"--case {path}" in lockstep("replay", path).err
    again = lockstep("conform", "vllm-v1", "--case", path, "--recorded").out
    assert again.endswith("as recorded\n")


def test_exploration_says_what_it_assumed_and_what_it_did_not_see() -> None:
    """Point 9."""
    Path("w.jsonl").write_text('{"id": "0", "arrival": 0, "prompt_len": 3, "max_tokens": 2}\n')
    small = ("max_model_len=16", "block_size=4", "num_blocks=6", "policy=vllm-v1")
    keys = [word for setting in small for word in ("--set", setting)]

    ran = lockstep("explore", *keys, "--workload", "w.jsonl", "--leave-running", "--json", "r.json")

    (instance,) = json.loads(Path("r.json").read_text())["instances"]
    assert ran.code == 0
    assert "assumed: any request leaves while the model runs" in ran.out
    assert "assumed: no request comes back" in ran.out
    assert "V1-SPC-2" in instance["not_seen"]
    held = len(instance["rules"]) - len(instance["not_seen"])
    assert f"{held} rules hold, {len(instance['not_seen'])} not seen" in ran.out
    refused = lockstep("explore", "--workload", "w.jsonl", "--leave-running")
    assert (refused.code, "that of spyre has none" in refused.err) == (2, True)
