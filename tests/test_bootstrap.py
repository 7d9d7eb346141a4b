"""The bootstrap script: its choices, its messages, and the environment that it makes.

Most tests run the script itself in a small checkout with a stand-in for uv, which writes down how
it was called; only the thorough ones install anything.
"""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest

from tests.refusals import refusal

ROOT = Path(__file__).parent.parent
REMOVING = "bootstrap: removing the outdated or unfinished .venv\n"
WAITING = "bootstrap: waiting for another bootstrap of this checkout\n"
MADE_WITH_UV = """\
bootstrap: making .venv with uv
bootstrap: installing the packages of requirements.lock
bootstrap: installing this checkout
"""

HELP = """\
Usage: ./bootstrap COMMAND [ARGUMENT ...]

Runs COMMAND from the .venv of this checkout. Where .venv is missing, unfinished or out of date,
it is made first from requirements.lock: with uv if that is on the PATH, else with venv and pip.

  ./bootstrap lockstep run examples/first.jsonl
  ./bootstrap pytest

Needs Python 3.11 or newer. Progress goes to standard error. The exit code is that of COMMAND,
or 2 if COMMAND could not be started.
"""

STAND_IN_FOR_UV = f"""\
#!/bin/sh
echo "$@" >> uv.log
while [ -e held ]; do sleep 0.02; done
if [ "$1" = venv ]; then
  mkdir -p .venv/bin
  ln -s {sys.executable} .venv/bin/python
  printf '#!/bin/sh\\nprintf "%%s|" "$@"; exit 7\\n' > .venv/bin/say
  chmod +x .venv/bin/say
elif [ -e broken ]; then
  echo "no route to the index"
  exit 1
fi
"""


class Done(NamedTuple):
    """How a call ended."""

    code: int
    stdout: str
    stderr: str


