"""Links out of the book: texts, packages, repositories, and places in released source code."""

import re
from collections.abc import Iterator, Mapping

from checks.book.source import bullets, section
from spec.core.rule import Source

_GITHUB = "https://github.com"
_PLUGIN, _VLLM = f"{_GITHUB}/torch-spyre/sendnn-inference", f"{_GITHUB}/vllm-project/vllm"
_NANO = f"{_GITHUB}/GeeeekExplorer/nano-vllm"
_INDEX = "https://pypi.org/project"
# The commit that brought the plugin's page: headings and anchors there stay what they are.
PLUGIN_PAGE = (
    f"{_PLUGIN}/blob/14df3b23de09f29c296b229ef2a473f101d5ea52/docs/contributing/scheduler.md"
)

_HEADINGS = (
    *("Overview", "Key concepts", "Padding", "Prefill padding", "Right-alignment"),
    *("Chunked Prefill", "Decode padding", "Left-padding with full blocks"),
    *("Right-padding until next block boundary", "Per-request tkv", "tkv jumping", "Scheduling"),
    *("Priority rules", "Admission constraints", "First-chunk constraints"),
    *("Last-chunk constraints", "Prefix caching", "Skipping full chunks", "Boundary chunk"),
    "Scheduling with prefix caching",
)
_ANCHORS = {name: name.lower().replace(" ", "-") for name in _HEADINGS} | {
    "Volumetric Constraint - Additional Details": "last-chunk-constraints",
    # The page writes a longer dash, which an anchor drops.
    "Visualization - Decode Padding": "visualization--decode-padding",
    "Visualization - Prefix Caching": "visualization--prefix-caching",
}


