"""`lockstep conform --workload`: own requests on an own driver, once and again at each change."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from checks.chapters import chapter_path
from checks.cli import one_case
from spec.core.errors import InputError
from tests.checks.command import lockstep
from tests.checks.harness.driver.files import TEMPLATE, faulty_driver

REQUESTS = """\
{"id": "a", "prompt_len": 40, "max_tokens": 3}
{"id": "b", "prompt_len": 20, "max_tokens": 4}
{"id": "c", "arrival": 2, "prompt_len": 12, "max_tokens": 2}
"""
ASKED = ("conform", "mine.py", "--workload", "three.jsonl", "--config", "mine.toml")
FINDING = """\
SPY-PRI-5 is broken: Requests are admitted in the order of their arrival.
  found in step 0: 1 admitted before 0
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver that admits the last request first, with three requests and a configuration."""
    monkeypatch.chdir(tmp_path)
    faulty_driver(tmp_path, "last come first served")
    Path("three.jsonl").write_text(REQUESTS)
    Path("mine.toml").write_text("max_num_seqs = 2\nmax_model_len = 256\n")
    return tmp_path


def test_a_finding_in_one_case_is_recorded_as_it_is_and_runs_again() -> None:
    ran = lockstep(*ASKED, "--json", "r.json")
    report = json.loads(Path("r.json").read_text())
    (finding,) = report["findings"]

    assert (ran.code, ran.err) == (1, "")
    assert FINDING.replace("1 admitted before 0", "b admitted before a") in ran.out
    assert [request["id"] for request in finding["requests"]] == ["a", "b", "c"]
    assert (finding["config"]["max_num_seqs"], report["episodes"]) == (2, 1)
    assert ran.out.endswith("divergence in step 0: scheduled; 3 requests, 0 rules judged\n")
    again = lockstep("conform", "mine.py", "--case", finding["file"])
    assert (again.code, again.out.splitlines()[-1]) == (1, "as recorded")


def test_a_driver_that_does_as_the_reference_is_compared_and_judged() -> None:
    ran = lockstep("conform", "template", *ASKED[2:], "--set", "max_num_seqs=1", "--json", "r.json")
    report = json.loads(Path("r.json").read_text())

    assert (ran.code, ran.err, report["findings"]) == (0, "", [])
    assert report["steps"] >= 3 + 4 + 2
    last = ran.out.splitlines()[-1]
    rules = len(report["rules"])
    assert last == (f"toy 1.0: {report['steps']} equal steps; 3 requests, {rules} rules judged")
    assert rules > 10


REFUSED = {
    ("--config", "mine.toml"): "--config: found 'mine.toml'; allowed: together with --workload",
    ("--watch",): "--watch: found True; allowed: together with --workload, or with --case alone",
    ("--workload", "no.jsonl"): "cannot read no.jsonl: no such file or directory",
    ("--workload", "three.jsonl", "--episodes", "2"): (
        "--episodes: found '2'; allowed: not together with --workload"
    ),
    ("--workload", "three.jsonl", "--set", "policy=vllm-v1"): (
        "three.jsonl: policy: found 'vllm-v1'; allowed: spyre, as toy 1.0"
    ),
    ("--workload", "three.jsonl", "--set", "block_size=64", "--set", "chunk_size=64"): (
        "three.jsonl: block_size of the case: found 64; allowed: 16: toy 1.0 can do no other"
    ),
    ("--workload", "three.jsonl", "--set", "max_model_len=32"): (
        "three.jsonl, line 1: prompt_len + max_tokens: found 43; allowed: …"
    ),
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_cannot_be_served_is_refused_with_its_place(options: tuple[str, ...]) -> None:
    ran = lockstep("conform", "template", *options)
    says, cut, _ = REFUSED[options].partition("…")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"lockstep: {says}")
    assert cut or ran.err == f"lockstep: {says}\n"


def test_the_section_of_the_chapter_shows_what_the_command_prints() -> None:
    section = chapter_path("adoption").read_text().split("## Your own requests\n")[1]
    blocks = re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)
    requests, config, command, printed = (text for _, text in blocks[:4])
    assert [kind for kind, _ in blocks[:4]] == ["json", "toml", "sh", "text"]
    Path("requests.jsonl").write_text(requests)
    Path("config.toml").write_text(config)
    assert lockstep("driver", "new", "driver.py", "--policy", "vllm-v1").code == 0
    driver = Path("driver.py").read_text()
    limit = 'len(self.running) < self.config["max_num_seqs"]'
    assert limit in driver
    Path("driver.py").write_text(driver.replace(limit, limit.replace("<", "<=")))

    ran = lockstep(*command.split()[1:])

    lines = [line.rstrip() for line in ran.out.splitlines()]
    shown = [line for line in printed.splitlines() if line.strip() != "…"]
    assert (ran.code, ran.err) == (1, "")
    assert [line for line in shown if line not in lines] == []


# --- watching -------------------------------------------------------------------------------------


def edits(monkeypatch: pytest.MonkeyPatch, *changes: Callable[[], object]) -> None:
    """Make one change in each pause of the watch; then a signal comes."""
    left = list(changes)

    def pause(_seconds: float) -> None:
        if left:
            left.pop(0)()
        else:
            monkeypatch.setattr(one_case, "stopping", lambda: True)

    monkeypatch.setattr(one_case, "sleep", pause)


def test_watching_serves_again_at_each_change_and_says_what_changed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = project / "mine.py"
    right, wrong = TEMPLATE.read_text(), driver.read_text()
    edits(
        monkeypatch,
        lambda: driver.write_text(right),
        lambda: driver.write_text("import nothing_like_it\n"),
        lambda: Path("three.jsonl").write_text(REQUESTS.splitlines()[0]),
        lambda: driver.write_text(wrong),
    )

    ran = lockstep(*ASKED, "--watch")

    watched = [
        line for line in ran.out.splitlines() if line.startswith(("files that", "chang", "now"))
    ]
    assert ran.code == 0  # of the last verdict: a single request cannot be overtaken
    broken = "does not run as a driver: it ended with code 1"
    assert watched[:2] == ["files that are watched: 3; Ctrl-C ends it", "changed: mine.py"]
    was = "divergence in step 0: scheduled"
    assert " equal steps; was: " in watched[2]
    assert watched[2].endswith(f"; was: {was}")
    assert watched[3] == "changed: mine.py"
    assert broken in watched[4]
    assert watched[5] == "changed: three.jsonl"
    assert watched[6].startswith("changed: mine.py")
    assert " equal steps; was: " in watched[7]
    assert "as before: " in ran.out
    assert broken in ran.err


def test_a_finding_is_watched_until_it_is_mended(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lockstep(*ASKED)
    (finding,) = Path("findings").iterdir()
    edits(monkeypatch, lambda: (project / "mine.py").write_text(TEMPLATE.read_text()))

    ran = lockstep("conform", "mine.py", "--case", finding, "--watch")

    last = ran.out.splitlines()[-1]
    assert ran.code == 0
    assert " equal steps; was: " in last
    assert last.endswith("; was: divergence in step 0: scheduled")


def test_watching_sees_the_files_of_a_checkout_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("src/mine/a.py", "src/mine/.hidden/b.py", "venv/c.py", "venv/pyvenv.cfg", "d.md"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text("")
    served: list[int] = []

    def serve() -> tuple[int, str]:
        served.append(1)
        return 0, "8 equal steps"

    tree = tmp_path / "tree"
    edits(
        monkeypatch,
        *(lambda name=name: (tree / name).write_text("1") for name in ("venv/c.py", "d.md")),
        lambda: (tree / "src/mine/a.py").write_text("1"),
        lambda: (tree / "src/mine/e.py").write_text(""),
        lambda: (tree / "src/mine/a.py").unlink(),
    )

    assert one_case.watch(serve, [tree], Console(quiet=True)) == 0
    assert len(served) == 1 + 3


def test_an_installed_release_is_not_watched(tmp_path: Path) -> None:
    own = one_case.OneCase(None, False, False, Path("three.jsonl"), None, True)

    with pytest.raises(InputError, match="a release does not change"):
        own.sources("sendnn", None)

    assert own.sources("sendnn", tmp_path) == [tmp_path, Path("three.jsonl")]
