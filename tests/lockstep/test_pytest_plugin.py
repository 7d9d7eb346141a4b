"""The plugin in the tests of another project, which pytest's own `pytester` runs."""

from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import SimpleNamespace

import pytest

import checks.explore
import checks.harness
import checks.policies
import engine
import reference
import spec
from lockstep import api
from tests.lockstep.broken import FAULTS, broken, class_named, write

CONFORMS = """
def test_scheduler(lockstep):
    lockstep.conform("driver.py", episodes=4)
"""


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """All modules of a scheduler: `pytester` forgets what a run in its process loads first, and the
    next test would have two classes of each state.
    """
    for room in (spec, reference, engine, checks.explore, checks.harness, checks.policies):
        for module in walk_packages(room.__path__, f"{room.__name__}."):
            import_module(module.name)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project of one driver and its test."""
    pytester.makepyfile(test_scheduler=CONFORMS)
    write(pytester.path)
    return pytester


def test_a_right_scheduler_is_green_and_nothing_is_stored(project: pytest.Pytester) -> None:
    project.runpytest_inprocess().assert_outcomes(passed=1)

    assert not (project.path / "findings").exists()


def test_a_wrong_one_is_red_and_reads_as_the_commands_report(project: pytest.Pytester) -> None:
    write(project.path, "last come first served")

    ran = project.runpytest_inprocess()

    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "SPY-PRI-5 is broken: Requests are admitted in the order of their arrival.",
            "  found in step 0: 1 admitted before 0",
            "  scheduled *",
            "    SPY-ADM-1 (admit of 0): *",
            "  configuration: *max_num_seqs=1*",
            '  {"id":"0",*',
            "  again: lockstep conform driver.py --case findings/template-divergence-*.jsonl",
            "template (toy 1.0): 1 finding in * episode*, *",
        ]
    )
    assert "Traceback" not in ran.stdout.str()


def test_a_finding_is_a_test_that_runs_first_and_turns_green(project: pytest.Pytester) -> None:
    write(project.path, "last come first served")
    project.runpytest_inprocess()

    again = project.runpytest_inprocess("-v")

    again.assert_outcomes(failed=2)
    again.stdout.fnmatch_lines(
        ["findings/template-divergence-*.jsonl::* FAILED*", "test_scheduler.py::* FAILED*"]
    )
    again.stdout.fnmatch_lines(["still found: findings/template-divergence-*.jsonl"])
    write(project.path)
    project.runpytest_inprocess().assert_outcomes(passed=2)


def test_a_dangling_link_among_findings_gives_a_warning(project: pytest.Pytester) -> None:
    (project.path / "findings").mkdir()
    (project.path / "findings" / "gone.jsonl").symlink_to("nowhere.jsonl")

    ran = project.runpytest_inprocess()

    ran.assert_outcomes(passed=1, warnings=1)
    ran.stdout.fnmatch_lines(["*findings/gone.jsonl: No such file or directory; not run again"])


def test_of_ten_findings_ten_tests_are_red_and_green_once_all_is_mended(
    project: pytest.Pytester,
) -> None:
    assert len(FAULTS) == 10
    for name in FAULTS:
        found = api.conform(
            class_named(broken(name)),
            episodes=7,
            findings=project.path / "findings" / name,
            name="driver.py",
        ).findings
        assert found, name
        first = project.path / "findings" / f"{name.replace(' ', '_')}.jsonl"
        found[0].path.rename(first)
    write(project.path, *FAULTS)

    project.runpytest_inprocess("findings").assert_outcomes(failed=10)

    write(project.path)
    project.runpytest_inprocess("findings").assert_outcomes(passed=10)


def test_a_class_in_the_test_itself_is_driven_in_the_same_process(
    pytester: pytest.Pytester,
) -> None:
    right, wrong = FAULTS["joins behind"]
    text = broken("joins behind").replace("from lockstep_driver", "from lockstep.api")
    text = text.replace("Driver, serve", "Driver").partition("if __name__")[0]
    test = "def test_mine(lockstep):\n    lockstep.conform(Toy, episodes=4)\n"
    path = pytester.makepyfile(test_mine=text + test)

    pytester.runpytest_inprocess().assert_outcomes(failed=1)
    pytester.runpytest_inprocess("findings").assert_outcomes(failed=1)

    path.write_text(path.read_text().replace(wrong, right))
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_the_fixture_takes_every_edge_of_named_instances(pytester: pytest.Pytester) -> None:
    named = 'instances=["first come, first served"]'
    text = f"""
    def test_all(lockstep):
        conformed = lockstep.conform("template", {named})
        assert conformed.coverage.left == 0 < conformed.coverage.total
    """
    pytester.makepyfile(text)

    pytester.runpytest_inprocess().assert_outcomes(passed=1)


# --- episodes, profiles, workers ------------------------------------------------------------------

COUNTS = """
def test_named(lockstep):
    assert lockstep.conform("template", episodes=3).campaign.episodes == {named}

