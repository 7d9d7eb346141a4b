"""A git repository whose one file is a driver, below the current directory."""

import subprocess
from pathlib import Path


def git(*arguments: str) -> str:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *own, "-C", "repository", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def committed(*texts: str) -> list[str]:
    """The commits of a repository whose driver has these texts, one after the other."""
    Path("repository").mkdir()
    git("init", "-q")
    ids = []
    for number, text in enumerate(texts):
        Path("repository/driver.py").write_text(text)
        Path("repository/notes").write_text(str(number))
        git("add", "-A")
        git("commit", "-q", "-m", f"Change {number}")
        ids.append(git("rev-parse", "HEAD"))
    return ids
