"""Measure nano-vLLM and vLLM V1 on the paged device; prints one row for each policy and trace.

    ./bootstrap python benchmarks/paged.py TRACE … [--limit N] [--only vllm-v1]

The reference serves the first requests of each trace and the device repeats every step. Times are
processor times: of the reference, and of tensors, device and comparison of tokens. The pools have
the same number of tokens under both policies; requests longer than the model are left out.
"""

import argparse
import platform
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from checks.cli.configuration import read_settings
from checks.harness.case import Case
from checks.harness.policy import evidence_of
from checks.harness.runs.serving import served
from checks.registry import claims_of
from engine.workloads import fit_for, read_workload

POLICIES = ("nano-vllm", "vllm-v1")
MAX_MODEL_LEN = 131_072
SIZES = {
    "nano-vllm": {"max_num_batched_tokens": MAX_MODEL_LEN, "num_blocks": 4_096},
    "vllm-v1": {"max_num_batched_tokens": 8_192, "num_blocks": 65_536},
}
# Released nano-vLLM has prefix hits that cannot be computed, which the device refuses.
REPAIRED = {"nano-vllm": {"hit_check": "hash", "full_hit": "last_computed"}, "vllm-v1": {}}


def main() -> None:
    """Measure and print; exit code 1 if a token is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--limit", type=int, default=500, help="requests of each trace")
    parser.add_argument("--only", choices=POLICIES, help="one of the policies")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}\n")
    print("| policy | trace | requests | steps | tokens sampled | reference | device | steps/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    wrong = [
        _measured(policy, path, options.limit)
        for path in options.traces
        for policy in ([options.only] if options.only else POLICIES)
    ]
    raise SystemExit(1 if any(wrong) else 0)


def _measured(policy: str, path: Path, limit: int) -> bool:
    """Serve a trace and print its row; True if a token was wrong."""
    chosen: dict[str, Any] = SIZES[policy] | REPAIRED[policy]
    keys = {"policy": policy, "max_model_len": MAX_MODEL_LEN, "max_num_seqs": 256} | chosen
    config = read_settings(None, [f"{key}={value}" for key, value in keys.items()]).config
    claims, paged_watch = claims_of(policy), evidence_of(policy).watch
    read = read_workload(path, limit=limit)
    requests, _ = fit_for(read, lambda request: claims.refuse_unservable(request, config))
    assert paged_watch is not None
    watch = paged_watch(claims.context_of(config, requests))
    began, device = process_time(), 0.0
    for step in served(Case(config, tuple(requests))):
        observing = process_time()
        watch.observe(step)
        device += process_time() - observing
    both = process_time() - began
    sizes = f"{len(requests):,} | {watch.steps:,} | {watch.sampled:,}"
    times = f"{both - device:.1f} s | {device:.1f} s | {watch.steps / both:.0f}"
    print(f"| {policy} | {path.stem} | {sizes} | {times} |", flush=True)
    return bool(watch.wrong)


if __name__ == "__main__":
    main()
