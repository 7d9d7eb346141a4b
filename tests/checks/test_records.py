"""Records: an entry's rules are written once, and read back where another entry names them."""

from pathlib import Path

from checks.evidence import recorded, write_record


def test_a_record_is_read_as_it_was_written_and_lists_equal_rules_once(tmp_path: Path) -> None:
    """The second of two entries with equal rules names the first; one with others lists its own."""
    path = tmp_path / "record.json"
    record: dict[str, dict[str, object]] = {
        "small": {"states": 3, "rules": ["A-1", "A-2"]},
        "large": {"states": 4, "rules": ["A-1", "A-2"]},
        "other": {"states": 5, "rules": ["A-1"]},
        "unjudged": {"states": 6},
    }
    write_record(record, path)
    assert recorded(path) == record
    assert path.read_text(encoding="utf-8").count('"A-2"') == 1
