"""`lockstep bisect --git`: a repository of one scheduler, whose commits plant or mend a bug."""

import json
from pathlib import Path

import pytest

from lockstep import api
from tests.checks.command import lockstep
from tests.checks.releases.repository import committed, git
from tests.lockstep.broken import TEMPLATE, broken

DRIVER = TEMPLATE.replace('release": "toy', 'release": "mine')
WRONG = broken("joins behind").replace('release": "toy', 'release": "mine')


@pytest.fixture
def case() -> str:
    """A case that shows the bug."""
    Path("wrong.py").write_text(WRONG)
    (found,) = api.conform("wrong.py", episodes=3).findings
    return str(found.path)


def bisected(case: str, span: str) -> tuple[int, dict[str, object], str]:
    driver = ("--driver", "repository/driver.py")
    ran = lockstep("bisect", case, *driver, "--git", "repository", span, "--json", "r.json")
    return ran.code, json.loads(Path("r.json").read_text()), ran.out


def test_the_commit_that_planted_a_bug_is_found_in_a_few_trials(case: str) -> None:
    commits = committed(*[DRIVER] * 4, *[WRONG] * 3)

    code, report, printed = bisected(case, f"{commits[0]}..{commits[-1]}")

    assert (code, report["first"]) == (1, commits[4])
    assert printed.splitlines()[-1] == f"first other: {commits[4][:10]} Change 4"
    assert len(report["releases"]) <= 5  # type: ignore[arg-type]
    assert git("status", "--porcelain") == ""


def test_the_commit_that_mended_it_is_found(case: str) -> None:
    commits = committed(WRONG, WRONG, DRIVER)

    code, report, _ = bisected(case, f"{commits[0]}..HEAD")

    assert (code, report["first"]) == (0, commits[2])
    code, report, printed = bisected(case, f"{commits[0]}..{commits[1]}")
    assert (code, report["first"]) == (1, None)
    assert printed.splitlines()[-1] == "no commit changes that"


def test_another_defect_of_a_later_commit_is_no_answer(case: str) -> None:
    other = broken("the queue is not reported").replace('release": "toy', 'release": "mine')
    commits = committed(WRONG, WRONG, other, DRIVER, other)

    code, report, printed = bisected(case, f"{commits[0]}..HEAD")

    assert (code, report["first"]) == (0, commits[2])
    assert "as the reference" not in printed


def test_a_survey_of_commits_says_what_each_of_them_breaks() -> None:
    dead = "import no_such_scheduler"
    unfair = broken("last come first served")
    commits = committed(DRIVER, unfair, dead, DRIVER)

    asked = ("survey", "repository/driver.py", "--git", "repository", f"{commits[0]}..HEAD")
    ran = lockstep(*asked, "--episodes", 2, "--json", "r.json")

    report = json.loads(Path("r.json").read_text())["releases"]
    rows = [line for line in ran.out.splitlines() if "Change" in line]
    assert ran.code == 1
    assert [bool(report[commit]["broken"]) for commit in commits if commit in report] == [
        False,
        True,
        False,
    ]
    assert rows[0].endswith("| nothing |")
    says = "ModuleNotFoundError: No module named 'no_such_scheduler'"
    assert rows[2] == f"| {commits[2][:10]} Change 2 | - | - | not driven: {says} |"


def test_a_survey_of_commits_may_leave_out_those_that_touch_other_files() -> None:
    commits = committed(DRIVER, WRONG, WRONG)  # each changes the notes, too

    asked = ("survey", "repository/driver.py", "--git", "repository", f"{commits[0]}..HEAD")
    ran = lockstep(*asked, "--touching", "driver.py", "--episodes", 1, "--json", "r.json")

    assert list(json.loads(Path("r.json").read_text())["releases"]) == commits[:2]
    assert "that touch driver.py" in ran.out
    wrong = lockstep("survey", "toy", "--versions", "1.1..1.2", "--touching", "x")
    assert (wrong.code, "only with --git" in wrong.err) == (2, True)


def test_a_span_that_is_not_two_commits_is_refused(case: str) -> None:
    committed(DRIVER, WRONG)
    refusals = [
        (["HEAD"], "--git: found 'HEAD'; allowed: FIRST..LAST, two commits"),
        (["HEAD..HEAD~1"], "FIRST..LAST, the older commit in front"),
        (["none..HEAD"], "--git: found 'none'; allowed: commits of repository"),
        (["HEAD~1..HEAD", "--versions", "1..2"], "one of --versions and --git"),
    ]
    for arguments, says in refusals:
        refused = lockstep("bisect", case, "--git", "repository", *arguments)

        assert (refused.code, says in refused.err) == (2, True)
    assert "one of --versions and --git" in lockstep("bisect", case).err


def test_a_working_tree_is_conformed_instead_of_what_is_installed() -> None:
    """The driver imports its scheduler, which the working tree has, too, with a bug."""
    Path("driver.py").write_text("from mine import Toy, serve\n\nserve(Toy)\n")
    for folder, text in (("installed", DRIVER), ("tree/src", WRONG)):
        Path(folder).mkdir(parents=True)
        Path(folder, "mine.py").write_text(text)
    conform = ("conform", "driver.py", "--episodes", 3)

    assert lockstep(*conform, "--source", "installed").code == 0
    ran = lockstep(*conform, "--source", "tree")
    assert ran.code == 1
    again = next(line for line in ran.out.splitlines() if "again: lockstep " in line)
    arguments = again.partition("lockstep ")[2].split()
    assert lockstep(*arguments).code == 1  # the bug of the working tree, and no other scheduler
    refused = lockstep(*conform, "--source", "none")
    assert refused.code == 2
    assert "--source: found 'none'; allowed: a directory" in refused.err
