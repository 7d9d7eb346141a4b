"""Workload files as other tools write them, with made-up values: one for each format."""

import json
from typing import Any

from attrs import frozen

from spec.core.requests import Request

Expected = tuple[str, int, int, float, str | None]


@frozen
class Sample:
    """A file, its format, and what is read: id, prompt, output, arrival, the request it follows."""

    format: str
    text: str
    requests: list[Expected]
    notes: tuple[str, ...] = ()


def summary(request: Request) -> Expected:
    arrival = round(request.arrival_time or 0.0, 9)
    return request.id, request.prompt_len, request.end, arrival, request.after


def _lines(*entries: Any) -> str:
    return "\n".join(map(json.dumps, entries))


_NONE_SHARED = "no prompt shares a prefix with another"
_AT_ONCE = "all arrive at once"


def _texts(count: int) -> str:
    return f"texts: {count} (lengths estimated at 4 characters a token)"


def _record(start: int, end: int, prompt: int, output: int, **metadata: Any) -> dict[str, Any]:
    times = {"request_start_ns": start, "request_end_ns": end}
    return {
        "metadata": {"session_num": 0, **times, **metadata},
        "metrics": {
            "input_sequence_length": {"value": prompt, "unit": "tokens"},
            "output_sequence_length": {"value": output, "unit": "tokens"},
        },
        "error": None,
    }


def _streamed(*words: str) -> list[dict[str, str]]:
    chunks = [json.dumps({"choices": [{"delta": {"content": word}}]}) for word in ("", *words)]
    return [{"response": f"data: {chunk}\n\n"} for chunk in (*chunks, "[DONE]")]


def _sent(at: float, prompt: int, output: int, conversation: str | None = None) -> dict[str, Any]:
    return {
        "request_start_time": at,
        "request_end_time": at + 1,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "info": {"conversation_id": conversation},
    }


_BENCH = {
    "request_rate": 2.0,
    "request_throughput": 1.5,
    "input_lens": [30, 40, 50],
    "output_lens": [3, 7, 5],
    "ttfts": [0.1, 0.0, 0.1],
    "errors": ["", "timeout", ""],
}