class Checkout:
    """A checkout of nothing but the bootstrap and its inputs, with a PATH of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copy(ROOT / "bootstrap", root)
        (root / "requirements.lock").write_text("attrs==26.1.0\n")
        (root / "pyproject.toml").write_text("[project]\n")
        (root / "tools").mkdir()
        uv = root / "tools" / "uv"
        uv.write_text(STAND_IN_FOR_UV)
        uv.chmod(0o755)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(self.root / "bootstrap"), *arguments],
            env={"PATH": f"{self.root / 'tools'}:/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> Done:
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=60)
        return Done(process.returncode, stdout, stderr)

    def start_installing(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a call and return once its installer runs, which goes on when it is let go."""
        (self.root / "held").touch()
        process = self.start(*arguments)
        deadline = time.monotonic() + 60
        while not self.uv_calls:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process

    def let_installers_go(self) -> None:
        (self.root / "held").unlink()

    @property
    def uv_calls(self) -> list[str]:
        """The sub-command of every call of uv so far."""
        log = self.root / "uv.log"
        if not log.exists():
            return []
        return [re.sub(r" --.*", "", line) for line in log.read_text().splitlines()]


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line of standard error; waits for it."""
    assert process.stderr is not None
    return process.stderr.readline()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path.resolve())


@pytest.fixture
def bootstrap() -> ModuleType:
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("bootstrap", str(ROOT / "bootstrap"))
    spec = importlib.util.spec_from_loader("bootstrap", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


# The environment: when it is made


def test_first_call_makes_the_environment_and_the_second_only_uses_it(checkout: Checkout) -> None:
    assert checkout.run("python", "-c", "print('hello')") == (0, "hello\n", MADE_WITH_UV)
    assert checkout.run("python", "-c", "print('hello')") == (0, "hello\n", "")
    assert checkout.uv_calls == ["venv", "pip sync", "pip install"]


@pytest.mark.parametrize("changed", ["requirements.lock", "pyproject.toml"])
def test_environment_is_remade_when_its_inputs_change(checkout: Checkout, changed: str) -> None:
    checkout.run("python", "-c", "")
    (checkout.root / ".venv" / "old").touch()
    (checkout.root / changed).write_text("[changed]\n")

    assert checkout.run("python", "-c", "") == (0, "", REMOVING + MADE_WITH_UV)
    assert not (checkout.root / ".venv" / "old").exists()


def test_environment_is_remade_when_its_python_is_gone(checkout: Checkout) -> None:
    checkout.run("python", "-c", "")
    python = checkout.root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/gone/python3")

    assert checkout.run("python", "-c", "").code == 0
    assert checkout.uv_calls.count("venv") == 2


def test_environment_is_remade_after_the_checkout_moved(checkout: Checkout, tmp_path: Path) -> None:
    checkout.run("python", "-c", "")
    moved = tmp_path / "moved"
    shutil.copytree(
        checkout.root, moved, symlinks=True, ignore=shutil.ignore_patterns("moved", "*.log")
    )
    checkout.root = moved

    assert checkout.run("python", "-c", "").code == 0
    assert checkout.uv_calls == ["venv", "pip sync", "pip install"]


def test_failed_installation_shows_why_and_the_next_call_starts_over(checkout: Checkout) -> None:
    broken = checkout.root / "broken"
    broken.touch()
    failed = checkout.run("python", "-c", "")
    broken.unlink()
    healed = checkout.run("python", "-c", "")

    assert (failed.code, failed.stdout) == (2, "")
    assert failed.stderr == (
        "bootstrap: making .venv with uv\n"
        "bootstrap: installing the packages of requirements.lock\n"
        "no route to the index\n"
        "bootstrap: installing the packages of requirements.lock: failed with exit code 1,"
        " see above.\n"
    )
    assert healed == (0, "", REMOVING + MADE_WITH_UV)


def test_two_calls_at_once_make_the_environment_once(checkout: Checkout) -> None:
    making = checkout.start_installing("python", "-c", "print('made')")
    waiting = checkout.start("python", "-c", "print('waited')")
    waited = read_line(waiting)
    checkout.let_installers_go()

    assert waited == WAITING
    assert waiting.communicate(timeout=60) == ("waited\n", "")
    assert making.communicate(timeout=60) == ("made\n", MADE_WITH_UV)
    assert checkout.uv_calls == ["venv", "pip sync", "pip install"]


def test_call_after_a_killed_one_waits_for_its_orphaned_installer(checkout: Checkout) -> None:
    killed = checkout.start_installing("python", "-c", "")
    killed.kill()
    again = checkout.start("python", "-c", "")
    waited = read_line(again)
    checkout.let_installers_go()
    _, said = again.communicate(timeout=60)
    killed.communicate()

    assert again.returncode == 0
    assert waited == WAITING
    assert said == REMOVING + MADE_WITH_UV


# The command


def test_command_gets_its_arguments_untouched_and_gives_the_exit_code(checkout: Checkout) -> None:
    done = checkout.run("say", "--help", "two words", "", "*")

    assert done == (7, "--help|two words||*|", MADE_WITH_UV)


@pytest.mark.parametrize("command", ["pytset", "../../tools/uv"])
def test_unknown_command_is_refused(checkout: Checkout, command: str) -> None:
    checkout.run("python", "-c", "")

    venv = checkout.root / ".venv"
    refusal = f"bootstrap: {command!r} is no command of {venv}; try lockstep, pytest or python.\n"
    assert checkout.run(command) == (2, "", refusal)


def test_help_is_printed_without_making_anything(checkout: Checkout) -> None:
    assert checkout.run("--help") == (0, HELP, "")
    assert checkout.run() == (2, "", HELP)
    assert checkout.uv_calls == []


# Which tools do the work


def test_without_uv_the_environment_is_made_by_venv_and_pip(bootstrap: ModuleType) -> None:
    steps = bootstrap.recipe(Path("/c/.venv"), "/usr/bin/python3", None)

    pip = (
        "/c/.venv/bin/python -I -m pip install --quiet --no-input --no-user"
        " --disable-pip-version-check"
    )
    assert [(doing, " ".join(argv).replace(str(ROOT), "/c")) for doing, argv in steps] == [
        ("making .venv with venv and pip", "/usr/bin/python3 -I -m venv /c/.venv"),
        (
            "installing the packages of requirements.lock",
            f"{pip} --no-deps --requirement /c/requirements.lock --require-hashes",
        ),
        ("installing this checkout", f"{pip} --no-deps --no-build-isolation --editable /c"),
    ]


def test_with_uv_everything_is_done_by_uv(bootstrap: ModuleType) -> None:
    steps = bootstrap.recipe(Path("/c/.venv"), "/usr/bin/python3", "/bin/uv")

    assert [" ".join(argv).replace(str(ROOT), "/c") for _, argv in steps] == [
        "/bin/uv venv --quiet --python /usr/bin/python3 /c/.venv",
        "/bin/uv pip sync --quiet --python /c/.venv/bin/python --require-hashes"
        " /c/requirements.lock",
        "/bin/uv pip install --quiet --python /c/.venv/bin/python --no-deps --no-build-isolation"
        " --editable /c",
    ]


@pytest.fixture
def on_debian(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A Python 3.13 without ensurepip, and the commands that were run there."""
    ran: list[str] = []

    def run(doing: str, argv: list[str], environment: dict[str, str]) -> None:
        assert environment["DEBIAN_FRONTEND"] == "noninteractive"
        ran.append(" ".join(argv))

    debian = SimpleNamespace(version_info=(3, 13, 5), executable="/usr/bin/python3")
    monkeypatch.setattr(bootstrap, "sys", debian)
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(bootstrap.shutil, "which", {"apt-get": "/usr/bin/apt-get"}.get)
    monkeypatch.setattr(bootstrap, "run", run)
    return ran


