"""The page that `lockstep view` writes, as a reader uses it."""

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import CDPSession, Page

from checks.explore.counterexample import write_counterexample
from checks.explore.exploring import explore_instance
from checks.explore.policy import machine_of
from checks.export.files import new_file
from checks.export.pages.assets import WEB
from checks.export.pages.document import unpacked
from checks.export.pages.markup import page as page_of
from checks.export.printable import printable
from checks.harness.case import Case
from checks.harness.runs.serving import served
from checks.harness.views.showing import document_of_steps
from checks.harness.views.viewing import document_of_file
from checks.registry import claims_of
from spec.core.requests import Prompt, Request
from spec.spyre.config import SpyreConfig
from tests.browser.conftest import Opener
from tests.checks.outside.test_printing import EVIL, SHOWN

RECORDED = Path(__file__).parents[1] / "recorded"
MOST_MS = 100  # a step, on a machine that does nothing else
Json = dict[str, Any]


def written(document: Json, directory: Path) -> Path:
    path = directory / "page.html"
    with new_file(path) as file:
        file.write(page_of(document))
    return path


@pytest.fixture(scope="module")
def counterexample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the documented volume rule's counterexample."""
    directory = tmp_path_factory.mktemp("documented")
    named = {instance.name: instance for instance in machine_of("spyre").instances}
    exploration = explore_instance(named["documented"])
    write_counterexample(exploration, exploration.findings[0], directory / "found.jsonl")
    return written(document_of_file(directory / "found.jsonl"), directory)


def headline(page: Page) -> str:
    return page.locator("lockstep-steps .headline").inner_text()


def test_the_page_opens_at_the_step_that_breaks_the_rule(
    counterexample: Path, opened: Opener
) -> None:
    page = opened(counterexample)

    assert headline(page).startswith("step 3 · decode · 2 requests decode")
    page.keyboard.press("Home")
    assert headline(page).startswith("step 0 · prefill · 0: chunk 1 of 1")
    page.keyboard.press("End")
    assert "batch 2 x tkv 4 = 8, limit 6" in page.locator(".says .alert").inner_text()
    assert "over the limit" in page.locator(".meters .over").inner_text()
    page.keyboard.press("ArrowLeft")
    assert headline(page).startswith("step 2")
    assert page.url.endswith("#step=2")
    page.get_by_role("button", name="Go to step 3").click()
    assert headline(page).startswith("step 3")


@pytest.mark.thorough
def test_what_a_driver_says_is_shown_with_its_control_characters_as_escapes(
    tmp_path: Path, opened: Opener
) -> None:
    document = document_of_file(RECORDED / "vllm-v1-0.28.0-unwritten.jsonl")
    named = json.dumps(document["requests"][0]["id"])
    text = json.dumps(document).replace(named, json.dumps(EVIL))
    document = json.loads(text) | {"title": EVIL, "about": EVIL, "sides": ["reference", EVIL]}
    document["violation"] = {"rule": "", "says": EVIL, "found": EVIL, "frame": 0}

    page = opened(written(document, tmp_path))

    assert page.title() == SHOWN
    said = page.locator("lockstep-steps .lockstep").inner_text()
    assert printable(said) == said
    assert said.count(SHOWN) > 4


@pytest.mark.thorough
def test_a_link_opens_the_step_that_it_names(counterexample: Path, opened: Opener) -> None:
    page = opened(counterexample, "#step=2")

    assert headline(page).startswith("step 2")
    page.evaluate("location.hash = '#step=1'")
    page.wait_for_function(
        "document.querySelector('lockstep-steps').shadowRoot"
        ".querySelector('.headline').textContent.startsWith('step 1')"
    )


@pytest.mark.thorough
def test_every_key_goes_where_it_says(tmp_path: Path, opened: Opener) -> None:
    document = document_of_file(RECORDED / "sendnn-overtaken.jsonl")
    events = document["overview"]["events"]
    page = opened(written(document, tmp_path))

    page.keyboard.press("Home")
    for key, due in [
        ("PageDown", 10),
        ("ArrowRight", 11),
        ("PageUp", 1),
        ("Home", 0),
        ("n", next(number for number in events if number > 0)),
        ("End", document["overview"]["count"] - 1),
        ("p", [number for number in events if number < document["overview"]["count"] - 1][-1]),
    ]:
        page.keyboard.press(key)
        assert headline(page).startswith(f"step {due} "), key


@pytest.mark.thorough
def test_two_sides_stand_beside_each_other_and_what_differs_is_named(
    tmp_path: Path, opened: Opener
) -> None:
    document = document_of_file(RECORDED / "sendnn-2.6.1-freed_to_the_end.jsonl")

    page = opened(written(document, tmp_path))

    assert page.locator(".sidename").all_inner_texts() == document["sides"]
    differs = document["divergence"]["frame"]
    assert headline(page).startswith(f"step {differs}")
    assert "free_list" in page.locator(".differs").inner_text()
    page.keyboard.press("Home")
    assert not page.locator(".differs").is_visible()


