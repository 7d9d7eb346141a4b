"""Driver files made from the template, wrong in one place."""

from pathlib import Path

from checks.harness.driver.process import DRIVER_FILES

TEMPLATE = DRIVER_FILES / "template.py"
STEP = '        done: Json = {"kind": "idle", "scheduled": {}}\n'
SERVE = "    serve(Toy)\n"
NONSENSE = (
    '        import lockstep_driver as ours; print("nonsense", file=ours.protected_output())\n'
)
FAULTS = {
    "last come first served": ("self.waiting.pop(0)", "self.waiting.pop()"),
    "last come first served, in the end": (
        "self.waiting.pop(0)",
        'self.waiting.pop(-(next(globals().setdefault("pops", itertools.count())) > 300))',
    ),
    "dies": (STEP, STEP + '        if self.waiting: raise SystemExit("out of memory")\n'),
    "dies later": (
        STEP,
        STEP + '        if 3 in self.decoding.values(): raise SystemExit("third token")\n',
    ),
    "talks nonsense": (STEP, STEP + NONSENSE),
    "forgets a field": ('done["outputs"]', 'done["output"]'),
    "says nothing": (SERVE, "    input()\n"),
    "starts once": (
        SERVE,
        '    try: open("started", "x").close()\n'
        '    except FileExistsError: raise SystemExit("not a second time")\n' + SERVE,
    ),
    "speaks version 2": ('"name": "template"', '"version": 2, "name": "template"'),
}


def faulty_driver(directory: Path, fault: str) -> Path:
    """The template with the fault, as a file in the directory."""
    old, new = FAULTS[fault]
    text = TEMPLATE.read_text(encoding="utf-8")
    assert old in text
    path = directory / "mine.py"
    path.write_text(f"import itertools\n{text.replace(old, new)}", encoding="utf-8")
    return path
