"""Pages in Debian's chromium; where it is missing these tests are skipped."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from checks.export.pages.assets import WEB

CHROMIUM = shutil.which("chromium")
ROOT_ARGUMENTS = ["--no-sandbox"] if os.geteuid() == 0 else []

Opener = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ROOT_ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opener]:
    """Open a file at a fragment and a width; neither console errors nor requests may occur."""
    wrong: list[str] = []
    contexts = []

    def open_(path: Path, fragment: str = "", width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # a busy machine
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console",
            lambda message: wrong.append(message.text) if message.type == "error" else None,
        )
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "blob:", "data:"))
                else wrong.append(request.url)
            ),
        )
        page.goto(f"{path.as_uri()}{fragment}")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The packages of `web/package-lock.json`; missing packages are installed."""
    folder = WEB / "node_modules"
    if not (folder / "axe-core").exists():
        if shutil.which("npm") is None:
            pytest.skip("no npm")
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=WEB, check=True)
    return folder
