"""The benchmark measures what it says: so many rows decode while so many wait."""

import pytest

from benchmarks.scheduler import main


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--blocked", "volume"],
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


def test_memory_is_told_for_growing_queues(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--memory", "--requests", "8"])

    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines[0] == "| queued | peak MiB | bytes per request |"
    assert [line.split("|")[1] for line in lines[2:]] == [" 2 ", " 4 ", " 8 "]
