"""Recipes: how each release of a scheduler is installed into its own environment."""

import os
from collections.abc import Iterator, Mapping

from attrs import field, frozen

from checks.harness.driver.process import DRIVER_FILES

IN_ENGINE_CORE = ("sendnn", "vllm-v1")  # drivers with the order of calls of `EngineCore.step`
TORCH_VARIABLE = "LOCKSTEP_TORCH"  # overrides the requirement for torch
_TORCH = "torch==2.13.0"  # a build without CUDA is enough; pip's own configuration finds it


@frozen
class Installation:
    """One call of `pip install`; `what`: a description of the installed packages."""

    what: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(factory=dict)


@frozen
class Recipe:
    """A release and its installation. `file`: its driver.

    `vllm`: the release of vLLM that it is or runs on. `constraints`: the file with the versions of
    its dependencies. `shares`: the release whose environment provides everything but vLLM and the
    plugin, so that a further release needs only 80 MB. `build_tools`: packages that the build needs
    in other versions than that environment has. `package`: the package with the scheduler, if it is
    not vLLM. `imports`: packages that the driver's imports need. `options`: pip options for this
    vLLM. `rules_only`: no variant of a reference describes it; use `survey` instead of `conform`.
    `is_undescribed`: no variant is its own; it is compared with the described release before it as
    far as both agree, and runs only if its version is named. `checkout`: the working tree that
    replaces the release, see `checks.releases.checkouts`.
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
    is_undescribed: bool = False
    checkout: str = ""

    @property
    def name(self) -> str:
        """Driver and version: `DRIVER==VERSION`."""
        return f"{self.driver}=={self.version}"

    @property
    def about(self) -> str:
        """The names and versions of the packages that run."""
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
            # An editable installation imports the checkout's files: changes need no new call.
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
# Before 0.10 the override does not remove the suffix of the version. pip's legacy resolver accepts
# it; every pip that comes with a Python which these releases accept has that resolver.
_SUFFIX_ACCEPTED = ("--use-deprecated=legacy-resolver",)

_NANO_IMPORTS = ("numpy==2.4.0", "xxhash==3.6.0")

NEWEST_PLUGIN = "sendnn==2.6.3"


def _vllm_v1(*versions: str, is_undescribed: bool = False) -> Iterator[Recipe]:
    """Releases of vLLM whose licence field needs newer setuptools."""
    for version in versions:
        yield Recipe(
            *("vllm-v1", version, "vllm_v1.py"),
            vllm=version,
            shares=NEWEST_PLUGIN,
            build_tools=("setuptools>=77,<81",),
            is_undescribed=is_undescribed,
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
    *_vllm_v1("0.33.0"),
    *_vllm_v1("0.32.0", "0.31.0", "0.30.0", "0.29.0", is_undescribed=True),
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
"""The releases of a driver, the newest first."""


# The driver to start from, by policy: a toy. vLLM V0 needs every field, so its template is the
# driver of the release.
TEMPLATES = {
    "spyre": "template.py",
    "nano-vllm": "template_nano_vllm.py",
    "vllm-v1": "template_vllm_v1.py",
    "vllm-v0": "vllm_v0.py",
}


def recipe_of(driver: str, version: str | None = None) -> Recipe | None:
    """The recipe of a release; None if there is none.

    Without a version: the newest release that the specification describes.
    """
    recipes = (recipe for recipe in RECIPES if recipe.driver == driver)
    if version is None:
        return next((recipe for recipe in recipes if not recipe.is_undescribed), None)
    return next((recipe for recipe in recipes if recipe.version == version), None)
