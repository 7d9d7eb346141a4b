"""What of vLLM V1 is modelled beside what: the table of the chapter says what is refused."""

import re

import pytest

from checks.chapters import chapter_path
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.modelled import Feature, is_modelled_beside, unmodelled_beside

ROWS = {
    Feature.POOLING: "`pooling`",
    Feature.STEPS_IN_FLIGHT: "`steps_in_flight`",
    Feature.SEVERAL_STEPS_IN_FLIGHT: "several steps in flight",
    Feature.GROUPS: "`kv_groups`",
    Feature.GROUPS_OF_STATES: "`kv_groups` with `mamba`",
    Feature.GROUPS_WITH_CONNECTOR: "`kv_groups` and a connector",
    Feature.READING_AHEAD: "`drafter_reads_ahead`",
    Feature.GRAMMARS: "`grammar`",
    Feature.SPANS: "`encoder_spans`",
    Feature.SESSIONS: "sessions (`continued_by`)",
}
OTHERS = {  # by key, a value that is not the usual one, and what the chapter calls it
    "release": ("0.11.2", "0.11.2"),
    "pooling": (True, "`pooling`"),
    "scheduling": ("priority", "priority"),
    "connector": ("sync", "connector"),
    "num_speculative_tokens": (1, "drafts"),
    "num_lookahead_tokens": (1, "lookahead"),
    "kv_groups": ("sliding 4", "`kv_groups`"),
    "sends": (True, "`sends`"),
    "chunked_prefill": (False, "chunked prefill"),
}
USUAL = {"release": "0.33.0"}


def refused_beside(feature: Feature) -> str:
    """What the chapter says that the feature is refused beside."""
    chapter = chapter_path("vllm-v1").read_text(encoding="utf-8")
    return str(re.search(rf"^\| {re.escape(ROWS[feature])} \| (.+) \|$", chapter, re.MULTILINE)[1])  # type: ignore[index]


@pytest.mark.parametrize("feature", Feature)
def test_the_chapter_names_what_each_feature_is_refused_beside(feature: Feature) -> None:
    says = refused_beside(feature)
    own = {"connector": "sync"} if feature is Feature.GROUPS_WITH_CONNECTOR else {}

    for key, (value, words) in OTHERS.items():
        beside = {"connector": "sync"} if key == "sends" else own
        keys = USUAL | beside | {key: value}
        changed = VllmV1Config.from_mapping(keys)
        names = {name for name, _, _ in unmodelled_beside(feature, changed)}
        assert (key in names) == (words in says), f"{key}: {says}"


def test_a_feature_is_modelled_beside_usual_keys() -> None:
    usual = VllmV1Config.from_mapping(USUAL)

    assert [feature for feature in Feature if not is_modelled_beside(feature, usual)] == [
        Feature.READING_AHEAD  # prefix caching is on
    ]
