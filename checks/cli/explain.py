"""`lockstep explain`: the meaning of a word, from the glossary chapter."""

import re
from collections.abc import Mapping
from difflib import get_close_matches

import click

from checks.cli.common import out, print_lines
from checks.cli.outputs import Command
from checks.glossary import glossary
from checks.registry import RULES
from spec.core.errors import InputError


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[WORD …]")
def explain(words: tuple[str, ...]) -> None:
    """Say what WORD means in the chapters, the commands and their output; without any, list all.

    A rule's id is explained by its sentence.
    """
    entries = glossary()
    if not words:
        for title, text in entries.items():
            first_sentence = re.split(r"(?<=\.) |: ", text, maxsplit=1)[0].rstrip(".")
            print_lines(out, f"{title}: {first_sentence}")
    for text in [_explained(word, entries) for word in words]:
        print_lines(out, text)


def _explained(word: str, entries: Mapping[str, str]) -> str:
    """The glossary entry of a word, or the sentence of a rule."""
    if word.upper() in RULES:
        rule = RULES[word.upper()]
        return f"{rule.id}: {rule.sentence} (all about it: lockstep rules {rule.id})"
    titles = {
        name: title for title in entries for name in (title.lower(), *title.lower().split(", "))
    }
    if word.lower() not in titles:
        near = get_close_matches(word.lower(), titles, n=3) or list(entries)
        raise InputError("WORD", word, "; ".join(near))
    title = titles[word.lower()]
    return f"{title}: {entries[title]}"