def _lines(tree: str, files: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """The address of each section: a line of a file at a tag."""
    return {
        name: f"{tree}/{file}#L{line}"
        for file, names in files.items()
        for name, line in names.items()
    }


_V1 = "vllm/v1"
_PLACES: Mapping[str, Mapping[str, str]] = {
    "spyre": {name: f"{PLUGIN_PAGE}#{anchor}" for name, anchor in _ANCHORS.items()},
    "sendnn-inference 2.6.3": _lines(
        f"{_PLUGIN}/blob/v2.6.3",
        {
            "sendnn_inference/v1/core/scheduler.py": {
                "last-chunk constraints with pausing off": 858,
                "order of the batch": 558,
                "prefill candidates": 781,
                "asynchronous encoding of images": 693,
                "block reservation": 513,
                "decode pausing": 1000,
            }
        },
    ),
    "vLLM 0.28.0": _lines(
        f"{_VLLM}/blob/v0.28.0",
        {
            f"{_V1}/core/block_pool.py": {"block pool": 143, "BlockHashToBlockMap": 33},
            f"{_V1}/core/kv_cache_utils.py": {
                "free block queue": 185,
                "check of the KV cache at the start": 731,
            },
            f"{_V1}/core/kv_cache_manager.py": {
                "reserved blocks": 385,
                "limit of a hit": 262,
                "allocate_slots": 347,
            },
            f"{_V1}/core/encoder_cache_manager.py": {"EncoderCacheManager": 19},
            f"{_V1}/core/sched/scheduler.py": {
                "ends of the running loop": 525,
                "waiting loop": 751,
                "skipped_waiting": 190,
                "refund of a priority victim": 658,
                "KV connector": 830,
                "prefix cache statistics": 1076,
                "streaming sessions": 2164,
                "structured output": 2146,
                **{"_try_schedule_encoder_inputs": 1531, "_free_encoder_inputs": 2201},
                "disable_chunked_mm_input": 1625,
                "choice of the victim": 643,
                "deferred frees": 2430,
                "_mamba_block_aligned_split": 366,
            },
            f"{_V1}/core/kv_cache_coordinator.py": {
                "KV cache coordinator": 63,
                "find_longest_cache_hit": 749,
            },
            f"{_V1}/core/single_type_kv_cache_manager.py": {
                "allocate_external_computed_blocks": 288,
                "remove_skipped_blocks": 624,
                "cached_blocks_this_step": 1281,
                "last_state_block_idx": 1285,
            },
            f"{_V1}/request.py": {
                "shared_prefix_boundary": 195,
                **{"request lifecycle": 351, "request": 59},
                **{"is_prefill_chunk": 190, "count of preemptions": 202},
            },
            f"{_V1}/engine/core.py": {"engine core": 104, "step_with_batch_queue": 624},
            f"{_V1}/core/sched/async_scheduler.py": {"AsyncScheduler": 12},
            f"{_V1}/worker/block_table.py": {"block tables": 48},
            f"{_V1}/worker/gpu_model_runner.py": {"uniform decode": 3990},
        },
    )
    | {"waiting loop of 0.11.2": f"{_VLLM}/tree/v0.11.2/vllm/v1/core/sched"},
    "vLLM 0.9.2": _lines(
        f"{_VLLM}/blob/v0.9.2",
        {
            "vllm/core/block/naive_block.py": {"naive block allocator": 14},
            "vllm/core/block_manager.py": {"can_swap_in": 349},
            "vllm/core/scheduler.py": {
                "ends of the running loop": 703,
                "partial prefills": 333,
                "order of the batch": 1492,
                "order of the running queue": 1308,
                "choice of the victim": 754,
                "_schedule_default": 1249,
                "assertions of the engine": 74,
                "order of the swapped queue": 1317,
                "_remove_seq_from_computed_blocks_tracker": 1717,
            },
            "vllm/sequence.py": {"sequence groups": 703},
        },
    ),
}
_TREES = {
    "nano-vllm": _NANO,
    "nano-vllm 9e8507e": f"{_NANO}/tree/9e8507e",
    "nano-vllm bb823b3": f"{_NANO}/tree/bb823b3",
    "vllm-v1": f"{_VLLM}/tree/v0.28.0/vllm/v1/core",
    "vllm-v0": f"{_VLLM}/tree/v0.9.2/vllm/core",
}


def citation(source: Source) -> str:
    """The source of a rule, with a link to its section or to the code that it speaks of."""
    places = _PLACES.get(source.text, {})
    parts = [source.section, *reversed(source.section.split(", "))]
    address = next((places[part] for part in parts if part in places), _TREES.get(source.text, ""))
    return f"[{source}]({address})" if address else str(source)


# --- releases -------------------------------------------------------------------------------------

_PACKAGES = {"vLLM": "vllm"}  # names on the package index that are spelled differently
_REPOSITORIES = {"sendnn-inference": _PLUGIN, "vLLM": _VLLM}
RELEASE = re.compile(
    r"\b(?P<package>sendnn-inference|vLLM|nano-vllm-npu|nano-vllm-voxcpm)"
    r" (?P<version>\d+\.\d+\.\d+)\b"
)
# In the chapter on releases: the commits of the plugin, with their pull requests.
COMMIT = re.compile(r"^\| ([0-9a-f]{8}) (.*?) \(#(\d+)\) \|", re.MULTILINE)


def package_address(package: str, version: str) -> str:
    """The page of a release on the package index."""
    return f"{_INDEX}/{_PACKAGES.get(package, package)}/{version}/"


def release_links(name: str) -> str:
    """A line of links for the releases in a name: package index, repository, issues."""
    return " · ".join(_release_links(name))


def _release_links(name: str) -> Iterator[str]:
    for match in RELEASE.finditer(name):
        package, version = match["package"], match["version"]
        yield f"[{package} {version}]({package_address(package, version)})"
        if repository := _REPOSITORIES.get(package):
            yield f"[its source]({repository}/tree/v{version})"
            yield f"[its issues]({repository}/issues)"


def with_commits(chapter: str) -> str:
    """The chapter with commits of the plugin and their pull requests as links."""
    return COMMIT.sub(
        rf"| [\1]({_PLUGIN}/commit/\1) \2 ([#\3]({_PLUGIN}/pull/\3)) |",
        chapter,
    )


# --- defects --------------------------------------------------------------------------------------

_SCHEDULER = f"{_PLUGIN}/blob/v2.6.3/sendnn_inference/v1/core/scheduler.py"
_V1_CORE = f"{_VLLM}/blob/v0.28.0/{_V1}/core"
_DEFECTS: Mapping[str, Mapping[str, str]] = {
    "sendnn-counted-ahead": {
        "hits are counted": f"{_SCHEDULER}#L1157",
        "and cut to chunks": f"{_SCHEDULER}#L1167",
    },
    "sendnn-grammar": {
        "grammars are asked for": f"{_SCHEDULER}#L659",
        "it goes to the front": f"{_SCHEDULER}#L677",
    },
    "sendnn-failed-images": {
        "encodings that failed": f"{_SCHEDULER}#L317",
        "pull request 1015, which encodes beside the steps": f"{_PLUGIN}/pull/1015",
    },
    "sendnn-images": {
        "blocks are asked for": f"{_SCHEDULER}#L593",
        "images are asked for": f"{_SCHEDULER}#L788",
        "pull request 1015, which encodes beside the steps": f"{_PLUGIN}/pull/1015",
    },
    "sendnn-model-length": {
        "the assertion": f"{_SCHEDULER}#L992",
        "pull request 976, which took the constraint away": f"{_PLUGIN}/pull/976",
    },
    "sendnn-paused-for-ever": {
        "rows are paused": f"{_SCHEDULER}#L1000",
        "new requests wait for the paused": f"{_SCHEDULER}#L798",
    },
    "sendnn-pausing": {
        "rows are paused": f"{_SCHEDULER}#L1000",
        "pull request 973, which brought pausing": f"{_PLUGIN}/pull/973",
    },
    "sendnn-reservation": {
        "requests end": f"{_SCHEDULER}#L1101",
        "pull request 984, which brought reservation": f"{_PLUGIN}/pull/984",
    },
    "vllm-hashed-ahead": {"the victim is chosen": f"{_V1_CORE}/sched/scheduler.py#L643"},
    "vllm-loads-wait": {"blocks are reserved": f"{_V1_CORE}/kv_cache_manager.py#L385"},
    "vllm-lost-in-flight": {"failed loads are skipped": f"{_V1_CORE}/sched/scheduler.py#L1808"},
    "vllm-lost-load": {"loads are asked for": f"{_V1_CORE}/sched/scheduler.py#L830"},
    "vllm-session-too-long": {"sessions go on": f"{_V1_CORE}/sched/scheduler.py#L1465"},
    "vllm-sessions-blocks": {"turns end": f"{_V1_CORE}/sched/scheduler.py#L2164"},
    "vllm-sessions-places": {"places are counted": f"{_V1_CORE}/sched/scheduler.py#L756"},
}


def defect_links(name: str) -> str:
    """The section with the places of a defect in the release's source; empty for other pages."""
    places = _DEFECTS.get(name)
    if not places:
        return ""
    repository = _PLUGIN if name.startswith("sendnn") else _VLLM
    known = {"issues of the repository": f"{repository}/issues"}
    lines = (f"[{what}]({address})" for what, address in {**places, **known}.items())
    return section("In the source of the release", bullets(lines))
