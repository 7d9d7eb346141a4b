"""Record what vLLM V0 does in a few episodes: `python -m tests.recorded.vllm_v0.make`.

The files have the form that `checks/harness/recording.py` describes, without an outcome: there
is no machine of this policy yet, so nothing was compared.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tests.checks.drivers.v0_episodes import Answer, Episode, Json, asks, installed_release, present

HERE = Path(__file__).parent
COMMAND = "python -m tests.recorded.vllm_v0.make"
POOL: Json = {"block_size": 4, "max_model_len": 32, "max_num_seqs": 4}
SCENES = {
    "swapped_and_aborted": Episode(
        POOL
        | {"num_gpu_blocks": 5, "num_cpu_blocks": 8, "preemption_mode": "swap"}
        | {"max_num_batched_tokens": 32},
        [asks("a", 4, 6), asks("b", 4, 6), asks("c", 8, 3)],
        [
            {"arrive": ["a", "b"]},
            {},
            {"arrive": ["c"]},
            *({} for _ in range(5)),
            {"abort": ["c"]},
            {},
        ],
    ),
    "chunks_and_a_prefix": Episode(
        POOL
        | {"num_gpu_blocks": 9, "chunked_prefill": True, "prefix_caching": True}
        | {"max_num_batched_tokens": 10},
        [
            asks("a", 13, 3),
            asks("b", 13, 4, output_len=2) | {"prompt": asks("a", 13, 3)["prompt"]},
            asks("c", 3, 6),
        ],
        [{"arrive": ["a", "b"]}, {}, {"arrive": ["c"]}, *({} for _ in range(10))],
    ),
}


def main() -> None:
    """Serve each scene with the installed release and write its records."""
    with installed_release() as live:
        for name, scene in SCENES.items():
            path = HERE / f"vllm-v0-{name}.jsonl"
            lines = _lines(live.hello, name, scene, live.serve(scene))
            path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


def _lines(hello: Json, name: str, scene: Episode, answer: Answer) -> Iterator[Json]:
    yield {
        "format": "lockstep-recording",
        "version": 1,
        "driver": hello["name"],
        **{key: hello[key] for key in ("release", "policy", "abilities", "left_out")},
        "about": name.replace("_", " "),
        "command": COMMAND,
        "config": scene.config,
        "requests": list(scene.requests),
    }
    last = max(index for index, record in enumerate(answer.records) if present(record)) + 1
    steps = zip(scene.actions, answer.records, strict=False)
    for action, record in list(steps)[: last + 1]:
        yield {"action": action, "record": record}


if __name__ == "__main__":
    main()