@pytest.mark.thorough
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["sendnn-tkv_jumps", "vllm-v0-forked_copied_and_swapped"])
def test_no_page_is_wider_than_the_screen(
    name: str, width: int, tmp_path: Path, opened: Opener
) -> None:
    page = opened(written(document_of_file(RECORDED / f"{name}.jsonl"), tmp_path), width=width)

    for _ in range(8):
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.thorough
@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_step_of_every_recording_is_drawn(path: Path, tmp_path: Path, opened: Opener) -> None:
    document = document_of_file(path)
    page = opened(written(document, tmp_path))

    for index, frame in enumerate(unpacked(document)):
        page.evaluate(f"document.querySelector('lockstep-steps').go({index})")
        drawn = page.locator("lockstep-steps .side")
        for place, shown in enumerate(frame):
            ids = drawn.nth(place).locator(".rows .request").all_inner_texts()
            assert ids == [row["id"] for row in shown["rows"]] if shown else ids == []


def long_document(steps: int) -> Json:
    """A run that is repeated until the document has `steps` steps."""
    config = SpyreConfig(
        block_size=16, chunk_size=64, max_model_len=512, max_num_seqs=8, num_blocks=256
    )
    requests = [
        Request(
            id=str(at), prompt=Prompt.of_stream(str(at), 60 + at), max_tokens=90, arrival=at * 10
        )
        for at in range(64)
    ]
    ctx = claims_of(config.policy).context_of(config, requests)
    document = document_of_steps(ctx, served(Case(config, tuple(requests))), title="long")
    packed, overview = document["packed"], copy.deepcopy(document["overview"])
    whole = overview["count"] // packed["size"]  # chunks that are full
    times = steps // (whole * packed["size"]) + 1
    count = times * whole * packed["size"]
    packed["chunks"] = packed["chunks"][:whole] * times
    kept = whole * packed["size"]
    for measure in overview["measures"]:
        measure["values"] = measure["values"][:kept] * times
    overview |= {"count": count, "kinds": overview["kinds"][:kept] * times}
    return document | {"overview": overview}


@pytest.mark.thorough
def test_a_hundred_thousand_steps_stay_smooth(tmp_path: Path, opened: Opener) -> None:
    document = long_document(100_000)
    page = opened(written(document, tmp_path))
    assert document["overview"]["count"] >= 100_000

    walk = """async (wanted) => {
      const steps = document.querySelector("lockstep-steps");
      for (const index of wanted) {
        const drawn = new Promise((resolve) =>
          steps.addEventListener("lockstep-frame", resolve, { once: true }));
        steps.go(index);
        await drawn;
        void steps.offsetHeight;  // laid out
      }
    }"""
    count = document["overview"]["count"]
    for wanted in ([*range(1, 101)], [(at * 7919 * 13) % count for at in range(1, 51)]):
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = busy_seconds(session)
        page.evaluate(walk, wanted)
        each_ms = 1000 * (busy_seconds(session) - before) / len(wanted)
        print(f"{each_ms:.1f} ms of the page's thread a step")
        assert each_ms <= MOST_MS


def busy_seconds(session: CDPSession) -> float:
    """CPU seconds of the page's thread, without other load of the machine."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


@pytest.mark.thorough
def test_axe_finds_nothing_above_minor(
    counterexample: Path, tmp_path: Path, opened: Opener, node_modules: Path
) -> None:
    axe = (node_modules / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    two = written(document_of_file(RECORDED / "sendnn-2.6.1-freed_to_the_end.jsonl"), tmp_path)
    for path, width, scheme in [
        (counterexample, 1280, "light"),
        (counterexample, 360, "dark"),
        (two, 1280, "dark"),
        (two, 360, "light"),
    ]:
        page = opened(path, "#step=1", width=width, scheme=scheme)
        page.evaluate(axe)
        for group in page.locator("lockstep-steps summary").all():
            group.click()
        assert found_by_axe(page) == []


def found_by_axe(page: Page) -> list[str]:
    found = page.evaluate("axe.run({ preload: false })")
    return [
        f"{violation['id']} ({violation['impact']}): {node['target']}: {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] != "minor"
        for node in violation["nodes"]
    ]


@pytest.mark.thorough
def test_the_script_has_right_types_and_the_project_s_style(node_modules: Path) -> None:
    assert node_modules.exists()
    done = subprocess.run(
        ["npm", "run", "--silent", "check"], cwd=WEB, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
