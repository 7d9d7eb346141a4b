"""The error or signal that ended a command decides its exit code and message."""

import codecs
import os
import signal
from collections.abc import Iterator

import pytest

from checks.cli import INCOMPLETE
from checks.cli.contract import run_command

CODEC = "signalled"


def _decoded(text: object, errors: str = "strict") -> tuple[str, int]:
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError(text, errors)


def _found(name: str) -> codecs.CodecInfo | None:
    return codecs.CodecInfo(codecs.utf_8_encode, _decoded, name=name) if name == CODEC else None


@pytest.fixture(autouse=True)
def _codec() -> Iterator[None]:
    codecs.register(_found)
    yield
    codecs.unregister(_found)


def test_signal_within_a_codec_is_named_as_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(lambda: b"a".decode(CODEC)) == INCOMPLETE

    assert capsys.readouterr().err == "lockstep: incomplete: ended by SIGTERM\n"
