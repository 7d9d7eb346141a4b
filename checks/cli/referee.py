"""The referee's page, with tables generated from the proofs and the compared moves."""

from checks.chapters import CHAPTERS, with_table
from checks.export.files import new_file
from checks.proofs.independence import independence
from checks.proofs.links import linked_moves

REFEREE = CHAPTERS / "referee.md"
_HEADLINES = ("statement", "judges", "speaks of besides")
_MOVES = ("policy", "move", "what is compared")


def referees_page() -> str:
    """The page with current tables."""
    chapter = REFEREE.read_text(encoding="utf-8")
    chapter = with_table(chapter, "headlines", _HEADLINES, independence())
    return with_table(chapter, "moves", _MOVES, linked_moves())


def write_referees_page() -> None:
    """Update the page's tables."""
    page = referees_page()
    with new_file(REFEREE) as file:
        file.write(page)
