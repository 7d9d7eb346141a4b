"""Sources of the configuration: their precedence, and the errors of each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from checks.cli.configuration import Sources, read_settings
from checks.registry import POLICIES, claims_of
from engine.core.clock import COUNTS, GPU_ESTIMATE, CostModel
from spec.core.errors import ConfigError
from spec.nano_vllm.config import NanoVllmConfig
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import Admission
from spec.vllm_v1.config import VllmV1Config
from tests.checks.command import transcript
from tests.refusals import refusal as refused

EXAMPLES = Path(__file__).parents[3] / "examples"
LIMIT = "VLLM_DT_MAX_BATCH_TKV_LIMIT"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # messages then name the file without the temporary directory
    return Path("c.toml")


def read_config(path: Path | None, *others: Any) -> Any:
    return read_settings(path, *others).config


def read(file: Path, text: str, env: Any = None, settings: Sequence[str] = ()) -> Any:
    file.write_text(text, encoding="utf-8")
    return read_config(file, settings, env)


def refusal(path: Path | None, *settings: str, env: Mapping[str, str] | None = None) -> str:
    return shortened(refused(ConfigError, read_config, path, settings, env))


def shortened(message: str) -> str:
    """The message with a name in place of the list of a policy's keys, or of the admissions."""
    for name in POLICIES:
        keys = ", ".join(key.name for key in fields(claims_of(name).config))
        message = message.replace(keys, f"(the keys of {name})")
    return message.replace(", ".join(Admission), "(the admissions)")


def file_refusal(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    return refusal(file)


# --- what wins ----------------------------------------------------------------------------------


def test_nothing_given_is_the_default() -> None:
    assert read_config(None) == SpyreConfig()


def test_a_file_goes_over_the_defaults(file: Path) -> None:
    text = 'block_size = 32\nadmission = "shipped"\ninterleave = false\nprefill_time = 2.5\n'

    assert read(file, text) == SpyreConfig(
        block_size=32, admission=Admission.SHIPPED, interleave=False, prefill_time=2.5
    )


def test_environment_goes_over_the_file_and_a_setting_over_both(file: Path) -> None:
    text, env = "max_batch_tkv_limit = 1000", {LIMIT: "2000"}
    settings = ["max_batch_tkv_limit=3000"]

    assert read(file, text).max_batch_tkv_limit == 1000
    assert read(file, text, env=env).max_batch_tkv_limit == 2000
    assert read(file, text, env=env, settings=settings).max_batch_tkv_limit == 3000


def test_of_two_settings_for_a_key_the_later_wins() -> None:
    assert read_config(None, ["max_num_seqs=2", "max_num_seqs=3"]).max_num_seqs == 3


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("block_size=32", "block_size", 32),
        (" block_size = 32 ", "block_size", 32),
        ("max_model_len=65_536", "max_model_len", 65_536),
        ("pausing=true", "pausing", True),
        ("decode_time=0.25", "decode_time", 0.25),
        ("decode_time=2", "decode_time", 2),
        ("admission=documented", "admission", Admission.DOCUMENTED),
        ('admission="documented"', "admission", Admission.DOCUMENTED),
        ("policy=spyre", "policy", "spyre"),
    ],
)
def test_a_setting_has_a_value_as_in_toml_or_a_bare_word(
    setting: str, key: str, value: object
) -> None:
    assert getattr(read_config(None, [setting]), key) == value


@pytest.mark.parametrize(
    "variable", [name for name in claims_of("spyre").variables if name != LIMIT]
)
def test_a_switch_of_the_plugin_is_zero_or_not(variable: str) -> None:
    def switched(text: str) -> object:
        return getattr(
            read_config(None, (), {variable: text}), claims_of("spyre").variables[variable]
        )

    assert switched("0") is False
    assert switched("1") is True
    assert switched("2") is True
    assert switched("") == getattr(SpyreConfig(), claims_of("spyre").variables[variable])


def test_other_variables_mean_nothing() -> None:
    assert (
        read_config(None, (), {"VLLM_DT_MAX_BATCH_SIZE": "x", "block_size": "1"}) == SpyreConfig()
    )


