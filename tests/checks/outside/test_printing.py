"""Foreign text is shown with its control characters as escapes: on a terminal, in every report."""

import json
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from rich.text import Text

from checks.cli import common
from checks.export.printable import printable
from tests.checks.command import lockstep
from tests.checks.outside.misbehaving import Misbehaving

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e\u2028\x00\x85\ufffe"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\u202e\u2028\x00\x85\ufffe"


def evil_driver() -> Path:
    """A driver whose name, release, errors and standard error would take over a terminal."""
    does = (
        f"Toy.hello = {{**HELLO, 'name': {EVIL!r}, 'release': {EVIL!r}}}\n"
        "class Evil(Toy):\n"
        f"    def run(self): raise ValueError({EVIL!r})\n"
        "Evil.under_test = (Evil,)\n"
        "serve(Evil)"
    )
    return Misbehaving("evil", does, (1,), "").file(Path.cwd())


def is_clean(text: str) -> bool:
    return printable(text) == text


@given(st.text())
def test_what_is_printable_stays_and_the_rest_is_escaped(text: str) -> None:
    shown = printable(text)

    assert is_clean(shown)
    assert printable(shown) == shown
    if text.isascii() and text.isprintable():
        assert shown == text
    ElementTree.fromstring(f"<a><![CDATA[{shown.replace(']]>', '')}]]></a>")


def test_lines_and_tabs_stay() -> None:
    assert printable("a\n\tb\u00a0ü表") == "a\n\tb\u00a0ü表"
    assert printable(EVIL) == SHOWN


def test_a_terminal_shows_styles_and_escapes_text() -> None:
    stream = StringIO()
    screen = common._Screen(file=stream, force_terminal=True, width=200, **common._PLAIN)

    screen.print(Text.assemble((EVIL, "bold red")))
    screen.print(common.plain_table(("name",), [(EVIL,)]))

    said = stream.getvalue()
    assert said.count("\x1b") == said.count("\x1b[") > 0  # its own styles
    assert "\x1b[2J" not in said
    assert said.count(r"\x1b[2J") == 2
    assert Segment("a") in [*screen.render("a")]


def test_a_driver_cannot_write_to_the_terminal_or_break_a_report() -> None:
    ran = lockstep(
        *("conform", evil_driver(), "--episodes", "1", "--report", "p", "--format", "github"),
        *("--junit", "j.xml", "--sarif", "s.json", "--json", "r.json"),
    )

    assert ran.code == 1
    assert is_clean(ran.out)
    assert is_clean(ran.err)
    assert r"\x1b[2J" in ran.out
    assert is_clean(Path("p").read_text())
    assert ElementTree.parse("j.xml").getroot().tag == "testsuites"
    assert r"\x1b[2J" in Path("j.xml").read_text()
    assert is_clean(json.dumps(json.loads(Path("s.json").read_text()), ensure_ascii=False))


def test_last_words_of_a_driver_are_escaped() -> None:
    path = Misbehaving("dies", f"import sys; sys.exit({EVIL!r})", (2,), "").file(Path.cwd())

    ran = lockstep("driver", "check", path)

    assert ran.code == 2
    assert is_clean(ran.err)
    assert r"\x1b[2J" in ran.err
