"""Measure the memory of a long run while requests come and go.

    ./bootstrap python benchmarks/memory.py [--policy spyre] [--requests 200000]

Does what `lockstep run` does: the engine serves the requests, every rule is judged, every token is
compared. One in two steps a request arrives, with lengths as spread as those of a chat service. A
row is printed at each tenth: the resident memory of the process, and beside it that of the
processes that judge, pages that they share counted once. The last line says by how much the
former grew after the first tenth.
"""

import argparse
import os
import random
import re
from pathlib import Path

from checks.harness.runs.serving import run_workload
from checks.harness.runs.settings import Settings
from checks.registry import POLICIES, claims_of
from engine.core.clock import CostModel
from spec.core.records import SomeStep
from spec.core.requests import Prompt, Request


def generated(count: int, seed: int = 0) -> list[Request]:
    """Requests that arrive one after the other."""
    draw = random.Random(seed)
    return [
        Request(
            id=str(index),
            prompt=Prompt.of_stream(f"request {index}", int(draw.lognormvariate(3.5, 0.9)) + 1),
            max_tokens=int(draw.lognormvariate(2.0, 0.8)) + 1,
            arrival=2 * index,
        )
        for index in range(count)
    ]


def megabytes(process: str, kind: str) -> float:
    """Memory of a process, of a kind that the system counts; 0 of one that has ended."""
    try:
        counts = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    found = re.search(rf"^{kind}: +(\d+) kB$", counts, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", choices=[*POLICIES], default="spyre")
    parser.add_argument("--requests", type=int, default=200_000)
    options = parser.parse_args()
    own = str(os.getpid())
    resident: list[float] = []

    def sample(step: SomeStep) -> None:
        served = len(step.after.finished)
        if served * 10 < options.requests * (len(resident) + 1):
            return
        resident.append(megabytes(own, "Rss"))
        children = Path(f"/proc/{own}/task/{own}/children").read_text(encoding="utf-8").split()
        beside = sum(megabytes(child, "Pss") for child in children)
        print(
            f"| {served:,} | {step.index:,} | {resident[-1]:,.0f} MB | {beside:,.0f} MB |",
            flush=True,
        )

    print("| served | steps | resident | beside it |\n| --- | --- | --- | --- |")
    settings = Settings(claims_of(options.policy).config(), CostModel())
    run = run_workload(settings, generated(options.requests), observers=[sample])
    outcome = "holds" if run.holds else "does not hold"
    growth = resident[-1] / resident[0] - 1
    print(f"{options.policy} {outcome}, {run.seconds:.0f} s; growth {growth:.1%}")


if __name__ == "__main__":
    main()
