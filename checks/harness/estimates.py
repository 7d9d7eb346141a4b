"""Costs of steps from the published estimates of AIConfigurator, in seconds.

AIConfigurator estimates how long a server of vLLM takes for a step of a model on a GPU. A grid of
steps is estimated, and the costs are those with the least squared error relative to each step. The
package `aiconfigurator-core` has the estimates; without the extra `aiconfigurator` there are none.
"""

import logging
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
from attrs import frozen

from checks.export.figures import percent
from checks.harness.logs.timing import non_negative_costs
from engine.core.clock import attended
from spec.core.errors import ConfigError, InputError

PREFIX = "aiconfigurator:"
FORM = f"{PREFIX}MODEL,SYSTEM or {PREFIX}MODEL,SYSTEM,GPUS"
_PACKAGE = "aiconfigurator_core"
_MODEL_FILE = "_config.json"
_PLACE = "--cost"

# A step of the grid: requests that decode, tokens of each, prompt tokens, tokens before those.
_ROWS, _CONTEXTS = (1, 4, 16, 64, 256), (128, 1_024, 8_192)
_CHUNKS, _BEHIND = (128, 512, 2_048, 8_192), (0, 2_048, 16_384)


@frozen
class Estimate:
    """The table `[cost]`, in seconds, and a sentence on where it is from and how far it is off."""

    cost: dict[str, float]
    about: str


def is_estimate(name: str) -> bool:
    """True for a name of estimates; else it is a file's."""
    return name.startswith(PREFIX)


@cache
def estimated_costs(name: str) -> Estimate:
    """The costs of a model on GPUs, such as `aiconfigurator:Qwen/Qwen3-8B,h200_sxm,2`.

    Raises:
        ConfigError: the name is not of this form, or there are no estimates of this model on these
            GPUs.
        InputError: the extra is not installed.
    """
    if find_spec(_PACKAGE) is None:
        hint = "pip install 'lockstep-schedulers[aiconfigurator]'"
        raise InputError("cost", name, f"an installed extra: {hint}").at(_PLACE)
    model, system, gpus = _parts(name)
    estimator = _estimator(model, system, gpus)
    steps = _grid()
    works = np.array([_work(*step) for step in steps], float)
    seconds = np.array([_seconds(estimator, *step) for step in steps])
    names = ("base", "per_chunk_token", "per_row", "per_cached_token", "per_attended_token")
    columns = {name: column / seconds for name, column in zip(names, works.T, strict=True)}
    costs, _ = non_negative_costs(columns, np.ones(len(steps)))
    errors = np.abs(sum(cost * columns[name] for name, cost in costs.items()) - 1)
    base = costs.pop("base", 0.0)
    off = f"errors {percent(np.median(errors))} in the median, {percent(errors.max())} at most"
    about = f"AIConfigurator's estimates of {model} on {gpus} x {system}, {len(steps)} steps; {off}"
    return Estimate({"prefill_time": base, "decode_time": base, **costs}, about)


def _parts(name: str) -> tuple[str, str, int]:
    match [part.strip() for part in name.removeprefix(PREFIX).split(",")]:
        case [model, system] if model and system:
            return model, system, 1
        case [model, system, gpus] if model and system and gpus.isdecimal() and 0 < int(gpus) < 999:
            return model, system, int(gpus)
    raise ConfigError("cost", name, FORM).at(_PLACE)


def _estimator(model: str, system: str, gpus: int) -> Any:
    """The package's own estimator; of models that it has, so that nothing is downloaded."""
    _refuse_unknown("model", model, "model_configs", _MODEL_FILE)
    _refuse_unknown("system", system, "systems", ".yaml")
    logging.getLogger(_PACKAGE).setLevel(logging.ERROR)
    from aiconfigurator_core.sdk.rust_engine_step import RustForwardPassPerfModel

    sizes = {"tp_size": gpus, "pp_size": 1, "moe_tp_size": gpus, "moe_ep_size": 1}
    unset = {"attention_dp_size": None, "kv_block_size": None}
    identity = {"schema_version": 1, "model_name": model, "system_name": system, "backend": "vllm"}
    try:
        return RustForwardPassPerfModel.from_native({**identity, **sizes, **unset})
    except ValueError as error:
        what = f"a model and GPUs that AIConfigurator has estimates of: {error}"
        raise ConfigError("cost", f"{model},{system},{gpus}", what).at(_PLACE) from None


def _refuse_unknown(kind: str, name: str, folder: str, ending: str) -> None:
    entries = (entry.name for entry in files(_PACKAGE).joinpath(folder).iterdir())
    known = [e.removesuffix(ending).replace("--", "/") for e in entries if e.endswith(ending)]
    if name not in known:
        nearest = get_close_matches(name, known, n=3, cutoff=0.0)
        allowed = f"one that AIConfigurator has; nearest: {', '.join(nearest)}"
        raise ConfigError(kind, name, allowed).at(_PLACE)


def _grid() -> list[tuple[int, int, int, int]]:
    decodes = [(0, 0), *product(_ROWS, _CONTEXTS)]
    prefills = [(0, 0), *product(_CHUNKS, _BEHIND)]
    return [(*decode, *prefill) for decode in decodes for prefill in prefills][1:]


def _work(rows: int, context: int, chunk: int, behind: int) -> tuple[int, ...]:
    """One step, and its chunk tokens, rows, cached and attended tokens, as `Work` counts them."""
    pairs = rows * attended(context, 1) + attended(behind, chunk)
    return 1, chunk, rows, rows * context + (behind if chunk else 0), pairs


def _seconds(estimator: Any, rows: int, context: int, chunk: int, behind: int) -> float:
    scheduled = {
        "num_prefill_requests": int(chunk > 0),
        "sum_prefill_tokens": chunk,
        "sum_prefill_kv_tokens": behind,
        "num_decode_requests": rows,
        "sum_decode_kv_tokens": rows * context,
    }
    milliseconds = estimator.estimate_forward_pass_time_ms({"scheduled_requests": scheduled})
    return float(milliseconds) / 1_000
