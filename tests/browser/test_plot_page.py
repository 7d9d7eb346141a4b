"""The page of a plot: it can be read and enlarged on a narrow screen."""

from pathlib import Path

import pytest
from playwright.sync_api import Page

from checks.export.plots import plot_depths
from tests.browser.conftest import Opener

pytestmark = pytest.mark.thorough

NARROW = 390  # pixels
LEAST_TEXT_PX = 11


def plot_width(page: Page) -> float:
    width: float = page.evaluate(
        "document.querySelector('figure > svg').getBoundingClientRect().width"
    )
    return width


def test_a_plot_can_be_read_and_enlarged_on_a_narrow_screen(tmp_path: Path, opened: Opener) -> None:
    path = tmp_path / "plot.html"
    plot_depths(path, {"one": [1, 4, 9], "other": [1, 2, 3]})

    page = opened(path, width=NARROW)
    least: float = page.evaluate(
        "Math.min(...[...document.querySelectorAll('svg text')]"
        ".map((text) => text.getBoundingClientRect().height))"
    )
    before = plot_width(page)
    page.get_by_label("larger").check()

    assert least >= LEAST_TEXT_PX
    assert plot_width(page) == pytest.approx(2 * before)
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW  # the plot scrolls
