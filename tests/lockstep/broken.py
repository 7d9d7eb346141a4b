"""The template's scheduler with one typical fault."""

from pathlib import Path
from typing import Any

from checks.harness.driver.process import DRIVER_FILES

TEMPLATE = (DRIVER_FILES / "template.py").read_text(encoding="utf-8")
FAULTS = {
    "last come first served": ("self.waiting.pop(0)", "self.waiting.pop()"),
    "a slot too many": (
        'len(self.decoding) < self.config["max_num_seqs"]',
        'len(self.decoding) <= self.config["max_num_seqs"]',
    ),
    "joins behind": ("{newcomer: 0, **self.decoding}", "{**self.decoding, newcomer: 0}"),
    "no right padding": ('right = -length % self.config["block_size"]', "right = 0"),
    "a token short": (
        'self.requests[request_id]["output_len"])',
        'self.requests[request_id]["output_len"] - 1)',
    ),
    "the wrong token": ("self.decoding[request_id] - 1]", "0]"),
    "one decodes alone": (
        "dict.fromkeys(self.decoding, 1)",
        "dict.fromkeys(list(self.decoding)[:1], 1)",
    ),
    "an abort is lost": ("self.decoding.pop(request_id, None)", "pass"),
    "counted from one": ('"generated": count}', '"generated": count + 1}'),
    "the queue is not reported": ('"waiting": list(self.scheduler.waiting)', '"waiting": []'),
}


def broken(*names: str) -> str:
    """The template's text with these faults."""
    text = TEMPLATE
    for name in names:
        right, wrong = FAULTS[name]
        assert text.count(right) == 1, name
        text = text.replace(right, wrong)
    return text


def class_named(text: str) -> Any:
    """The class of a driver's text, in this process."""
    module: dict[str, Any] = {"__name__": "mine"}
    exec(
        text.replace("from lockstep_driver import", "from lockstep.api import").replace(
            "Driver, serve", "Driver, serve_driver as serve"
        ),
        module,
    )
    return module["Toy"]


def write(directory: Path, *names: str) -> Path:
    """A driver's file with these faults."""
    path = directory / "driver.py"
    path.write_text(broken(*names), encoding="utf-8")
    return path
