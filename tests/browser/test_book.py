"""The built book in a browser: pages open, fit the screen and are accessible; runs can continue."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from attrs import define, field
from playwright.sync_api import Page, TimeoutError

from checks.book.building import build
from tests.browser.conftest import Opener
from tests.browser.test_live_page import situation_at, wait_until_shown
from tests.browser.test_view_page import found_by_axe

pytestmark = pytest.mark.thorough

SCREENS = [(360, "dark"), (1280, "light")]
MADE_ALIKE = ("rules", "instances", "proofs")  # a page for each of hundreds, by one function
EACH = 12  # of such pages axe looks at one in so many: it takes a second for each
SETTLED_MS = 10_000  # the theme puts wide tables into boxes that scroll when the page is there


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole book, as `lockstep book` writes it."""
    out = tmp_path_factory.mktemp("book")
    built = build(out, lambda _doing: None)
    assert built.pages > 700
    return out


def built_pages(book: Path) -> dict[str, list[Path]]:
    """The pages of the book by directory; "" is the root."""
    found: dict[str, list[Path]] = {}
    for path in sorted(book.rglob("*.html")):
        found.setdefault(path.parent.relative_to(book).as_posix(), []).append(path)
    return found


# --- links ----------------------------------------------------------------------------------------


@define
class _Links(HTMLParser):
    """Targets of a page's links and loads, and the anchors that it defines."""

    targets: list[str] = field(factory=list)
    anchors: set[str] = field(factory=set)

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value and tag != "base":
                self.targets.append(value)
            if name == "id" and value:
                self.anchors.add(value)


def page_links(path: Path) -> _Links:
    links = _Links()
    links.feed(path.read_text(encoding="utf-8"))
    return links


def astray(path: Path, links: dict[Path, _Links]) -> Iterator[str]:
    """The link targets of a page that do not exist."""
    for target in links[path].targets:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        is_place = parts.fragment and "=" not in parts.fragment  # else it is said to an example
        if not to.exists() or (is_place and unquote(parts.fragment) not in links[to].anchors):
            yield f"{path.name}: {target}"


def test_every_link_leads_to_a_page_and_a_place_in_it(book: Path) -> None:
    links = {path: page_links(path) for path in book.rglob("*.html")}

    assert [target for path in links for target in astray(path, links)] == []
    assert sum(len(link.targets) for link in links.values()) > 10_000


def test_a_link_that_leads_nowhere_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text('<a href="b.html"></a><a href="#x"></a><h2 id="y"></h2><a href="#y"></a>')

    assert [*astray(page, {page: page_links(page)})] == ["a.html: b.html", "a.html: #x"]


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("kind", [".", "chapters", "releases", *MADE_ALIKE])
def test_every_page_opens_without_an_error_and_fits_the_screen(
    kind: str, width: int, scheme: str, book: Path, opened: Opener, node_modules: Path
) -> None:
    axe = (node_modules / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    paths, page = built_pages(book)[kind], opened(book / "index.html", width=width, scheme=scheme)
    found: Counter[str] = Counter()
    looked_at = 0
    for number, path in enumerate(paths):
        page.goto(path.as_uri())
        found.update(too_wide(page, width))
        if kind not in MADE_ALIKE or number % EACH == 0:
            page.evaluate(axe)
            found.update(f"{path.name}: {finding}" for finding in found_by_axe(page))
            looked_at += 1

    print(f"{kind}: {len(paths)} pages, {looked_at} looked at by axe")
    assert not found, "\n".join(found)


def too_wide(page: Page, width: int) -> list[str]:
    """True if the page stays wider than the screen."""
    with suppress(TimeoutError):  # also where a page is busy with the runtime that it loads
        page.wait_for_function(
            f"document.documentElement.scrollWidth <= {width}", timeout=SETTLED_MS
        )
    wide: int = page.evaluate("document.documentElement.scrollWidth")
    return [f"{page.url} is {wide} px wide"] if wide > width else []


# --- the search ---------------------------------------------------------------------------------


@pytest.mark.parametrize("id_", ["SPY-VOL-1", "PRV-VOL-1", "V1-KV-10"])
def test_the_search_of_a_file_finds_the_page_of_an_id_first(
    id_: str, book: Path, opened: Opener
) -> None:
    page = opened(book / "index.html")
    page.keyboard.press("/")
    page.locator("input[placeholder=Search]").fill(id_)

    first = page.locator("a", has=page.locator("h2")).first
    first.get_by_text(id_).first.wait_for()
    href = first.get_attribute("href") or ""
    assert href.partition("?")[0].endswith(f"/{id_}.html")


# --- the way of a reader --------------------------------------------------------------------------


def test_why_a_request_was_refused_is_two_clicks_from_the_start(book: Path, opened: Opener) -> None:
    page = opened(book / "index.html")
    here = page.locator('lockstep-steps[name="later"]')
    assert here.locator(".headline").inner_text().startswith("step 5")
    assert "Request 1 is kept waiting by SPY-VOL-2" in here.locator(".refusal").inner_text()

    page.get_by_role("link", name="Why was request 1 refused in step 5").click()

    row = page.locator("tr", has=page.locator("#step-5")).first
    assert row.locator("td").all_inner_texts() == [
        "5",
        "decode 0; 1 waits: SPY-VOL-2",
        "decode 0; 1 waits: SPY-VOL-4",
    ]
    assert row.is_visible()
    row.get_by_role("link", name="SPY-VOL-4").click()
    assert page.locator("h1").inner_text().startswith("SPY-VOL-4")


# --- runs -----------------------------------------------------------------------------------------


def situations(book: Path) -> dict[str, Any]:
    """The target of every "Run it here" link, by the document of the run beside it."""
    element = re.compile(
        r'<lockstep-steps[^>]*src="?[./]*steps/([\w.-]+)\.js.*?live\.html#([^"\s>]+)'
    )
    found = {}
    for path in book.rglob("*.html"):
        for name, fragment in element.findall(path.read_text(encoding="utf-8")):
            found[name] = situation_at(f"#{fragment}")
    return found


def document_of(book: Path, name: str) -> Any:
    text = (book / "steps" / f"{name}.js").read_text(encoding="utf-8")
    return json.JSONDecoder().raw_decode(text.partition("= ")[2])[0]


def test_every_run_of_the_book_goes_on_in_the_browser_and_breaks_what_it_broke(
    book: Path, opened: Opener
) -> None:
    page = opened(book / "live.html")
    wait_until_shown(page, "start")
    runs = situations(book)
    assert len(runs) > 450

    otherwise = {}
    for name, situation in runs.items():
        ran = page.evaluate(OPEN, situation)
        before = document_of(book, name)["overview"]["broken"]
        broken = sorted({rule for rules in before.values() for rule in rules})
        if (ran["wrong"], ran["broken"]) != ("", broken):
            otherwise[name] = (ran, broken)

    print(f"{len(runs)} runs")
    assert otherwise == {}


OPEN = """async (situation) => {
  const live = document.querySelector("lockstep-live");
  await live.open(situation, false);
  const broken = Object.values(live.steps.film.overview.broken).flat();
  return { wrong: live.problem.textContent, broken: [...new Set(broken)].sort() };
}"""
