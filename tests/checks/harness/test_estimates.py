"""Costs are fitted to the estimates of AIConfigurator; a stand-in has costs that are known."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.harness.estimates import estimated_costs
from spec.core.errors import InputError
from tests.checks.command import lockstep

ESTIMATOR = """
class RustForwardPassPerfModel:
    @classmethod
    def from_native(cls, config):
        if config["tp_size"] > 8:
            raise ValueError("no data of so many GPUs")
        return cls()

    def estimate_forward_pass_time_ms(self, metrics):
        work = metrics["scheduled_requests"]
        chunk, behind = work["sum_prefill_tokens"], work["sum_prefill_kv_tokens"]
        rows, cached = work["num_decode_requests"], work["sum_decode_kv_tokens"]
        pairs = chunk * behind + chunk * (chunk + 1) // 2 + cached + rows
        read = cached + (behind if chunk else 0)
        return 5 + 0.02 * chunk + 0.04 * rows + 3e-5 * read + 1e-6 * pairs
"""


@pytest.fixture(autouse=True)
def nothing_is_loaded_yet() -> Iterator[None]:
    _forget()
    yield
    _forget()


def _forget() -> None:
    estimated_costs.cache_clear()
    for name in [name for name in sys.modules if name.startswith("aiconfigurator_core")]:
        del sys.modules[name]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "aiconfigurator_core"
    for folder, name in (("systems", "h100_sxm.yaml"), ("model_configs", "a--small_config.json")):
        (package / folder).mkdir(parents=True)
        (package / folder / name).touch()
    (package / "sdk").mkdir()
    (package / "__init__.py").touch()
    (package / "sdk" / "__init__.py").touch()
    (package / "sdk" / "rust_engine_step.py").write_text(ESTIMATOR)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("stand_in")
def test_estimates_that_are_a_sum_of_costs_are_given_back() -> None:
    estimate = estimated_costs("aiconfigurator:a/small,h100_sxm,2")

    assert estimate.cost == pytest.approx(
        {
            "prefill_time": 5e-3,
            "decode_time": 5e-3,
            "per_chunk_token": 2e-5,
            "per_row": 4e-5,
            "per_cached_token": 3e-8,
            "per_attended_token": 1e-9,
        }
    )
    assert "a/small on 2 x h100_sxm, 207 steps; errors 0.0% in the median" in estimate.about


@pytest.mark.parametrize(
    ("name", "found", "allowed"),
    [
        ("small", "aiconfigurator:small", "aiconfigurator:MODEL,SYSTEM"),
        ("a/small,h100_sxm,0", "aiconfigurator:a/small,h100_sxm,0", "SYSTEM,GPUS"),
        ("a/smell,h100_sxm", "a/smell", "nearest: a/small"),
        ("a/small,h100", "h100", "nearest: h100_sxm"),
        ("a/small,h100_sxm,9", "a/small,h100_sxm,9", "no data of so many GPUs"),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_a_name_without_estimates_is_refused(name: str, found: str, allowed: str) -> None:
    with pytest.raises(InputError) as refused:
        estimated_costs(f"aiconfigurator:{name}")
    assert (refused.value.found, allowed in refused.value.allowed) == (found, True)


def test_without_the_extra_the_command_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("checks.harness.estimates.find_spec", lambda _name: None)
    ran = lockstep("simulate", "tiny.jsonl", "--cost", "aiconfigurator:a/small,h100_sxm")
    assert (ran.code, ran.out) == (2, "")
    assert "pip install 'lockstep-schedulers[aiconfigurator]'" in ran.err


@pytest.mark.usefixtures("stand_in")
def test_the_command_says_where_the_costs_are_from() -> None:
    Path("requests.jsonl").write_text('{"id": "a", "prompt_len": 8, "max_tokens": 2}\n')
    ran = lockstep("simulate", "requests.jsonl", "--cost", "aiconfigurator:a/small,h100_sxm")
    assert ran.code == 0
    assert "costs: AIConfigurator's estimates of a/small on 1 x h100_sxm" in ran.out
    assert "output tokens per second" in ran.out


def test_the_released_package_estimates_more_seconds_for_more_work() -> None:
    pytest.importorskip("aiconfigurator_core")
    cost = estimated_costs("aiconfigurator:Qwen/Qwen3-8B,h100_sxm").cost
    assert 1e-3 < cost["decode_time"] < 1e-1
    assert cost["per_chunk_token"] > 0
