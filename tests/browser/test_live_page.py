"""The live page: the reference is stepped by hand, and all files come from the disk."""

import json
import shutil
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import MAX_WBITS, decompress

import pytest
from playwright.sync_api import Page

from checks.export.files import new_file
from checks.export.pages.assets import write_assets
from checks.export.pages.markup import live_element, live_fragment
from checks.export.pages.runtime import write_runtime
from checks.harness.views.live import Live
from checks.registry import POLICIES
from tests.browser.conftest import Opener
from tests.browser.test_view_page import found_by_axe
from tests.checks.harness.views import test_live

pytestmark = pytest.mark.thorough

BREAKS = test_live.BREAKS
SITUATION = test_live.SITUATION | {"title": "an example", "actions": BREAKS[:3]}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with one live example."""
    if shutil.which("npm") is None:
        pytest.skip("no npm")
    directory = tmp_path_factory.mktemp("site")
    (directory / "assets").mkdir()
    write_assets(directory / "assets")
    write_runtime(directory / "assets")
    path = directory / "live.html"
    with new_file(path) as file:
        file.write(
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>live</title>'
            '<meta name="viewport" content="width=device-width">'
            "<style>:root{color-scheme:light dark}body{background:light-dark(#fff,#1b2128)}</style>"
            '<script src="assets/lockstep.js" defer></script>'
            f"<main><h1>live</h1>{live_element(SITUATION, runtime='assets/')}</main>"
        )
    return path


def headline(page: Page) -> str:
    return page.locator("lockstep-live .headline").inner_text()


def wait_until_shown(page: Page, text: str) -> None:
    page.locator("lockstep-live .headline", has_text=text).wait_for()


def situation_at(url: str) -> Any:
    """The situation that an address says."""
    packed = url.partition("#live=")[2]
    return json.loads(decompress(urlsafe_b64decode(packed + "=="), wbits=-MAX_WBITS))


def next_is(page: Page, action: str) -> None:
    page.get_by_role("button", name=action, exact=True).click()


def test_a_rule_turns_red_where_the_reader_leads_the_reference(site: Path, opened: Opener) -> None:
    page = opened(site)
    wait_until_shown(page, "step 0")

    for step in (1, 2, 3):
        next_is(page, "step")
        wait_until_shown(page, f"step {step}")

    assert "batch 2 x tkv 4 = 8, limit 6" in page.locator(".says .alert").inner_text()
    said = situation_at(page.url)
    assert said["actions"] == BREAKS
    again = opened(site, "#" + live_fragment(said))
    wait_until_shown(again, "step 3")
    assert "SPY-VOL-1" in again.locator(".says .alert").inner_text()


def test_a_request_can_be_aborted_and_a_step_taken_back(site: Path, opened: Opener) -> None:
    page = opened(site)
    wait_until_shown(page, "step 0")

    next_is(page, "abort 0")
    wait_until_shown(page, "abort 0")
    assert "aborted: 0" in headline(page)
    page.keyboard.press("Tab")
    page.locator("lockstep-live input[type=range]").focus()
    page.keyboard.press("ArrowLeft")
    wait_until_shown(page, "step 0")
    page.get_by_role("button", name="Go on otherwise from here").click()
    next_is(page, "step")
    wait_until_shown(page, "step 1")


def test_the_reader_is_told_what_is_loaded_and_for_how_long(site: Path, opened: Opener) -> None:
    page = opened(site)
    told = page.evaluate(TOLD_WHILE_LOADING)

    first, *_ = told
    assert first["after_ms"] <= 500
    assert first["says"].startswith("Loading the reference: ")
    assert {line["says"].split(":")[1].split(",")[0].strip() for line in told} >= {
        "starting the interpreter",
        "importing the rules",
    }
    page.locator("lockstep-live[name=again] .status").wait_for(state="hidden")


TOLD_WHILE_LOADING = """async () => {
  const live = document.createElement("lockstep-live");
  live.setAttribute("runtime", "assets/");
  live.setAttribute("name", "again");
  live.innerHTML = document.querySelector("lockstep-live").innerHTML;
  const begin = performance.now();
  document.querySelector("main").prepend(live);
  const told = [];
  while (!live.situation) {
    const says = live.status.textContent;
    if (says.startsWith("Loading") && says !== told.at(-1)?.says)
      told.push({ says, after_ms: performance.now() - begin });
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return told;
}"""


def test_a_prompt_of_its_own_is_a_number_and_a_shared_one_has_its_stream(
    site: Path, opened: Opener
) -> None:
    requests = [
        {"id": "0", "prompt_parts": [["0", 3]], "max_tokens": 2},
        {"id": "1", "prompt_parts": [["system", 2]], "max_tokens": 2},
        {"id": "2", "prompt_parts": [["system", 2], ["2", 1]], "max_tokens": 2},
    ]
    fragment = "#live=" + quote(json.dumps(SITUATION | {"requests": requests, "actions": []}))
    page = opened(site, fragment)  # an address of JSON, as before
    wait_until_shown(page, "start")
    page.get_by_text("Requests and configuration").click()

    typed = [page.get_by_label(f"prompt of request {id_}").input_value() for id_ in "012"]
    assert typed == ["3", "system:2", "system:2 2:1"]


def test_configuration_and_requests_can_be_edited(site: Path, opened: Opener) -> None:
    page = opened(site)
    wait_until_shown(page, "step 0")
    page.get_by_text("Requests and configuration").click()

    page.get_by_label("admission").select_option("exact")
    wait_until_shown(page, "start")
    page.locator("lockstep-live input[type=range]").focus()
    page.keyboard.press("End")
    wait_until_shown(page, "finished: 1")
    assert page.locator(".says .alert").count() == 0

    page.get_by_label("prompt of request 1").fill("99")
    page.get_by_label("prompt of request 1").press("Enter")
    page.locator("lockstep-live .alert", has_text="max_model_len").wait_for()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_stepped(policy: str, site: Path, opened: Opener) -> None:
    first = json.loads(json.dumps({"policy": policy, "config": {}, "requests": []}))
    first |= {"config": {"num_blocks": 8, "max_num_seqs": 2, "max_model_len": 16}}
    first["config"] |= {"block_size": 2} | ({"chunk_size": 4} if policy == "spyre" else {})
    first["requests"] = [{"id": "a", "prompt_len": 3, "max_tokens": 3}]
    here = json.loads(Live().open(json.dumps(first)))

    page = opened(site, "#" + live_fragment(first | {"at": len(here["actions"])}))

    wait_until_shown(page, here["document"]["frames"][-1][0]["label"])
    rows = page.locator("lockstep-live .rows .request").all_inner_texts()
    assert rows == [row["id"] for row in here["document"]["frames"][-1][0]["rows"]]
    assert "none broken" in page.locator(".verdicts .sum").inner_text()


def test_axe_finds_nothing_above_minor(site: Path, opened: Opener, node_modules: Path) -> None:
    axe = (node_modules / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    for width, scheme in ((1280, "light"), (360, "dark")):
        page = opened(site, width=width, scheme=scheme)
        wait_until_shown(page, "step 0")
        page.get_by_text("Requests and configuration").click()
        page.evaluate(axe)
        assert found_by_axe(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
