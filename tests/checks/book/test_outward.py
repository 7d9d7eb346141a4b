"""Links out of the book: each has one of the known forms, and all of them stand in a list."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown import markdown

from checks.book.building import PAGES
from checks.book.chapters import chapter_pages
from checks.book.drawing import Films
from checks.book.outward import PLUGIN_PAGE, citation, release_links
from checks.book.releases import release_pages
from checks.book.rules import rule_pages
from checks.registry import RULES
from spec.core.rule import Source

LIST = Path(__file__).with_name("outward_links.txt")
IN_MARKDOWN = re.compile(r"\]\((https?://[^)\s]+)\)")
IN_HTML = re.compile(r'href="(https?://[^"]+)"')
REPOSITORY = r"https://github\.com/(?:torch-spyre/sendnn-inference|vllm-project/vllm|GeeeekExplorer/nano-vllm)"
FORMS = (
    re.compile(REPOSITORY),
    re.compile(rf"{REPOSITORY}/issues"),
    re.compile(rf"{REPOSITORY}/pull/\d+"),
    re.compile(rf"{REPOSITORY}/commit/[0-9a-f]{{8}}"),
    re.compile(rf"{REPOSITORY}/tree/(?:v\d+\.\d+\.\d+|9e8507e|bb823b3)(?:/[\w/]+)?"),
    re.compile(rf"{REPOSITORY}/blob/v\d+\.\d+\.\d+/[\w/]+\.py#L\d+"),
    re.compile(rf"{re.escape(PLUGIN_PAGE)}(?:#[a-z0-9-]+)?"),
    re.compile(r"https://pypi\.org/project/[a-z-]+/\d+\.\d+\.\d+/"),
)


def outward_links() -> Iterator[str]:
    pages = [*rule_pages([], lambda _run, _name: ""), *release_pages(Films({}, {}))]
    for text in (
        *(page.text for page in pages),
        *(path.read_text() for path in PAGES.glob("*.md")),
    ):
        yield from IN_MARKDOWN.findall(text)
    for page in chapter_pages():
        yield from IN_HTML.findall(markdown(page.text, extensions=["tables", "checks.book.links"]))


def is_known(link: str) -> bool:
    return any(form.fullmatch(link) for form in FORMS)


def test_links_out_of_the_book_have_a_known_form_and_stand_in_the_list() -> None:
    links = sorted(set(outward_links()))

    assert [link for link in links if not is_known(link)] == []
    assert links == LIST.read_text(encoding="utf-8").split()
    assert len(links) >= 100


@pytest.mark.parametrize(
    "link",
    [
        "http://github.com/vllm-project/vllm",
        "https://github.com/vllm-project/vllm/blob/main/vllm/v1/request.py#L59",
        "https://pypi.org/project/vllm/0.28/",
        "https://github.com/vllm-project/vllm/pull/abc",
    ],
)
def test_a_link_of_another_form_is_noticed(link: str) -> None:
    assert not is_known(link)


def test_the_source_of_every_rule_is_a_link() -> None:
    own = [rule.id for rule in RULES.values() if "](" not in citation(rule.source)]

    assert {RULES[id_].source.text for id_ in own} == {"lockstep"}
    assert citation(Source("spyre", "Priority rules, No idle steps")).endswith("#priority-rules)")


def test_a_release_leads_to_its_package_its_source_and_its_issues() -> None:
    assert release_links("nano-vllm-npu 0.0.2").count("](") == 1
    assert release_links("sendnn-inference 2.6.3 on vLLM 0.28.0").count("](") == 6