def test_white_space_and_a_byte_order_mark_mean_nothing(file: Path) -> None:
    assert read(file, "\ufeff\r\n block_size = 32 # tokens\r\n") == SpyreConfig(block_size=32)


# --- policies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["spyre", "nano-vllm", "vllm-v1"])
def test_policy_chooses_the_keys_that_there_are(name: str, file: Path) -> None:
    file.write_text(f'policy = "{name}"\nmax_num_seqs = 3\n', encoding="utf-8")
    config = claims_of(name).config

    assert read_settings(file).config == config(max_num_seqs=3)
    assert read_settings(None, [f"policy={name}"]).config == config()


def test_last_policy_that_is_named_wins(file: Path) -> None:
    file.write_text('policy = "spyre"\n', encoding="utf-8")

    assert read_settings(file, ["policy=nano-vllm", "policy=vllm-v1"]).config == VllmV1Config()


def test_table_of_a_policy_is_for_that_policy_alone(file: Path) -> None:
    text = "max_num_seqs = 3\n[spyre]\nchunk_size = 128\n[vllm-v1]\nblock_size = 32\n"
    file.write_text(text, encoding="utf-8")
    setting = "nano-vllm.max_model_len=512"

    assert read_settings(file, [setting]).config == SpyreConfig(max_num_seqs=3, chunk_size=128)
    assert read_settings(file, [setting, "policy=vllm-v1"]).config == (
        VllmV1Config(max_num_seqs=3, block_size=32)
    )
    assert read_settings(file, [setting, "policy=nano-vllm"]).config == (
        NanoVllmConfig(max_num_seqs=3, max_model_len=512)
    )


def test_setting_that_its_policy_does_not_know_is_refused() -> None:
    assert transcript(
        refusal(None, *settings)
        for settings in (
            ["policy=vllm-v2"],
            ["policy=vllm-v1", "chunk_size=64"],
            ["policy=nano-vllm", "nano-vllm.hit_chek=hash"],
            ["policy=nano-vllm", "max_model_len=20000"],
            ["policy=vllm-v1", "vllm-v1.scheduling=sjf"],
        )
    ) == snapshot("""\
--set policy: found 'vllm-v2'; allowed: spyre, nano-vllm, vllm-v1, vllm-v0
--set chunk_size: key: found 'chunk_size'; allowed: (the keys of vllm-v1); chunk_size is a key
    of spyre
--set: key: found 'hit_chek'; allowed: (the keys of nano-vllm); nearest: hit_check
--set max_model_len: max_num_batched_tokens: found 16384; allowed: at least max_model_len
    (20000)
--set vllm-v1.scheduling: scheduling: found 'sjf'; allowed: fcfs, priority
""")


def test_key_in_the_table_of_a_policy_is_refused_with_its_own_line(file: Path) -> None:
    file.write_text("block_size = 8\nchunk_size = 8\n[spyre]\nblock_size = 0\n", encoding="utf-8")

    assert refusal(file) == "c.toml, line 4: block_size: found 0; allowed: 1 or more"


# --- what is refused ----------------------------------------------------------------------------


