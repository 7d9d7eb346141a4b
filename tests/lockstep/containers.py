"""The container recipe, built and run where a builder with the base image is installed."""

import shutil
import subprocess
from pathlib import Path

BUILDER = shutil.which("buildah")
_HERE = ("--isolation", "chroot", "--network", "host")  # needs no rights but root's


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    assert BUILDER is not None
    return subprocess.run([BUILDER, *words], capture_output=True, text=True, check=False)


def base_image(recipe: str) -> str:
    """The base image of the recipe."""
    (line,) = (line for line in recipe.splitlines() if line.startswith("FROM "))
    return line.removeprefix("FROM ")


def can_build(recipe: str) -> bool:
    """True if a builder is installed and has the base image."""
    return BUILDER is not None and bool(_run("images", "-q", base_image(recipe)).stdout.strip())


def built(recipe: str, context: Path) -> str:
    """The image of the recipe; the package is the wheel in `wheels` of the context."""
    (context / "Containerfile").write_text(recipe)
    done = _run("build", *_HERE, "--pull=never", "-q", str(context))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def ran(image: str, project: Path) -> int:
    """The exit code of the image's command with a project where it works."""
    container = _run("from", "--pull=never", image).stdout.strip()
    command = _run(
        *("inspect", "--type", "image", "--format"),
        "{{range .OCIv1.Config.Cmd}}{{println .}}{{end}}",
        image,
    ).stdout.split("\n")
    try:
        words = [word for word in command if word]
        return _run("run", *_HERE, "-v", f"{project}:/project", container, "--", *words).returncode
    finally:
        _run("rm", container)