def test_root_on_debian_gets_the_missing_part_of_venv(
    bootstrap: ModuleType, on_debian: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    bootstrap.ensure_ensurepip()

    assert on_debian == [
        "apt-get update",
        "apt-get install -y --no-install-recommends python3.13-venv",
    ]


def test_refusal_on_debian_names_the_command_where_not_root(
    bootstrap: ModuleType, on_debian: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert refusal(bootstrap.CannotStartError, bootstrap.ensure_ensurepip) == (
        "/usr/bin/python3 lacks the part that makes environments. Run\n"
        "  sudo apt-get update && sudo apt-get install -y python3.13-venv\n"
        "or install uv, and try again."
    )
    assert on_debian == []


@pytest.fixture
def python_3_9(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Path]:
    """Run the script as if by Python 3.9, with one empty directory on the PATH."""
    monkeypatch.setattr(sys, "version_info", (3, 9, 6))
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(bootstrap.platform, "python_version", lambda: "3.9.6")
    monkeypatch.setenv("PATH", str(tmp_path))
    yield tmp_path
    monkeypatch.undo()  # before pytest looks at the version itself


def test_old_python_is_refused(
    bootstrap: ModuleType, python_3_9: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bootstrap.main(["pytest"]) == 2
    assert capsys.readouterr().err == (
        "bootstrap: needs Python 3.11 or newer; /usr/bin/python3 is 3.9.6, and no python3.11 or"
        " newer is on the PATH. Install one and try again.\n"
    )


def test_old_python_hands_over_to_a_newer_one_that_starts(
    bootstrap: ModuleType, python_3_9: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {
        "python3.11": "#!/bin/sh\nexit 127\n",
        "python3.12": "#!/bin/sh\n",
    }.items():
        (python_3_9 / name).write_text(content)
        (python_3_9 / name).chmod(0o755)
    became: list[list[str]] = []

    def become(argv: list[str], environment: dict[str, str]) -> None:
        became.append(argv)
        raise KeyboardInterrupt  # a stand-in for never coming back

    monkeypatch.setattr(bootstrap, "become", become)
    bootstrap.main(["pytest", "-x"])

    assert became == [[str(python_3_9 / "python3.12"), str(ROOT / "bootstrap"), "pytest", "-x"]]


# The lock file


def locked() -> dict[str, str]:
    """The entries of the lock file: each package's whole text, by name."""
    entries = re.split(r"^(?=[a-z0-9])", (ROOT / "requirements.lock").read_text(), flags=re.M)
    return {entry.split("==")[0]: entry for entry in entries[1:]}


def test_every_locked_package_has_one_version_and_hashes() -> None:
    assert len(locked()) > 20
    for name, entry in locked().items():
        assert re.match(rf"{name}==[0-9.]+( ; .*)? \\\n    --hash=sha256:[0-9a-f]{{64}}", entry)


def test_lock_file_covers_every_requirement_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
    ]

    assert {re.split(r"[<>=]", requirement)[0] for requirement in wanted} <= locked().keys()


# The real thing


@pytest.mark.thorough
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_fresh_checkout_with_an_empty_home_gets_a_working_environment(
    tmp_path: Path, tool: str
) -> None:
    tools, home, clone = tmp_path / "tools", tmp_path / "home", tmp_path / "clone"
    tools.mkdir()
    home.mkdir()
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    python = getattr(sys, "_base_executable", sys.executable)
    (tools / "python3").symlink_to(python)
    if tool == "uv":
        uv = shutil.which("uv")
        if uv is None:
            pytest.skip("no uv on the PATH")
        (tools / "uv").symlink_to(uv)
    certificates = {name: os.environ[name] for name in os.environ if "CERT" in name}
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(home), **certificates}
    command = "import attrs, z3, spec; print(spec.__file__)"

    done = subprocess.run(
        [clone / "bootstrap", "python", "-c", command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == f"{clone.resolve()}/spec/__init__.py\n", done.stderr
    assert (clone / ".venv" / "bin" / "lockstep").exists()
    assert (clone / ".venv" / "bin" / "pip").exists() == (tool == "pip")