def test_a_bad_file_is_refused_with_its_line(file: Path) -> None:
    assert transcript(
        file_refusal(file, text)
        for text in (
            "# sizes\nblock_size = 64\n\nblok_size = 32\n",
            "xyz = 1",
            "\n[sizes]\nblock_size = 64\n",
            "block_size.tokens = 64\n",
            "\nblock_size = [64]\n",
            "block_size = 64\nblock_size = 32\n",
            "block_size = 64\npausing = yes\n",
            "block_size =",
            f"# digits\nblock_size = {'9' * 5_000}",
            f"block_size = 0x{'f' * 5_000}",
            "block_size = true",
            "block_size = 64.0",
            "block_size = 0",
            "pausing = 1",
            'block_size = 8\n"admission" = "exakt"',
            'policy = "fifo"',
            "decode_time = nan",
            "decode_time = inf",
            "block_size = 64\nchunk_size = 96",
            "pausing = true\nreservation = false",
            "[cost]\nper_row = -1\n",
            "[cost]\nper_token = 1\n",
            "[cost]\nper_row = [1]\n",
            "[cost]\nper_row = 'dear'\n",
            "cost = 3\n",
        )
    ) == snapshot("""\
c.toml, line 4: key: found 'blok_size'; allowed: (the keys of spyre); nearest: block_size
c.toml, line 1: key: found 'xyz'; allowed: (the keys of spyre)
c.toml, line 2: sizes: found 'a table'; allowed: a single value
c.toml, line 1: block_size: found 'a table'; allowed: a single value
c.toml, line 2: block_size: found 'a list'; allowed: a single value
c.toml, line 2: line: found 'block_size = 32'; allowed: valid TOML (Cannot overwrite a value)
c.toml, line 2: line: found 'pausing = yes'; allowed: valid TOML (Invalid value)
c.toml, line 1: line: found 'block_size ='; allowed: valid TOML (Invalid value)
c.toml, line 1: line: found '# digits'; allowed: valid TOML (a number or a nesting in this file
    is too long)
c.toml, line 1: block_size: found '20000 bits'; allowed: a number up to 1000000000
c.toml, line 1: block_size: found True; allowed: a whole number
c.toml, line 1: block_size: found 64.0; allowed: a whole number
c.toml, line 1: block_size: found 0; allowed: 1 or more
c.toml, line 1: pausing: found 1; allowed: true or false
c.toml, line 2: admission: found 'exakt'; allowed: (the admissions)
c.toml, line 1: policy: found 'fifo'; allowed: spyre, nano-vllm, vllm-v1, vllm-v0
c.toml, line 1: decode_time: found nan; allowed: a number up to 1000000000
c.toml, line 1: decode_time: found inf; allowed: a number up to 1000000000
c.toml, line 2: chunk_size: found 96; allowed: a multiple of block_size (64)
c.toml, line 2: reservation: found False; allowed: true, where requests may be paused (pausing,
    or admission = shipped)
c.toml, line 2: cost.per_row: found -1; allowed: 0 or more
c.toml, line 2: cost.per_token: found 1; allowed: a key out of prefill_time, decode_time,
    per_chunk_token, per_row, per_cached_token, per_attended_token
c.toml, line 2: cost.per_row: found 'a list'; allowed: a single value
c.toml, line 2: cost.per_row: found 'dear'; allowed: a number
c.toml, line 1: key: found 'cost'; allowed: (the keys of spyre)
""")


def test_a_bad_setting_is_refused_with_its_key() -> None:
    assert transcript(
        refusal(None, setting)
        for setting in (
            "block_size",
            "=64",
            "blocksize=64",
            "block_size=many",
            "block_size=",
            "block_size=1\nchunk_size=2",
            "pausing=True",
            "admission=strict",
            "num_blocks=[1]",
            "cost.per_row=-1",
        )
    ) == snapshot("""\
--set: setting: found 'block_size'; allowed: key=value
--set: setting: found '=64'; allowed: key=value
--set: key: found 'blocksize'; allowed: (the keys of spyre); nearest: block_size
--set block_size: found 'many'; allowed: a whole number
--set block_size: found ''; allowed: a whole number
--set block_size: found '1\\nchunk_size=2'; allowed: a whole number
--set pausing: found 'True'; allowed: true or false
--set admission: found 'strict'; allowed: (the admissions)
--set num_blocks: found 'a list'; allowed: a single value
--set cost.per_row: found -1; allowed: 0 or more
""")


def test_a_bad_variable_is_refused_by_name() -> None:
    assert transcript(
        refusal(None, env={variable: text})
        for variable, text in (
            (LIMIT, "131k"),
            (LIMIT, "0"),
            ("SENDNN_INFERENCE_PAUSING_ENABLED", "true"),
        )
    ) == snapshot("""\
VLLM_DT_MAX_BATCH_TKV_LIMIT: max_batch_tkv_limit: found '131k'; allowed: a whole number
VLLM_DT_MAX_BATCH_TKV_LIMIT: max_batch_tkv_limit: found 0; allowed: 1 or more
SENDNN_INFERENCE_PAUSING_ENABLED: pausing: found 'true'; allowed: 0 or 1
""")


