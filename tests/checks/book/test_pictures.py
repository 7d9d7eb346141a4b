"""What the book's pictures claim is what the reference does."""

from collections.abc import Iterator

import pytest
from attrs import evolve

from checks.book.building import PAGES
from checks.book.drawing import Films
from checks.book.pictures import (
    PictureError,
    examples,
    placed_in,
    steps_of,
    trace_name,
    with_pictures,
)
from checks.book.staircase import staircase
from checks.chapters import CHAPTERS

FILMS = Films({trace_name(one): 0 for one in examples().values()})


def texts() -> Iterator[str]:
    for path in (*CHAPTERS.glob("*.md"), *PAGES.glob("*.md")):
        yield path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", examples())
def test_the_reference_does_what_the_picture_says(name: str) -> None:
    assert steps_of(examples()[name])


def test_every_example_stands_in_a_page_and_every_picture_is_an_example() -> None:
    placed = {name for text in texts() for name in placed_in(text)}

    assert placed == examples().keys()


def test_a_picture_that_the_reference_no_longer_shows_ends_the_build() -> None:
    two = examples()["documented"]
    keys = two.config.as_mapping() | {"max_batch_tkv_limit": 5}
    larger = evolve(two, config=type(two.config).from_mapping(keys))

    with pytest.raises(PictureError, match="documented: the reference does not show this"):
        steps_of(larger)


def test_a_page_has_the_run_in_the_place_of_its_comment() -> None:
    drawn = with_pictures("before\n<!-- picture: swaps -->\nafter", FILMS, root="../")

    assert drawn.startswith('before\n<lockstep-steps name="swaps" src="../steps/example-swaps.js"')
    assert drawn.endswith("</lockstep-steps>\nafter")


def test_a_picture_that_is_no_example_is_named() -> None:
    with pytest.raises(PictureError, match="no example is called swops; there are chunks"):
        with_pictures("<!-- picture: swops -->", FILMS, root="")


def test_a_line_has_a_dot_for_each_number_that_is_marked() -> None:
    one = examples()["worst-case"]
    drawn = staircase(steps_of(one), one)

    assert drawn.count("<circle") == 4
    assert "limit 200" in drawn
