"""Requests that share no token, for refutations and small instances."""

from spec.core.requests import Prompt, Request


def unshared(*sizes: tuple[int, int]) -> list[Request]:
    """Requests 0, 1, … with these prompt lengths and maximum outputs, in tokens."""
    return [
        Request(id=str(index), prompt=Prompt.of_stream(f"own:{index}", length), max_tokens=most)
        for index, (length, most) in enumerate(sizes)
    ]