def test_a_default_that_does_not_go_with_a_given_value_is_blamed_on_that_value(
    file: Path,
) -> None:
    refused = [
        file_refusal(file, "interleave = true\nblock_size = 48"),
        refusal(None, "max_num_seqs=1000000"),
    ]
    assert transcript(refused) == snapshot("""\
c.toml, line 2: chunk_size: found 512; allowed: a multiple of block_size (48)
--set max_num_seqs: num_blocks: found 512000000; allowed: at most 4194304; if absent:
    max_num_seqs x the blocks of max_model_len
""")


def test_a_file_that_cannot_be_read_is_refused(file: Path) -> None:
    refused = [refusal(file), refusal(Path()), refusal(Path("a\0b"))]
    for content in (b"block_size = 64\n\x80", b"#" * (2**20 + 1)):
        file.write_bytes(content)
        refused.append(refusal(file))

    assert transcript(refused) == snapshot("""\
cannot read c.toml: no such file or directory
cannot read .: is a directory
cannot read a\0b: embedded null byte
c.toml, line 2: file: found 'byte 0x80'; allowed: UTF-8 text
c.toml: file: found 'over 1048576 bytes'; allowed: a configuration, which is short
""")


TOML_TEXTS = st.lists(
    st.sampled_from([key.name for key in fields(SpyreConfig)] + ["x", "[", "=", '"', "#", "\n"])
    | st.sampled_from([" = ", " = 1\n", " = 8\n", " = true\n", ' = "exact"\n', " = nan\n"])
    | st.text(max_size=4),
    max_size=8,
).map("".join)


def outcome(path: Path, settings: list[str], env: dict[str, str]) -> Any:
    try:
        return read_config(path, settings, env)
    except ConfigError as error:
        return error


@given(
    raw=TOML_TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(),
    settings=st.lists(TOML_TEXTS, max_size=2),
    env=st.dictionaries(st.sampled_from(list(claims_of("spyre").variables)), st.text(max_size=4)),
)
def test_any_input_is_a_configuration_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    raw: bytes,
    settings: list[str],
    env: dict[str, str],
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(raw)

    read = outcome(path, settings, env)

    if isinstance(read, SpyreConfig):
        assert SpyreConfig.from_mapping(read.as_mapping()) == read
    else:
        assert read.place is not None
        str(read).encode()  # a message that can be printed


def test_the_example_is_a_configuration_whose_limit_binds() -> None:
    config = read_config(EXAMPLES / "first.toml")

    assert (config.block_size, config.chunk_size) == (64, 128)
    assert config.max_batch_tkv_limit < config.max_num_seqs * config.max_model_len


# --- what steps cost ------------------------------------------------------------------------------


def test_costs_are_a_table_of_the_file_or_settings_of_their_own(file: Path) -> None:
    file.write_text("prefill_time = 0.5\n[cost]\nper_row = 0.25\nper_chunk_token = 1\n")

    cost = read_settings(file, ["cost.per_row=0.75"]).cost

    assert (cost.prefill_time, cost.decode_time) == (0.5, 1.0)
    assert (cost.per_chunk_token, cost.per_row, cost.per_cached_token) == (1, 0.75, 0)
    assert read_settings(None).cost.per_row == 0


def test_costs_are_the_default_of_the_policy_until_a_cost_or_a_step_time_is_set() -> None:
    policy = "policy=vllm-v1"

    assert read_settings(None).cost == COUNTS
    assert read_settings(None, [policy]).cost == GPU_ESTIMATE
    assert read_settings(None, [policy, "prefill_time=8"]).cost == COUNTS
    assert read_settings(None, [policy, "cost.per_row=2"]).cost == CostModel(per_row=2)


def test_default_costs_are_not_charged_where_policies_are_compared() -> None:
    by_policy = Sources(None).variants(["policy=spyre,vllm-v1"])
    by_key = Sources(None, ("policy=vllm-v1",)).variants(["max_num_seqs=2,3"])

    assert {variant.cost for variant in by_policy.values()} == {COUNTS}
    assert {variant.cost for variant in by_key.values()} == {GPU_ESTIMATE}
