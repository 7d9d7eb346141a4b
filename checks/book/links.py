"""Markdown of the book: ids of rules and proofs, words of the glossary and releases are links."""

import re
from functools import cache
from typing import Any
from xml.etree.ElementTree import Element

from attrs import define, field
from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from markdown.util import AtomicString

from checks.book.outward import RELEASE, package_address
from checks.book.source import proof_page, rule_page
from checks.evidence import PROVEN, recorded
from checks.glossary import glossary
from checks.registry import RULES

_UNLINKED = {"a", "code", "pre", "script", "style", "h1", "h2", "h3", "h4", "h5", "h6"}
# Words of the glossary that the chapters mostly use in their everyday sense.
_COMMON = {"abort", "bounds", "case", "computed", "event", "generated", "jump", "reading", "record"}
_COMMON |= {"recording", "reference", "rule", "state", "system", "transition", "turn", "variant"}
_COMMON |= {"verdict"}
_AFTER_INLINE = 15  # behind the processor of inline Markdown, before the one of relative links


@cache
def pages_of_ids() -> dict[str, str]:
    """The page of each rule and of each obligation on record, by id."""
    rules = {id_: rule_page(id_) for id_ in RULES}
    return rules | {id_: proof_page(id_) for id_ in recorded(PROVEN)}


@cache
def anchors_of_words() -> dict[str, str]:
    """The address of each glossary entry, by its word in lower case."""
    names = {
        name: title.lower().replace(", ", "-").replace(" ", "-")
        for title in glossary()
        for name in title.lower().split(", ")
    }
    return {name: f"chapters/glossary.md#{at}" for name, at in names.items() if name not in _COMMON}


@cache
def _linked() -> re.Pattern[str]:
    """The pattern of possible links: an id, a release, or a word of the glossary."""
    words = "|".join(sorted(map(re.escape, anchors_of_words()), key=len, reverse=True))
    ids = r"(?<![\w-])[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)+(?![\w-])"
    return re.compile(
        rf"(?P<id>{ids})|{RELEASE.pattern}|(?<![\w-])(?P<word>(?i:{words}))s?(?![\w-])"
    )


@define
class _Linking:
    """Turns words of one page into links: every id, the first use of each release and word.

    `own`: the id or title of the page, which is not linked. `met`: words that have a link.
    """

    own: str
    met: set[str] = field(factory=set)

    def within(self, element: Element) -> None:
        """Link the texts below an element."""
        if element.tag in _UNLINKED:
            return
        for child in list(element):
            self.within(child)
        for child in reversed(list(element)):
            place = list(element).index(child) + 1
            child.tail = self._put(element, place, child.tail)
        element.text = self._put(element, 0, element.text)

    def _put(self, parent: Element, place: int, text: str | None) -> str | None:
        """Insert the links of a text at this place; returns the text before the first link."""
        if not text or isinstance(text, AtomicString):
            return text
        before, *links = self._parts(text)
        for offset, (shown, target, tail) in enumerate(links):
            is_outward = target.startswith("https:")
            link = Element("a", {"href": target if is_outward else f"/{target}"})
            if not is_outward:
                link.set("class", "word" if "glossary" in target else "id")
            link.text, link.tail = AtomicString(shown), tail
            parent.insert(place + offset, link)
        return str(before)

    def _parts(self, text: str) -> list[Any]:
        """The text before the first link; then for each link its text, its page, the text after."""
        candidates = [(match, self._target(match)) for match in _linked().finditer(text)]
        links = [(match, target) for match, target in candidates if target]
        ends = [*(match.start() for match, _ in links), len(text)]
        parts: list[Any] = [text[: ends[0]]]
        for (match, target), end in zip(links, ends[1:], strict=True):
            parts.append((match.group(), target, text[match.end() : end]))
        return parts

    def _target(self, match: re.Match[str]) -> str | None:
        if match["id"]:
            return None if match["id"] == self.own else pages_of_ids().get(match["id"])
        if match["package"]:
            return self._first(match.group(), package_address(match["package"], match["version"]))
        word = match["word"].lower()
        return None if self.own == "Glossary" else self._first(word, anchors_of_words()[word])

    def _first(self, word: str, target: str) -> str | None:
        """The target for the first use of a word in the page."""
        if word in self.met:
            return None
        self.met.add(word)
        return target


class _Linker(Treeprocessor):
    def run(self, root: Element) -> None:
        title = next(root.iter("h1"), None)
        own = "" if title is None else "".join(title.itertext()).split(":")[0].strip()
        _Linking(own).within(root)


class _Links(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name that Markdown calls
        md.treeprocessors.register(_Linker(md), "lockstep-links", _AFTER_INLINE)


def makeExtension(**_options: Any) -> Extension:  # noqa: N802 - the name that Markdown calls
    """The extension, as Markdown asks a module for it."""
    return _Links()
