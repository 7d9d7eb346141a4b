"""Recorded choices replay the same case; fewer or smaller choices give a simpler case."""

import pytest

from checks.harness.campaigns.shrinking import is_simpler, simpler_nodes
from checks.harness.choices import Choices, Earlier, Node


def drawn(choices: Choices) -> list[object]:
    """Draw a value of every kind."""
    numbers: list[object] = [choices.between(3, 9), choices.chance(0.5), choices.one_of("abc")]
    part = choices.part()
    more = [part.between(0, 5) for _ in range(part.between(0, 3))]
    rows = [
        choice.between(0, index) + choice.earlier(9)
        for index, choice in enumerate(choices.several(2, 6))
    ]
    return [*numbers, more, rows, choices.between(0, 99)]


EPISODES = [next(Choices.seeded(7, episode)) for episode in range(15)]


@pytest.mark.parametrize("choices", EPISODES)
def test_drawn_again_they_are_the_same(choices: Choices) -> None:
    made = drawn(choices)
    again = Choices.again(choices.node)

    assert drawn(again) == made
    assert again.node == choices.node


def test_without_any_the_simplest_is_drawn() -> None:
    assert drawn(Choices.again(())) == [3, False, "a", [], [0], 0]


def test_numbers_that_are_too_large_or_of_another_form_are_made_to_fit() -> None:
    choices = Choices.again((99, 7, (), 1, (), ((5,),)))

    assert choices.between(3, 9) == 9
    assert choices.chance(0.5)
    assert choices.between(0, 4) == 0
    assert choices.node == (6, 1, 0)


def test_what_is_drawn_in_a_part_moves_nothing_behind_it() -> None:
    def last(count: int) -> int:
        choices = Choices.again((((count, 1, 2, 3),), 7))
        part = choices.part()
        assert [part.between(0, 9) for _ in range(part.between(0, 3))] == [1, 2, 3][:count]
        return choices.between(0, 9)

    assert {last(count) for count in range(4)} == {7}


def test_a_repetition_that_is_left_out_is_not_what_others_name() -> None:
    def node(*names: int) -> Node:
        return (tuple((Earlier(name),) for name in names),)

    fewer = [nodes for nodes in simpler_nodes(node(0, 0, 1, 1)) if len(nodes[0]) == 3]

    assert fewer == [node(0, 0, 0), node(0, 0, 0), node(0, 0, 1), node(0, 0, 1)]


@pytest.mark.parametrize("choices", EPISODES[:5])
def test_what_is_tried_is_simpler_or_not_run(choices: Choices) -> None:
    drawn(choices)
    tried = list(simpler_nodes(choices.node))

    assert sum(is_simpler(nodes, choices.node) for nodes in tried) > len(tried) / 2


def test_fewer_repetitions_are_simpler_than_lower_numbers() -> None:
    assert is_simpler((9, ((9,),)), (0, ((0,), (0,))))
    assert is_simpler((0, 9), (1, 0))
    assert not is_simpler((1, 0), (1, 0))
