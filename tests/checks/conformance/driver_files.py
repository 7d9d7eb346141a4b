"""Driver files made from the template, wrong in one place."""

from pathlib import Path

from checks.releases.recipes import DRIVER_FILES

TEMPLATE = DRIVER_FILES / "template.py"
STEP = '        self.waiting += action.get("arrive", [])\n'
FAULTS = {
    "last come first served": ("self.waiting.pop(0)", "self.waiting.pop()"),
    "dies": (STEP, STEP + '        if self.waiting: sys.exit("out of memory")\n'),
    "talks nonsense": ('message["do"] == "play"', 'print("nonsense", file=ANSWERS)'),
    "forgets a field": ('done["outputs"]', 'done["output"]'),
    "says nothing": ("    print(json.dumps(HELLO), file=ANSWERS)\n", ""),
    "starts once": (
        "    print(json.dumps(HELLO), file=ANSWERS)\n",
        '    try: open("started", "x").close()\n'
        '    except FileExistsError: sys.exit("not a second time")\n'
        "    print(json.dumps(HELLO), file=ANSWERS)\n",
    ),
    "speaks version 2": ('"version": 1', '"version": 2'),
}


def faulty_driver(directory: Path, fault: str) -> Path:
    """The template with the fault, as a file in the directory."""
    old, new = FAULTS[fault]
    text = TEMPLATE.read_text(encoding="utf-8")
    assert old in text
    path = directory / "mine.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path
