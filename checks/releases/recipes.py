"""How each release of a scheduler is installed into an environment of its own: data, a row each."""

import os
from collections.abc import Iterator, Mapping

from attrs import field, frozen

from checks.harness.driver.process import DRIVER_FILES

IN_ENGINE_CORE = ("sendnn", "vllm-v1")  # drivers that step as `EngineCore.step` does
TORCH_VARIABLE = "LOCKSTEP_TORCH"  # another requirement for torch, as a machine may need
_TORCH = "torch==2.13.0"  # a build without CUDA is enough; pip's own configuration finds it


@frozen
class Installation:
    """One call of `pip install`: what for, with which arguments and variables."""

    what: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(factory=dict)


@frozen
class Recipe:
    """A release and how it is had. `file`: its driver; `constraints`: versions of what it needs.

    `vllm`: the release of vLLM that it is or is paired with. `shares`: the release in whose
    environment is all but vLLM and the plugin, so that a further one costs 80 MB and no more.
    `build_tools`: what building needs in another version than that release has. `package`: what
    the scheduler is a part of where that is not vLLM. `imports`: what the driver's imports ask
    for. `options`: how pip must be called for this vLLM. `rules_only`: no variant of a
    reference schedules as it does; `survey` judges it, and what `conform` finds says little.
    `is_later`: it came after the release that the specification describes, and is held against
    that one where the two do not differ; it is run where its version is asked for. `checkout`: the
    working tree that is installed in the place of a release, see `checks.releases.checkouts`.
    """

    driver: str
    version: str
    file: str
    vllm: str = ""
    constraints: str = ""
    shares: str = ""
    build_tools: tuple[str, ...] = ()
    package: str = ""
    imports: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    rules_only: bool = False
    is_later: bool = False
    checkout: str = ""

    @property
    def name(self) -> str:
        """Driver and version, as `--version` of pip writes them."""
        return f"{self.driver}=={self.version}"

    @property
    def about(self) -> str:
        """What is run."""
        if self.checkout:
            return f"{self.checkout} on vLLM {self.vllm}"
        if self.package:
            return f"{self.package} {self.version}"
        plugin = f"sendnn-inference {self.version} on " if self.driver == PLUGIN else ""
        return f"{plugin}vLLM {self.vllm}"

    def installations(self) -> Iterator[Installation]:
        """The calls of pip, in order."""
        if self.package:
            yield Installation("what it imports", self.imports)
            yield Installation(self.about, ("--no-deps", f"{self.package}=={self.version}"))
            return
        if self.shares:
            if self.build_tools:
                yield Installation("what vLLM is built with", self.build_tools)
            yield from self._own_parts()
            return
        pins = ("--constraint", str(DRIVER_FILES / self.constraints))
        yield Installation("torch", (os.environ.get(TORCH_VARIABLE, _TORCH),))
        yield Installation("what vLLM is built with", (*pins, *_BUILD_TOOLS))
        yield from self._own_parts()
        if self.driver == PLUGIN:
            yield Installation("what the plugin is built on", ("--no-deps", *pins, *_PLUGIN_PARTS))
        yield Installation("what they import", (*pins, *self.imports))

    def _own_parts(self) -> Iterator[Installation]:
        yield Installation(
            f"vLLM {self.vllm}, without kernels",
            (
                *(*self.options, "--no-deps", "--no-build-isolation", "--no-binary", "vllm"),
                f"vllm=={self.vllm}",
            ),
            # Without the override the version gets a suffix that pip does not accept by name.
            {"VLLM_VERSION_OVERRIDE": self.vllm, "VLLM_TARGET_DEVICE": "empty"},
        )
        if self.checkout:
            # Its files are imported from where they are, so that no change needs another call.
            tree = ("--no-deps", "--editable", self.checkout)
            yield Installation(f"the checkout at {self.checkout}", tree)
        elif self.driver == PLUGIN:
            plugin = ("--no-deps", f"sendnn-inference=={self.version}")
            yield Installation(f"sendnn-inference {self.version}", plugin)


PLUGIN = "sendnn"
_BUILD_TOOLS = (
    *("setuptools", "setuptools-scm", "setuptools-rust", "wheel", "packaging", "numpy"),
    *("cmake", "ninja", "jinja2"),
)
_PLUGIN_PARTS = ("ibm-fms", "fms-model-optimizer")
_IMPORTS = (
    *("numpy", "msgspec", "pydantic", "cloudpickle", "pyzmq", "transformers", "regex"),
    *("cachetools", "psutil", "requests", "aiohttp", "pybase64", "einops", "sentencepiece"),
    *("tiktoken", "openai", "fastapi", "prometheus-client", "prometheus-fastapi-instrumentator"),
    *("blake3", "py-cpuinfo", "pillow", "protobuf", "gguf", "mistral-common"),
    *("partial-json-parser", "pyyaml", "filelock", "diskcache", "lark", "depyf"),
    *("compressed-tensors", "cbor2", "openai-harmony", "uvloop", "llguidance", "xgrammar"),
)

