"""The pictures of the book agree with the reference."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from checks.book.building import PAGES
from checks.book.drawing import Films, written_films
from checks.book.pictures import (
    PictureError,
    examples,
    picture_names,
    steps_of,
    trace_name,
    with_pictures,
    write_examples,
)
from checks.book.published import figures_page, our_numbers
from checks.book.source import policies
from checks.book.staircase import staircase
from checks.chapters import CHAPTERS
from checks.export.figures import PublishedFigure
from checks.export.policy import presentation_of
from spec.spyre.admission import Member, joined_tkvs, projected_volumes
from spec.spyre.padding import max_tkv

NAMES = [trace_name(example) for example in examples().values()]
FILMS = Films(dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, "live=%7B%7D"))


def texts() -> Iterator[str]:
    for path in (*CHAPTERS.glob("*.md"), *PAGES.glob("*.md")):
        yield path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", examples())
def test_the_reference_does_what_the_picture_says(name: str) -> None:
    assert steps_of(examples()[name])


def test_every_example_stands_in_a_page_and_every_picture_is_an_example() -> None:
    placed = {name for text in texts() for name in picture_names(text)}
    beside = {
        figure.example for policy in policies() for figure in presentation_of(policy).published
    }

    assert placed | beside == examples().keys()


def test_a_picture_that_the_reference_no_longer_shows_ends_the_build() -> None:
    two = examples()["documented"]
    keys = two.config.as_mapping() | {"max_batch_tkv_limit": 5}
    larger = evolve(two, config=type(two.config).from_mapping(keys))

    with pytest.raises(PictureError, match="documented: the reference does not show this"):
        steps_of(larger)


def test_a_page_has_the_run_in_the_place_of_its_comment() -> None:
    drawn = with_pictures("before\n<!-- picture: swaps -->\nafter", FILMS, root="../")

    assert drawn.startswith(
        'before\n<div><lockstep-steps name="swaps" src="../steps/example-swaps.js"'
    )
    assert '<a href="../live.html#live=%7B%7D">' in drawn
    assert drawn.endswith("</div>\nafter")


def test_a_picture_that_is_no_example_is_named() -> None:
    with pytest.raises(PictureError, match="no example is called swops; there are chunks"):
        with_pictures("<!-- picture: swops -->", FILMS, root="")


def test_runs_stand_beside_each_other_step_by_step_with_what_keeps_a_request_waiting() -> None:
    lines = with_pictures("<!-- waits: later later-exact -->", FILMS, root="").splitlines()

    documented, exact = "Three requests under the documented rule", "under the exact rule"
    assert lines[0].startswith(f"| step | {documented} | Three requests {exact} |")
    at = dict(enumerate(lines[2:]))
    waits = "decode 0; 1 waits"
    assert at[5] == f'| <span id="step-5">5</span> | {waits}: SPY-VOL-2 | {waits}: SPY-VOL-4 |'
    assert at[8].endswith("| prefill 2 | decode 1; 2 waits: SPY-VOL-4 |")
    assert at[9].endswith("| decode 2, 1; **volume 12, limit 11** | decode 1; 2 waits: SPY-VOL-4 |")
    assert at[13].endswith("| - | decode 2 |")  # the shorter run has ended
    assert lines[-3].startswith("- **SPY-PRI-3:** With interleaving")


def test_the_page_on_refusals_has_the_numbers_that_the_rules_compare() -> None:
    later = examples()["later"]
    step, (first, second, _) = steps_of(later)[5], later.requests
    before: Any = step.before  # of Spyre
    (row,) = before.decoding
    joined = [
        Member(row.computed, first.max_tokens - row.generated),
        Member(second.prompt_len, second.max_tokens),
    ]
    ours, own = joined_tkvs(joined[:1], joined[1], block_size=2)
    expected = ours + joined[0].remaining + 2
    both = max_tkv([row.computed + 1, second.prompt_len + 1], block_size=2)

    assert (row.computed, joined[0].remaining, expected) == (5, 1, 8)
    assert max(projected_volumes([expected], own + joined[1].remaining)) == 16
    assert (both, 2 * both) == (6, 12)


def test_published_figures_stand_beside_ours_with_the_numbers_that_differ() -> None:
    text = figures_page(FILMS).text

    assert "- A decode batch with jumps of tkv: 11 of 11 numbers are the same" in text
    assert "- Every constraint on admission: 17 of 17 numbers are the same" in text
    assert "| volume if request 4 decoded in step 35 | 426 x 4 = 1704 | 426 x 4 = 1704 |" in text
    assert "| tkv of request 1 in line 59 | 362 to 171 | 362 to 171 |  |" in text
    assert "figure 2: the same prompt again: 0 of 5 numbers are the same" in text
    assert "| tokens of computed chunk 1 | 1024 to 1109 | 1023 to 1109 | **differs** |" in text


@pytest.mark.parametrize(
    "figure",
    [figure for policy in policies() for figure in presentation_of(policy).published],
    ids=lambda figure: figure.name,
)
def test_where_a_figure_differs_from_ours_it_is_said_which_is_right(
    figure: PublishedFigure,
) -> None:
    assert (our_numbers(figure) != figure.published) == bool(figure.says)


def test_a_line_has_a_dot_for_each_number_that_is_marked() -> None:
    situation = examples()["worst-case"]
    drawn = staircase(steps_of(situation), situation)

    assert drawn.count("<circle") == 4
    assert "limit 200" in drawn


def test_the_address_of_every_run_is_short(tmp_path: Path) -> None:
    films = written_films(dict(write_examples(tmp_path)), tmp_path / "steps")

    assert films.situations.keys() == set(NAMES)
    assert max(map(len, films.situations.values())) < 8_000  # the longest has 700 token ids
    assert sorted(map(len, films.situations.values()))[-2] < 2_000


def test_a_level_is_drawn_over_its_own_steps() -> None:
    situation = examples()["worst-case-rows"]
    drawn = staircase(steps_of(situation), situation)

    assert [int(level) for level in re.findall(r"<title>(\d+)</title>", drawn)] == [4, 3, 2, 1]
    assert drawn.count('class="level"') == 4
    assert ">batch<" in drawn
