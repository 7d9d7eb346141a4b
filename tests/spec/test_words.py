"""Values in the messages of violated rules."""

from spec.core.words import by_name, changes
from spec.vllm_v1.records import Sequence


def test_values_are_written_behind_their_names() -> None:
    assert by_name({"0": 2, "1": 1}) == "(0: 2, 1: 1)"
    assert by_name({}) == "none"


def test_of_a_record_only_the_fields_that_differ_are_written() -> None:
    was = Sequence("0", 4, 0)
    assert changes(was, Sequence("0", 5, 1)) == "prompt_len 4 -> 5, arrival 0 -> 1"
    assert changes(was, was) == ""
    assert changes(was, None) == "gone"
