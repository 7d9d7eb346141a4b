"""The benchmark has the stated numbers of decoding rows and waiting requests."""

from pathlib import Path

import pytest

from benchmarks.scheduler import MODES, main
from checks.releases.environments import environment_of, known_recipe


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--blocked", "volume"],
        ["--policy", "nano-vllm"],
        ["--policy", "vllm-v1"],
        ["--policy", "vllm-v1", "--drafts", "2", "--no-prefix-caching"],
        ["--blocked", "volume", "--admission", "shipped", "--queue", "overtaking"],
    ],
    ids=" ".join,
)
def test_table_has_a_row_for_each_batch_and_queue(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--rows", "1,3", "--waiting", "0,1000", "--steps", "20", *arguments])

    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines[0] == "| rows | waiting | median ms per step | p99 ms |"
    assert [line.split("|")[1:3] for line in lines[2:]] == [
        [" 1 ", " 0 "],
        [" 1 ", " 1,000 "],
        [" 3 ", " 0 "],
        [" 3 ", " 1,000 "],
    ]


def test_batch_that_has_left_meanwhile_is_not_measured() -> None:
    with pytest.raises(SystemExit, match="0 rows decode and 0 wait, not 1 and 0"):
        main(["--rows", "1", "--waiting", "0", "--steps", "3100"])


def test_memory_is_shown_for_growing_queues(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--memory", "--requests", "8"])

    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines[0] == "| queued | peak MiB | bytes per request |"
    assert [line.split("|")[1] for line in lines[2:]] == [" 2 ", " 4 ", " 8 "]


def test_release_that_is_not_installed_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCKSTEP_DRIVERS", str(tmp_path))

    with pytest.raises(SystemExit, match="2"):
        main(["--against", "sendnn"])

    assert "lockstep driver install sendnn" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize("driver", ["sendnn", "nano-vllm", "vllm-v1"])
def test_installed_release_is_measured_next_to_the_engine(
    driver: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not environment_of(known_recipe(driver, None)).is_complete:
        pytest.skip(f"needs: lockstep driver install {driver}")

    main(["--against", driver, "--rows", "2", "--waiting", "10", "--steps", "20"])

    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[4:]]
    modes = [row[2:4] for row in rows]
    assert [row[4:6] for row in rows] == [[" 2 ", " 10 "]] * len(MODES[driver])
    assert len(set(map(tuple, modes))) == len(modes)
    assert all(float(row[8]) > 0 for row in rows)


def test_driver_that_cannot_be_measured_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--against", "template"])

    assert "'template'; allowed: sendnn, nano-vllm, vllm-v1" in capsys.readouterr().err