_V0_IMPORTS = (
    *("numpy", "msgspec", "pydantic", "cloudpickle", "pyzmq", "transformers", "huggingface-hub"),
    *("regex", "cachetools", "psutil", "requests", "aiohttp", "pybase64", "openai", "fastapi"),
    *("blake3", "py-cpuinfo", "pillow", "gguf", "tqdm", "pyyaml"),
)
# Before 0.10 the version has its suffix whatever is overridden. Without its newer resolver pip
# does not mind; every pip that comes with a Python which these releases accept has the older one.
_SUFFIX_ACCEPTED = ("--use-deprecated=legacy-resolver",)

_NANO_IMPORTS = ("numpy==2.4.0", "xxhash==3.6.0")

NEWEST_PLUGIN = "sendnn==2.6.3"


def _vllm_v1(*versions: str, is_later: bool = False) -> Iterator[Recipe]:
    """Releases of vLLM whose licence is written as older setuptools do not know."""
    for version in versions:
        yield Recipe(
            *("vllm-v1", version, "vllm_v1.py"),
            vllm=version,
            shares=NEWEST_PLUGIN,
            build_tools=("setuptools>=77,<81",),
            is_later=is_later,
        )


RECIPES = (
    Recipe(
        *("sendnn", "2.6.3", "sendnn.py"),
        vllm="0.28.0",
        constraints="sendnn-2.6.3.txt",
        imports=_IMPORTS,
    ),
    Recipe("sendnn", "2.6.2", "sendnn.py", vllm="0.28.0", shares=NEWEST_PLUGIN),
    Recipe("sendnn", "2.6.1", "sendnn.py", vllm="0.27.1", shares=NEWEST_PLUGIN),
    Recipe("sendnn", "2.6.0", "sendnn.py", vllm="0.27.1", shares=NEWEST_PLUGIN),
    Recipe("sendnn", "2.5.0", "sendnn.py", vllm="0.25.1", shares=NEWEST_PLUGIN),
    Recipe("sendnn", "2.4.0", "sendnn.py", vllm="0.24.0", shares=NEWEST_PLUGIN),
    Recipe("sendnn", "2.3.0", "sendnn.py", vllm="0.24.0", shares=NEWEST_PLUGIN, rules_only=True),
    Recipe("sendnn", "2.2.0", "sendnn.py", vllm="0.19.1", shares=NEWEST_PLUGIN, rules_only=True),
    Recipe("sendnn", "2.1.0", "sendnn.py", vllm="0.19.1", shares=NEWEST_PLUGIN, rules_only=True),
    Recipe("sendnn", "2.0.0", "sendnn.py", vllm="0.19.1", shares=NEWEST_PLUGIN, rules_only=True),
    *_vllm_v1("0.33.0", "0.32.0", "0.31.0", "0.30.0", "0.29.0", is_later=True),
    Recipe("vllm-v1", "0.28.0", "vllm_v1.py", vllm="0.28.0", shares=NEWEST_PLUGIN),
    *_vllm_v1("0.11.2"),
    Recipe(
        *("vllm-v0", "0.9.2", "vllm_v0.py"),
        vllm="0.9.2",
        constraints="vllm_v0-0.9.2.txt",
        imports=_V0_IMPORTS,
        options=_SUFFIX_ACCEPTED,
    ),
    Recipe(
        *("nano-vllm", "0.0.2", "nano_vllm.py"),
        package="nano-vllm-npu",
        imports=_NANO_IMPORTS,
    ),
    Recipe(
        *("nano-vllm-voxcpm", "2.0.5", "nano_vllm_voxcpm.py"),
        package="nano-vllm-voxcpm",
        imports=_NANO_IMPORTS,
    ),
)
"""The newest release of a driver stands before the others of it."""


# The driver to start from, by policy: a toy; of vLLM V0, where nothing can be left out, that of the
# release.
TEMPLATES = {
    "spyre": "template.py",
    "nano-vllm": "template_nano_vllm.py",
    "vllm-v1": "template_vllm_v1.py",
    "vllm-v0": "vllm_v0.py",
}


def recipe_of(driver: str, version: str | None = None) -> Recipe | None:
    """The recipe of a release; None if there is none.

    If no version is asked for it is the newest that the specification describes.
    """
    known = (recipe for recipe in RECIPES if recipe.driver == driver)
    if version is None:
        return next((recipe for recipe in known if not recipe.is_later), None)
    return next((recipe for recipe in known if recipe.version == version), None)
