"""Plots of runs and explorations show the measured values."""

import sys
from pathlib import Path

import pytest

from checks.export.plots import Course
from checks.export.policy import presentation_of
from tests.checks.command import lockstep
from tests.checks.export.runs import configured, run_of
from tests.requests import request

EXAMPLES = Path(__file__).parents[3] / "examples"
RUN = ("run", str(EXAMPLES / "first.jsonl"), "--config", str(EXAMPLES / "first.toml"))


def test_a_course_measures_what_the_steps_were() -> None:
    config = configured(2, 4, 16, max_num_seqs=2, max_batch_tkv_limit=12, prefix_caching=False)
    course = Course(config)
    for step in run_of(config, request("0", 3, 3), request("1", 1, 3)).steps:
        course.observe(presentation_of(config.policy).decisions(config, step))

    assert course.limit == 12
    assert max(course.sizes) == 12
    assert course.waiting[0] == 1
    assert course.waiting[-1] == 0
    assert course.padding_share()[-1] == sum(course.padding) / sum(course.volumes) > 0
    assert course.hit_rate()[-1] == 0


@pytest.mark.parametrize(("name", "begins"), [("run.html", b"<!doctype"), ("run.png", b"\x89PNG")])
def test_a_run_is_drawn_as_the_name_of_the_file_says(
    tmp_path: Path, name: str, begins: bytes
) -> None:
    path = tmp_path / name
    ran = lockstep(*RUN, "--plot", str(path))

    assert ran.code == 0
    assert f"written: {path}" in ran.out
    assert path.read_bytes().startswith(begins)


def test_runs_that_are_compared_are_drawn_over_each_other(tmp_path: Path) -> None:
    path = tmp_path / "rules.svg"
    ran = lockstep(*RUN, "--compare", "admission=exact,shipped", "--plot", str(path))

    assert ran.code == 0
    drawn = path.read_text()
    assert "admission=exact" in drawn
    assert "admission=shipped" in drawn
    assert "time to first token" in drawn
    assert "http" not in drawn.replace("http://www.w3.org", "").replace("xmlns", "")[5_000:]


def test_an_exploration_is_drawn_by_depth(tmp_path: Path) -> None:
    path = tmp_path / "depths.html"
    ran = lockstep("explore", "documented", "--out", str(tmp_path), "--plot", str(path))

    assert ran.code == 1
    assert "actions from the start" in path.read_text()


def test_another_kind_of_file_is_refused_before_the_run(tmp_path: Path) -> None:
    ran = lockstep(*RUN, "--plot", str(tmp_path / "run.pdf"))

    assert ran.code == 2
    assert "a file that ends with .html, .png, .svg" in ran.err


def test_without_the_extra_the_command_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = lockstep(*RUN, "--plot", str(tmp_path / "run.svg"))

    assert ran.code == 2
    assert "lockstep-schedulers[plot]" in ran.err