SAMPLES = {
    "azure, not sorted": Sample(
        "azure",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:02.500000+00:00,374,44\n"
        "2024-05-10 00:00:01.000000+00:00,396,109\n",
        [("0", 374, 44, 1.5, None), ("1", 396, 109, 0, None)],
        (_NONE_SHARED,),
    ),
    "azure, with images": Sample(
        "azure",
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-05-10 00:00:02,3,374,44\n",
        [("0", 374, 44, 0, None)],
        (_NONE_SHARED,),
    ),
    "burstgpt": Sample(
        "burstgpt",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n"
        "5,,1.5,ChatGPT,472,18,490,API log\n"
        "45,7,2,GPT-4,80,0,80,Conversation log\n"
        "118,7,2,GPT-4,90,7,97,Conversation log\n",
        [("0", 472, 18, 0, None), ("2", 90, 7, 113, None)],
        (_NONE_SHARED,),
    ),
    "servegen": Sample(
        "servegen",
        "request_id,timestamp,input_tokens,output_tokens\n0,0.5,10,20\n1,1.25,15,25\n",
        [("0", 10, 20, 0, None), ("1", 15, 25, 0.75, None)],
        (_NONE_SHARED,),
    ),
    "mooncake": Sample(
        "mooncake",
        _lines(
            {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
            {"timestamp": 2500, "input_length": 700, "output_length": 6, "hash_ids": [0, 2]},
        ),
        [("0", 600, 5, 0, None), ("1", 700, 6, 2.5, None)],
    ),
    "mooncake, without hashes": Sample(
        "mooncake",
        _lines(
            {"timestamp": 0, "input_length": 600, "output_length": 5},
            {"timestamp": 9, "text_input": "What is it?", "output_length": 6},
        ),
        [("0", 600, 5, 0, None), ("1", 3, 6, 0.009, None)],
        (_texts(1), _NONE_SHARED),
    ),
    "mooncake, conversations of AIPerf": Sample(
        "mooncake",
        _lines(
            {"session_id": "a", "input_length": 300, "output_length": 40},
            {"session_id": "b", "timestamp": 500, "input_length": 20, "output_length": 3},
            {"session_id": "a", "delay": 2000, "input_length": 150, "output_length": 20},
        ),
        [("0", 300, 40, 0, None), ("1", 20, 3, 0.5, None), ("2", 490, 20, 2, "0")],
        ("turns that follow the end of the one before: 1",),
    ),
    "mooncake, conversations of genai-perf": Sample(
        "mooncake",
        _lines(
            {"session_id": "a", "delay": 1000, "input_length": 50, "output_length": 10},
            {"session_id": "a", "delay": 2000, "input_length": 50, "output_length": 10},
            {"session_id": "a", "input_length": 100, "output_length": 10},
        ),
        [("0", 50, 10, 0, None), ("1", 110, 10, 1, "0"), ("2", 220, 10, 2, "1")],
        ("turns that follow the end of the one before: 2",),
    ),
    "bailian": Sample(
        "bailian",
        _lines(
            {"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40}
            | {"output_length": 9, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]},
            {"chat_id": 8, "parent_chat_id": 7, "timestamp": 61.25, "input_length": 57}
            | {"output_length": 4, "type": "text", "turn": 2, "hash_ids": [1, 2, 4, 5]},
        ),
        [("0", 40, 9, 0.5, None), ("1", 57, 4, 61.25, None)],
    ),
    "sharegpt": Sample(
        "sharegpt",
        json.dumps(
            [
                {
                    "id": "a_0",
                    "conversations": [
                        {"from": "human", "value": "x" * 41},
                        {"from": "gpt", "value": "y" * 8},
                        {"from": "human", "value": "left out"},
                    ],
                },
                {"id": "a_1", "conversations": [{"from": "gpt", "value": "alone"}]},
            ],
            indent=1,
        ),
        [("0", 11, 2, 0, None)],
        (_texts(2), _NONE_SHARED),
    ),
    "sharegpt, lines": Sample(
        "sharegpt",
        _lines({"conversation": [{"content": "one two"}, {"content": "three"}]}),
        [("0", 2, 2, 0, None)],
        (_texts(2), _NONE_SHARED),
    ),
    "custom": Sample(
        "custom",
        _lines({"prompt": "a" * 12, "output_tokens": 10}, {"prompt": "b" * 13}),
        [("0", 3, 10, 0, None), ("1", 4, 256, 0, None)],
        (
            _texts(2),
            "requests without an output length: 1 (256 tokens assumed)",
            _AT_ONCE,
            _NONE_SHARED,
        ),
    ),
    "vllm bench serve": Sample(
        "bench-serve",
        json.dumps({"endpoint_type": "openai", "start_times": [100.5, 101, 102.25]} | _BENCH),
        [("0", 30, 3, 0, None), ("1", 50, 5, 1.75, None)],
        ("failed requests, left out: 1", _NONE_SHARED),
    ),
    "sglang bench_serving": Sample(
        "bench-serve",
        json.dumps({"backend": "sglang", "total_output_tokens_retokenized": 8} | _BENCH, indent=2),
        [("0", 30, 3, 0, None), ("1", 50, 5, 0, None)],
        ("failed requests, left out: 1", _AT_ONCE, _NONE_SHARED),
    ),
    "aiperf": Sample(
        "aiperf",
        _lines(
            _record(2 * 10**9, 3 * 10**9, 550, 9, x_correlation_id="a", turn_index=0),
            _record(1 * 10**9, 5 * 10**9, 60, 7, x_correlation_id="b", turn_index=0),
            _record(4 * 10**9, 6 * 10**9, 700, 8, x_correlation_id="a", turn_index=1),
            _record(4 * 10**9, 6 * 10**9, 1, 1) | {"metrics": {}, "error": {"code": 499}},
        ),
        [("0", 550, 9, 1, None), ("1", 60, 7, 0, None), ("2", 700, 8, 1, "0")],
        (
            "failed requests, left out: 1",
            "turns that follow the end of the one before: 1",
            _NONE_SHARED,
        ),
    ),
    "aiperf inputs, a turn a line": Sample(
        "aiperf-inputs",
        _lines(
            {"timestamp": 0, "text": "a" * 20, "output_length": 4},
            {"timestamp": 1000, "texts": [{"name": "t", "contents": ["b" * 8, "c" * 8]}]},
        ),
        [("0", 5, 4, 0, None), ("1", 4, 256, 1, None)],
        (_texts(2), "requests without an output length: 1 (256 tokens assumed)", _NONE_SHARED),
    ),
    "aiperf inputs, conversations": Sample(
        "aiperf-inputs",
        _lines(
            {"session_id": "s", "turns": [{"text": "a" * 40}, {"text": "b" * 8, "delay": 1000}]},
            {"turns": [{"text": "c" * 4}]},
        ),
        [("0", 10, 256, 0, None), ("1", 268, 256, 1, "0"), ("2", 1, 256, 0, None)],
        (
            _texts(3),
            "requests without an output length: 3 (256 tokens assumed)",
            "turns that follow the end of the one before: 1",
        ),
    ),
    "aiperf inputs.json": Sample(
        "aiperf-inputs",
        json.dumps(
            {
                "data": [
                    {
                        "session_id": "s",
                        "payloads": [
                            {"messages": [{"role": "user", "content": "a" * 16}], "max_tokens": 3},
                            {"messages": [{"role": "user", "content": "b" * 16}], "max_tokens": 4},
                        ],
                    }
                ]
            }
        ),
        [("0", 4, 3, 0, None), ("1", 11, 4, 0, "0")],
        (_texts(2), "turns that follow the end of the one before: 1"),
    ),
    "genai-perf inputs.json": Sample(
        "aiperf-inputs",
        json.dumps(
            {
                "data": [
                    {"payload": [{"prompt": ["a" * 16], "max_tokens": 3}], "timestamp": [0]},
                    {
                        "payload": [
                            {"messages": [{"content": [{"type": "text", "text": "b" * 4}]}]}
                        ],
                        "timestamp": [250],
                    },
                ]
            }
        ),
        [("0", 4, 3, 0, None), ("1", 1, 256, 0.25, None)],
        (_texts(2), "requests without an output length: 1 (256 tokens assumed)", _NONE_SHARED),
    ),
    "genai-perf": Sample(
        "genai-perf",
        json.dumps(
            {
                "service_kind": "openai",
                "experiments": [
                    {
                        "experiment": {"mode": "concurrency", "value": 1},
                        "requests": [
                            {
                                "timestamp": 10**9,
                                "request_inputs": {
                                    "payload": json.dumps({"messages": [{"content": "a" * 24}]})
                                },
                                "response_timestamps": [10**9 + 1, 2 * 10**9],
                                "response_outputs": _streamed("I", " like", " dogs"),
                            },
                            {
                                "timestamp": 3 * 10**9,
                                "request_inputs": {"payload": json.dumps({"prompt": "b" * 5})},
                                "response_timestamps": [4 * 10**9],
                                "response_outputs": [
                                    {
                                        "response": json.dumps(
                                            {
                                                "choices": [{"text": "a cat"}],
                                                "usage": {"completion_tokens": 2},
                                            }
                                        )
                                    }
                                ],
                            },
                        ],
                    }
                ],
            }
        ),
        [("0", 6, 3, 0, None), ("1", 2, 2, 2, None)],
        (_texts(2), _NONE_SHARED),
    ),
    "guidellm": Sample(
        "guidellm",
        json.dumps(
            {
                "metadata": {"version": 2},
                "benchmarks": [
                    {
                        "requests": {
                            "successful": [
                                _sent(50.5, 256, 128, "c"),
                                _sent(50.75, 250, 120),
                                _sent(52.0, 400, 16, "c"),
                            ],
                            "errored": [{}],
                            "incomplete": [],
                        }
                    },
                    {"requests": {"successful": [_sent(90.5, 9, 8)]}},
                ],
            }
        ),
        [
            ("0", 256, 128, 0, None),
            ("1", 250, 120, 0.25, None),
            ("2", 400, 16, 0.5, "0"),
            ("3", 9, 8, 40, None),
        ],
        (
            "failed requests, left out: 1",
            "turns that follow the end of the one before: 1",
            _NONE_SHARED,
        ),
    ),
    "lockstep": Sample(
        "lockstep",
        _lines(
            {"id": "a", "arrival_s": 1.5, "prompt_len": 9, "max_tokens": 3},
            {"id": "b", "after": "a", "arrival_s": 2, "prompt_len": 8, "max_tokens": 4},
        ),
        [("a", 9, 3, 1.5, None), ("b", 8, 4, 2, "a")],
    ),
}
