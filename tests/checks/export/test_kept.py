"""The cache trusts only files that no other user can write, and rebuilds damaged files."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from checks.export import kept
from checks.export.kept import CACHE_VARIABLE, kept_folder, sealed, unsealed

ROOT = Path(__file__).parents[3]
OTHER_USER = 65534


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kept, "gettempdir", lambda: str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "home" / "lockstep"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_folder_is_in_the_users_cache_and_closed_to_others(home: Path) -> None:
    folder = kept_folder("compiled", "abc")

    assert folder.parent == home / "compiled"
    assert folder.name.startswith(f"abc-{sys.implementation.cache_tag}-")
    assert [mode(path) for path in (home, folder.parent, folder)] == [0o700] * 3


def test_the_folder_depends_on_the_versions_of_what_makes_things(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept_folder("compiled", "abc")
    kept._makers.cache_clear()
    monkeypatch.setattr(kept, "version", lambda _: "0.0")

    assert kept_folder("compiled", "abc") != before
    kept._makers.cache_clear()


def test_a_folder_that_others_could_only_read_is_closed_and_used(home: Path) -> None:
    home.mkdir(parents=True, mode=0o755)

    assert kept_folder("compiled", "abc").is_relative_to(home)
    assert mode(home) == 0o700


def of_another_user(path: Path) -> None:
    path.mkdir(parents=True)
    os.chown(path, OTHER_USER, OTHER_USER)


def open_to_others(path: Path) -> None:
    path.mkdir(parents=True)
    path.chmod(0o777)


def behind_a_link(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "elsewhere").mkdir()
    path.symlink_to(path.parent / "elsewhere")


def a_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")


@pytest.mark.parametrize("made", [of_another_user, open_to_others, behind_a_link, a_file])
@pytest.mark.parametrize("below", ["", "compiled"])
def test_a_folder_that_others_could_fill_is_never_used(
    made: object, below: str, home: Path, tmp_path: Path
) -> None:
    if made is of_another_user and os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    assert callable(made)
    made(home / below if below else home)
    made(tmp_path / "temporary" / f"lockstep-{os.geteuid()}" / below)

    folder = kept_folder("compiled", "abc")

    fresh = Path(os.environ.pop(CACHE_VARIABLE))
    assert folder.is_relative_to(fresh)
    assert fresh.parent == tmp_path
    assert mode(fresh) == 0o700
    assert kept_folder("compiled", "abc") != folder


def test_processes_share_the_fresh_folder_and_it_goes_with_the_first(home: Path) -> None:
    script = (
        "import subprocess, sys\n"
        "from checks.export.kept import kept_folder\n"
        "print(kept_folder('compiled', 'abc'), flush=True)\n"
        "if len(sys.argv) < 2:\n"
        "    subprocess.run([sys.executable, __file__, 'inner'], check=True)\n"
    )
    Path("both.py").write_text(script)
    a_file(home)
    Path("temporary").mkdir()
    a_file(Path("temporary") / f"lockstep-{os.geteuid()}")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(Path("temporary").absolute())}

    said = subprocess.check_output([sys.executable, "both.py"], env=variables, text=True)

    line, other = said.splitlines()
    assert line == other
    assert not Path(line).exists()


def test_sealed_content_that_was_damaged_counts_as_none() -> None:
    whole, dice = sealed(b"x = 1\n"), random.Random(0)
    assert unsealed(whole) == b"x = 1\n"
    for _ in range(200):
        place = dice.randrange(len(whole))
        assert unsealed(whole[:place]) is None
        assert unsealed(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]) is None


# --- compiled functions ---------------------------------------------------------------------------

COMPILING = """
import numba
from checks.explore.compiled import jit
made = jit.generated_module("made", lambda: "from checks.explore.compiled.jit import entry\\n\\n"
                     "@entry\\ndef twice(x):\\n    return 2 * x\\n")
assert made.twice(21) == 42, made.twice(21)
print(sum(made.twice.stats.cache_hits.values()), jit.FOLDER)
"""


def compiled_call() -> tuple[bool, Path]:
    """Call a compiled function in a new process: loaded or compiled, and its cache file."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = subprocess.run(
        [sys.executable, "-c", COMPILING], env=variables, text=True, capture_output=True
    )
    assert said.returncode == 0, said.stderr
    hits, folder = said.stdout.split()
    return hits == "1", Path(folder)


@pytest.mark.thorough
def test_a_damaged_file_of_what_was_compiled_is_made_again() -> None:
    pytest.importorskip("numba")
    (_, folder), dice = compiled_call(), random.Random(0)
    assert compiled_call()[0]
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert {path.suffix for path in files} == {".py", ".nbi", ".nbc"}
    for path in files:
        whole = path.read_bytes()
        place = dice.randrange(len(whole) - 60)
        path.write_bytes(dice.choice([b"", whole[:place], whole[:place] + b"?!" * 9]))

        assert compiled_call()[1] == folder
        assert compiled_call()[0]
