"""Three sample changes: each touches few files, and the lines of "After a change" make it green."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATCHES = ROOT / "tests" / "recipes"
MOST_FILES = {"a-rule": 3, "an-admission-variant": 6, "a-key-of-the-budget": 8}
STALE = {
    "a-rule": "exact: SPY-DEC-8: holds, expected no verdict",
    "an-admission-variant": "by the longest: SPY-VOL-6: holds, expected no verdict",
    "a-key-of-the-budget": "vllm-v1, headroom: V1-BUD-1: holds, expected no verdict",
}


def lines_of(section: str, page: str) -> list[str]:
    """The lines of shell in a section of CONTRIBUTING."""
    _, _, rest = page.partition(f"## {section}\n")
    return re.findall(r"^    (.+)$", rest.partition("\n## ")[0], flags=re.MULTILINE)


@pytest.mark.parametrize("name", MOST_FILES)
def test_a_sample_change_applies_and_touches_few_files(name: str) -> None:
    path = PATCHES / f"{name}.patch"
    patch = path.read_text(encoding="utf-8")

    files = set(re.findall(r"^\+\+\+ b/(.+)$", patch, flags=re.MULTILINE))

    assert 1 < len(files) <= MOST_FILES[name]
    subprocess.run(["git", "apply", "--check", str(path)], cwd=ROOT, check=True)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MOST_FILES)
def test_a_sample_change_is_green_after_the_lines_of_the_page(name: str, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "clone"], check=True)

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line], cwd=tmp_path / "clone", capture_output=True, text=True
        )

    assert run(f"git apply {PATCHES / name}.patch").returncode == 0
    page = (tmp_path / "clone" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    name_stale, renew, check = lines_of("After a change", page)
    stale = run(name_stale)
    assert f"not as expected: {STALE[name]}\n" in stale.stdout, stale.stderr

    run(renew)

    done = run(check)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
