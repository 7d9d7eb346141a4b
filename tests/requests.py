"""Requests as most tests need them."""

from typing import Any

from spec.core.requests import Prompt, Request


def request(name: str, prompt_len: int, max_tokens: int = 8, **more: Any) -> Request:
    """A request with a prompt of its own."""
    prompt = Prompt.of_stream(f"prompt {name}", prompt_len)
    return Request(id=name, prompt=prompt, max_tokens=max_tokens, **more)