def test_not_named(lockstep):
    assert lockstep.conform("template").campaign.episodes == {other}
"""


@pytest.mark.parametrize(
    ("options", "named", "other"),
    [
        (["--lockstep-profile", "quick"], 3, 20),
        (["--lockstep-profile", "mine"], 3, 4),
        (["--lockstep-episodes", "2", "--lockstep-profile", "quick"], 2, 2),
    ],
    ids=["built in", "of the project", "by option"],
)
def test_episodes_are_those_of_the_option_the_call_or_the_profile(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    named: int,
    other: int,
) -> None:
    def conform(*_: object, episodes: int, **_keys: object) -> SimpleNamespace:
        return SimpleNamespace(holds=True, report="-", campaign=SimpleNamespace(episodes=episodes))

    monkeypatch.setattr("lockstep.conforming.conform", conform)
    pytester.makeini("[pytest]\nlockstep_profiles =\n    mine = 4\n")
    pytester.makepyfile(COUNTS.format(named=named, other=other))

    pytester.runpytest_inprocess(*options).assert_outcomes(passed=2)


def test_an_unknown_profile_is_refused(pytester: pytest.Pytester) -> None:
    ran = pytester.runpytest_inprocess("--lockstep-profile", "slow")

    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines(["ERROR: profile 'slow'; allowed: quick, default, thorough"])


@pytest.mark.thorough
def test_workers_of_xdist_find_and_store_the_same(project: pytest.Pytester) -> None:
    write(project.path, "last come first served")
    run = project.runpytest_inprocess()
    stored = {path.name: path.read_bytes() for path in (project.path / "findings").iterdir()}

    several = project.runpytest_subprocess("-n", "2")

    run.assert_outcomes(failed=1)
    several.assert_outcomes(failed=2)
    found = {path.name: path.read_bytes() for path in (project.path / "findings").iterdir()}
    assert found == stored


# --- explore, replay, refusals --------------------------------------------------------------------


def test_explore_and_replay_fail_with_what_is_broken(pytester: pytest.Pytester) -> None:
    pytester.makefile(
        ".jsonl",
        w='{"id": "a", "prompt_len": 1, "max_tokens": 4}\n'
        '{"id": "b", "prompt_len": 1, "max_tokens": 2}\n',
    )
    pytester.makepyfile(
        """
        from lockstep import api

        KEYS = dict(block_size=2, chunk_size=4, max_model_len=16, max_batch_tkv_limit=6)

        def test_exact(lockstep):
            lockstep.explore(api.configuration(**KEYS), "w.jsonl")

        def test_documented(lockstep):
            lockstep.explore(api.configuration(**KEYS, admission="documented"), "w.jsonl")

        def test_counterexample(lockstep):
            lockstep.replay("counterexamples/own-requests-spy-vol-1.jsonl")
        """
    )

    ran = pytester.runpytest_inprocess()

    ran.assert_outcomes(passed=1, failed=2)
    ran.stdout.fnmatch_lines(
        [
            "* states: refuted: SPY-VOL-1",
            "SPY-VOL-1 is broken in 'own requests'",
            "  replay: lockstep replay counterexamples/own-requests-spy-vol-1.jsonl",
            "the violation is confirmed",
        ]
    )


def test_a_driver_that_is_not_there_fails_in_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile('def test_it(lockstep):\n    lockstep.conform("none.py")\n')

    ran = pytester.runpytest_inprocess()

    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["cannot read none.py: no such file; *"])


def test_other_files_are_no_tests(pytester: pytest.Pytester) -> None:
    directory = pytester.path / "findings"
    directory.mkdir()
    Path(directory / "notes.jsonl").write_text('{"format": "of another tool"}\n')

    assert pytester.runpytest_inprocess().ret == pytest.ExitCode.NO_TESTS_COLLECTED
