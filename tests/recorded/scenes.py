"""Small workloads that show what a released scheduler does, each worth a recording.

`python -m tests.recorded.make sendnn` serves those of the installed release and writes a recording
of each next to this file; so do `vllm-v1==0.33.0` and older ones, `nano-vllm` and `vllm-v0`. A
commit of nano-vLLM comes from a checkout: `python -m tests.recorded.make nano-vllm@812eb1c PATH`.
"""

from typing import Any

from attrs import frozen

from checks.harness.case import Case, External
from checks.harness.comparison import Terms
from spec.core.requests import Oversized, Prompt, Request
from spec.nano_vllm.config import NanoVllmConfig
from spec.spyre.config import released_2_6_3
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.variants import Reading
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config
from spec.vllm_v1.releases import Release

SIZES: dict[str, Any] = {
    "block_size": 64,
    "chunk_size": 128,
    "max_model_len": 512,
    "max_num_seqs": 4,
    "max_batch_tkv_limit": 2048,
    "num_blocks": 12,
    "prefix_caching": False,
}


@frozen
class Scene:
    """A workload as `driver` serves it, and what it shows.

    `known`: the known difference that it ends with.
    """

    about: str
    case: Case
    known: str | None = None
    aborts_while_running: bool = False
    driver: str = "sendnn"

    @property
    def terms(self) -> Terms:
        """The terms of the comparison."""
        return Terms(aborts_while_running=self.aborts_while_running)


def asks(id_: str, prompt: int | Prompt, max_tokens: int, arrival: int = 0, **more: Any) -> Request:
    """A request with a prompt of its own of so many tokens, or one that others may share."""
    own = Prompt.of_stream(id_, prompt) if isinstance(prompt, int) else prompt
    return Request(id=id_, prompt=own, max_tokens=max_tokens, arrival=arrival, **more)


_AWAITED = ("grammars", "encodings", "unencodable")


def scene(
    about: str,
    *requests: Request,
    known: str | None = None,
    aborts_while_running: bool = False,
    driver: str = "sendnn",
    **config: Any,
) -> Scene:
    """The requests under the sizes above, but for what `config` says otherwise."""
    awaited: dict[str, Any] = {}
    awaited |= {name: config.pop(name) for name in _AWAITED if name in config}
    case = Case(released_2_6_3(**SIZES | config), requests, awaited)
    return Scene(about, case, known, aborts_while_running, driver)


def vllm_v1_scene(about: str, *requests: Request, known: str | None = None, **config: Any) -> Scene:
    """The requests served by vLLM V1, 0.28.0 unless `config` says otherwise."""
    running = config.pop("aborts_while_running", False)
    held = config.pop("external", {})
    external = {request_id: has.as_surroundings() for request_id, has in held.items()}
    names = ("right_drafts", "answers", "grammars")
    around = {"external": external} | {name: config.pop(name, {}) for name in names}
    given = {name: what for name, what in around.items() if what}
    case = Case(VllmV1Config(**V1_SIZES | config), requests, given)
    return Scene(about, case, known, running, f"vllm-v1=={case.config.release}")


def nano_vllm_scene(
    about: str,
    *requests: Request,
    known: str | None = None,
    driver: str = "nano-vllm",
    **config: Any,
) -> Scene:
    """The requests served by nano-vLLM's scheduler as a package has it, or a commit."""
    case = Case(NanoVllmConfig(**NANO_SIZES | config), requests)
    return Scene(about, case, known, driver=driver)


def vllm_v0_scene(about: str, *requests: Request, known: str | None = None, **config: Any) -> Scene:
    """The requests served by vLLM V0 0.9.2."""
    right = config.pop("right_drafts", None)
    case = Case(
        VllmV0Config(**V0_SIZES | config), requests, {"right_drafts": right} if right else {}
    )
    return Scene(about, case, known, driver="vllm-v0")


SMALL: dict[str, Any] = {
    "block_size": 4,
    "max_model_len": 32,
    "max_num_seqs": 3,
    "num_blocks": 16,
}
NANO_SIZES = SMALL | {"max_num_batched_tokens": 32}
V1_SIZES = SMALL | {"max_num_batched_tokens": 12}
V0_SIZES = SMALL | {"max_num_seqs": 4, "max_num_batched_tokens": 32, "num_cpu_blocks": 16}
V0_SIZES |= {"reading": Reading.RELEASED}
SWAPPING: dict[str, Any] = {"num_blocks": 5, "preemption_mode": "swap"}
OLD: dict[str, Any] = {"release": Release.V0_11_2, "reserve_full_prompt": False}
NEW: dict[str, Any] = {"release": Release.V0_33_0}
CUT: dict[str, Any] = {"token_gate": "new_tokens", "prefill": "first_chunked"}

SHARED = Prompt.of_parts([("system", 64), ("tail", 1)])
LONGER = Prompt.of_parts([("system", 64), ("rest", 192)])
WHOLE_CHUNK = Prompt.of_parts([("system", 128), ("rest", 72)])
TWIN = Prompt.of_stream("twin", 6)
TWIN_OF_ONE = Prompt.of_stream("twin", 1)
TWIN_OF_TWO_BLOCKS = Prompt.of_stream("twin", 14)
IMAGE = Prompt.of_stream("image", 10).with_spans([(6, 4, "b")])
IMAGE_TWICE = Prompt.of_stream("two images", 10).with_spans([(0, 4, "a"), (4, 4, "a")])
TWO_IMAGES = Prompt.of_stream("two images", 10).with_spans([(0, 2, "a"), (3, 3, "b")])
LATE_IMAGE = Prompt.of_stream("a late image", 19).with_spans([(14, 4, "a")])
TWO_BLOCKS = Prompt.of_parts([("system", 8)])

NO_PAUSING: dict[str, Any] = {"chunk_size": 512, "max_num_seqs": 3, "pausing": False}
AHEAD = (asks("a", SHARED, 1), asks("b", LONGER, 2, 2))
AHEAD_AND_GONE = (asks("a", SHARED, 1), asks("b", LONGER, 2, 2, abort_at=3))
CROWD = (asks("a", 7, 9), asks("b", 7, 9))
TWO_IN_FLIGHT = (asks("a", 4, 3), asks("b", 4, 3))
SCARCE: dict[str, Any] = {
    **{"connector": Connector.ASYNC, "num_blocks": 2, "reserve_full_prompt": False},
    "steps_in_flight": 1,
}
THREE = (asks("a", 257, 30), asks("b", 10, 20, 1), asks("c", 10, 20, 1))
STREAM = (
    asks("s0", 60, 6),
    asks("big", 400, 60, 1),
    *(asks(f"s{number}", 60, 6, 3 * number - 1) for number in range(1, 9)),
)

SCENES = {
    "interleaved": scene(
        "the chunks of a prompt and the decode steps of another request take turns",
        asks("a", 70, 6),
        asks("b", 300, 4, 1),
    ),
    "tkv_jumps": scene(
        "a row is padded while a longer one is there: its tkv jumps forward, then back",
        asks("a", 10, 9),
        asks("b", 140, 3),
    ),
    "early_end": scene(
        "the end of sequence before max_tokens gives back what was reserved",
        asks("a", 100, 200, output_len=3),
        asks("b", 60, 300, output_len=8),
        num_blocks=8,
    ),
    "pausing": scene(
        "requests take turns under a limit for one: the one paused longest goes first",
        asks("a", 100, 12),
        asks("b", 100, 12),
        asks("c", 100, 12),
        max_batch_tkv_limit=250,
    ),
    "whole_chunk_cached": scene(
        "a chunk whose blocks are all cached is skipped",
        asks("a", WHOLE_CHUNK, 2),
        asks("b", Prompt.of_parts([("system", 128), ("other", 100)]), 2, 4),
        prefix_caching=True,
    ),
    "aborted_while_running": scene(
        "an abort while the model runs gives everything back",
        asks("a", 1, 192, abort_at=1),
        asks("b", 1, 192, 2, output_len=2),
        aborts_while_running=True,
        num_blocks=4,
        max_model_len=256,
    ),
    "leaked_reservation": scene(
        "an abort between two steps does not give back what was reserved: the next request waits",
        asks("a", 1, 192, abort_at=1),
        asks("b", 1, 192, 2, abort_at=6),
        num_blocks=4,
        max_model_len=256,
    ),
    "held_back": scene(
        "of what an abort leaves reserved a request lacks blocks that would overtake another",
        asks("a", 705, 20, abort_at=1),
        asks("b", 1280, 20, 2),
        asks("c", 1, 20, 2),
        asks("d", 1, 11, 12),
        asks("e", 1024, 1, 12),
        chunk_size=256,
        max_model_len=1536,
        max_batch_tkv_limit=3072,
        num_blocks=42,
        pausing=False,
    ),
    "counted_ahead": scene(
        "after a prefix hit inside a chunk more counts as computed than was",
        *AHEAD,
        prefix_caching=True,
    ),
    "counted_ahead_and_gone": scene(
        "the same, and the client leaves in that step: a block that was not written can be found",
        *AHEAD_AND_GONE,
        prefix_caching=True,
        aborts_while_running=True,
    ),
    "counted_ahead_unseen": scene(
        "the same with a prompt that ends before that block is full: nothing of it is left",
        asks("a", SHARED, 1),
        asks("b", Prompt.of_parts([("system", 64), ("rest", 84)]), 2, 2, abort_at=3),
        prefix_caching=True,
        aborts_while_running=True,
    ),
    "unwritten_block": scene(
        "counted ahead, then aborted: the next prompt is given a block that was not written",
        *AHEAD_AND_GONE,
        asks("c", LONGER, 2, 4),
        prefix_caching=True,
    ),
    "stale_block": scene(
        "the same where another prompt filled that block before: its old content is read",
        asks("z", 639, 1),
        asks("a", SHARED, 1, 6),
        asks("b", LONGER, 2, 8, abort_at=9),
        asks("c", LONGER, 2, 10),
        prefix_caching=True,
        num_blocks=10,
        max_model_len=640,
        max_batch_tkv_limit=2560,
    ),
    "held_for_a_grammar": scene(
        "the request that would be next keeps another from its prefill until its grammar is ready",
        asks("a", 70, 2, 1, grammar=True),
        asks("b", 70, 2, 2),
        grammars={"a": 4},
    ),
    "held_for_images": scene(
        "one that lacks blocks keeps another from its prefill though its images are not encoded",
        asks("a", 60, 6, 1),
        asks("b", 130, 2, 2, has_images=True),
        asks("c", 20, 2, 2),
        num_blocks=4,
        encodings={"b": 10},
    ),
    "failed_images": scene(
        "the images of a request cannot be encoded: it leaves, and no output says so",
        asks("a", 70, 2, 1, has_images=True),
        unencodable={"a": 4},
    ),
    "two_pools": scene(
        "the scheduler has a block more than the model's cache, whose blocks are an even number",
        *(asks(name, 65, 2) for name in "abcde"),
        max_num_seqs=2,
        max_model_len=128,
        max_batch_tkv_limit=256,
        num_blocks=6,
        prefix_caching=True,
    ),
    "model_length_assertion": scene(
        "tkv would exceed a model length of 100: an assertion ends the server",
        asks("a", 65, 3),
        asks("b", 50, 3),
        known="SND-3",
        max_model_len=100,
        chunk_size=64,
    ),
    "prompt_over_the_limit": scene(
        "a prompt is longer than the limit: an assertion ends the server",
        asks("a", 20, 2),
        asks("b", 200, 2),
        known="SND-5",
        max_batch_tkv_limit=128,
        oversized="queued",
    ),
    "paused_for_ever": scene(
        "a request reaches the limit alone: it is paused for ever, and a prompt behind it is not"
        " computed to its end",
        asks("a", 127, 10),
        asks("b", 100, 2, arrival=4),
        chunk_size=64,
        max_batch_tkv_limit=128,
        max_num_seqs=2,
        oversized="queued",
    ),
    "freed_to_the_end": scene(
        "vLLM 0.27.1 puts freed blocks behind all others where nothing is cached",
        asks("a", 70, 2),
        asks("b", 10, 2),
        known="SND-4",
        driver="sendnn==2.6.1",
        reading="text",  # recorded before there was another
    ),
    "paused_though_off": scene(
        "without interleaving requests are paused although pausing is off",
        *THREE,
        **NO_PAUSING,
        interleave=False,
        max_batch_tkv_limit=768,
    ),
    "not_paused_when_interleaved": scene(
        "with interleaving the third of the same requests waits",
        *THREE,
        **NO_PAUSING,
        max_batch_tkv_limit=768,
    ),
    "overtaken": scene(
        "with pausing off a long request waits while later ones overtake it",
        *STREAM,
        **NO_PAUSING,
        max_batch_tkv_limit=640,
    ),
    "chunks_and_decodes": vllm_v1_scene(
        "what decodes leave of the budget is filled with chunks of a prompt",
        asks("a", 6, 5),
        asks("b", 20, 2, 1),
        asks("c", 3, 2, 2),
    ),
    "prefix_hit": vllm_v1_scene(
        "whole blocks of an equal prefix are taken, and one token at least is computed",
        asks("a", TWO_BLOCKS, 2),
        asks("b", TWO_BLOCKS, 2, 1),
        asks("c", Prompt.of_parts([("system", 8), ("own", 3)]), 2, 3),
    ),
    "preempted_last": vllm_v1_scene(
        "the last of the running queue gives its blocks back and computes all again",
        *CROWD,
        num_blocks=5,
    ),
    "left_without_a_token": vllm_v1_scene(
        "by priority: one that preempts itself ends the step for the one behind it (V1-BUD-4)",
        asks("a", 4, 4, priority=1),
        asks("b", 1, 2, 2),
        scheduling=Scheduling.PRIORITY,
        num_blocks=3,
        max_num_batched_tokens=6,
        num_speculative_tokens=2,
        prefix_caching=False,
        reserve_full_prompt=False,
    ),
    "hashed_ahead": vllm_v1_scene(
        "by priority: a block that a victim was to fill in this very step stays hashed; it finds it"
        " when it returns, its end not written",
        asks("a", 17, 2, priority=1),
        asks("b", 4, 2, 1),
        scheduling=Scheduling.PRIORITY,
        long_prefill_token_threshold=5,
        num_blocks=5,
    ),
    "drafts": vllm_v1_scene(
        "drafts are verified, the first wrong one and what follows is rolled back",
        asks("a", 5, 9),
        asks("b", 3, 6, 1, output_len=4),
        num_speculative_tokens=3,
        right_drafts={"a": "110", "b": "10"},
    ),
    "gone_in_every_phase": vllm_v1_scene(
        "clients leave between steps: waiting, in a chunk, decoding; blocks and queues follow",
        asks("a", 4, 9, abort_at=3),
        asks("b", 20, 4, 1, abort_at=2),
        asks("c", 4, 4, 1, abort_at=2),
        asks("d", 4, 2, 2),
        max_num_seqs=2,
    ),
    "gone_while_running": vllm_v1_scene(
        "clients leave while the model runs: what was sampled for them is dropped",
        asks("a", 4, 9, abort_at=3),
        asks("b", 20, 4, 1, abort_at=2),
        asks("d", 4, 2, 2),
        aborts_while_running=True,
    ),
    "padding_cut": vllm_v1_scene(
        "a threshold below the padding of a newcomer: fewer tokens than none count as computed",
        asks("a", 2, 8),
        asks("b", 1, 8, 2),
        known="VLM-1",
        long_prefill_token_threshold=2,
        num_speculative_tokens=3,
        prefix_caching=False,
    ),
    "loads": vllm_v1_scene(
        "requests that load are passed over; one load fails, one goes on after its client left",
        asks("a", 8, 2),
        asks("b", 8, 2, 1),
        asks("c", 8, 2, 1, abort_at=2),
        asks("d", 3, 2, 1),
        connector=Connector.ASYNC,
        external={"a": External(8, 3), "b": External(4, 2, fails=True), "c": External(8, 4)},
    ),
    "none_runs": vllm_v1_scene(
        "by priority: a more urgent request waits for the blocks of one that has loaded and waits"
        " behind it, so that none ever runs again (V1-PRG-4)",
        asks("a", 4, 6),
        asks("c", 3, 2, priority=1),
        asks("b", 2, 1, priority=1),
        connector=Connector.ASYNC,
        external={"a": External(4, 4), "b": External(2)},
        max_num_batched_tokens=2,
        scheduling=Scheduling.PRIORITY,
        max_num_seqs=1,
        max_model_len=10,
        num_blocks=3,
        reserve_full_prompt=False,
    ),
    "all_loaded": vllm_v1_scene(
        "two that have loaded hold all blocks, and each wants one more for its lookahead: none"
        " ever runs (V1-PRG-4)",
        asks("a", 8, 2),
        asks("b", 8, 2),
        connector=Connector.ASYNC,
        external={"a": External(8), "b": External(8)},
        max_model_len=12,
        num_blocks=4,
        num_lookahead_tokens=1,
    ),
    "answered_in_front": vllm_v1_scene(
        "a request that was answered late stands in front of one that has loaded, and waits for the"
        " blocks of that: none ever runs (V1-PRG-4)",
        asks("a", 8, 2, arrival=1),
        asks("b", 8, 1, arrival=1),
        connector=Connector.ASYNC,
        late_lookups=True,
        external={"b": External(8)},
        answers={"a": 2, "b": 1},
        num_blocks=3,
    ),
    "never_pooled": vllm_v1_scene(
        "a model that pools: the last token of a prompt as long as the model is never computed",
        asks("a", 16, 1),
        asks("b", 3, 1, arrival=1),
        max_model_len=16,
        max_num_batched_tokens=8,
        pooling=True,
    ),
    "grammar_overtakes": vllm_v1_scene(
        "a request with a grammar arrives after another and is served before it; the grammar of a"
        " cut prompt is not asked",
        asks("a", 4, 3),
        asks("b", 3, 2, arrival=1),
        asks("c", 9, 3, arrival=2, grammar=True),
        grammars={"c": 2},
        max_num_seqs=1,
        max_num_batched_tokens=6,
    ),
    "grammar_keeps_its_place": vllm_v1_scene(
        "the same in 0.33.0, by priority and beside a step in flight: each keeps its place",
        asks("a", 9, 3, arrival=1, priority=1, grammar=True),
        asks("b", 3, 2, arrival=1),
        asks("c", 4, 3, grammar=True),
        grammars={"a": 2, "c": 1},
        max_num_seqs=1,
        max_num_batched_tokens=6,
        scheduling=Scheduling.PRIORITY,
        steps_in_flight=1,
        release=Release.V0_33_0,
    ),
    "sessions_keep_their_places": vllm_v1_scene(
        "two sessions wait for their clients: the only two places are theirs, and a third request"
        " waits until one goes on and ends",
        asks("a", 4, 1, continued_by="d"),
        asks("b", 4, 1, continued_by="e"),
        asks("c", 4, 1, arrival=1),
        asks("d", Prompt.of_parts([("a", 4), ("d", 3)]), 1, after="a", arrival_time=3.0),
        asks("e", Prompt.of_parts([("b", 4), ("e", 3)]), 1, after="b", arrival_time=6.0),
        max_num_seqs=2,
        release=Release.V0_33_0,
    ),
    "sessions_want_blocks": vllm_v1_scene(
        "the next turns of two sessions lack the blocks that both hold, and neither runs until the"
        " client of one leaves",
        asks("a", 8, 1, continued_by="c"),
        asks("b", 8, 1, continued_by="d"),
        asks("c", Prompt.of_parts([("a", 8), ("c", 5)]), 1, after="a", arrival_time=0.0),
        asks(
            "d",
            Prompt.of_parts([("b", 8), ("d", 5)]),
            1,
            after="b",
            arrival_time=0.0,
            abort_at=8,
        ),
        num_blocks=4,
        max_num_batched_tokens=16,
        max_model_len=16,
        release=Release.V0_33_0,
    ),
    "session_too_long": vllm_v1_scene(
        "a turn of a session exceeds the model length, and waits until its client leaves",
        asks("a", 6, 1, continued_by="b"),
        asks(
            "b",
            Prompt.of_parts([("a", 6), ("b", 4)]),
            1,
            after="a",
            arrival_time=0.0,
            abort_at=6,
        ),
        num_blocks=4,
        max_num_batched_tokens=3,
        max_model_len=8,
        oversized=Oversized.QUEUED,
        release=Release.V0_33_0,
    ),
    "hashed_with_the_last_token": vllm_v1_scene(
        "in 0.28.0 a turn fills a block that is found by the last token of the turn before",
        asks("a", 7, 1, continued_by="b", output=(7,)),
        asks("b", Prompt.of_parts([("a", 7), ("b", 3)]), 1, after="a", arrival_time=0.0),
        known="VLM-7",
    ),
    "ends_as_the_first": vllm_v1_scene(
        "in 0.28.0 a turn may have as many tokens as the first turn of its session",
        asks("a", 3, 3, continued_by="b", output=(7, 8, 9)),
        asks("b", Prompt.of_tokens([*Prompt.of_stream("a", 3).tokens(), 7, 8, 1]), 2, arrival=6),
        known="VLM-8",
    ),
    "image_let_go": vllm_v1_scene(
        "an image stands twice in a prompt: it goes after the first, and is encoded again",
        asks("a", IMAGE, 2),
        asks("b", IMAGE_TWICE, 2),
        long_prefill_token_threshold=6,
        encoder_cache_size=4,
        prefix_caching=False,
    ),
    "image_not_encoded": vllm_v1_scene(
        "by priority: a victim's image was to be encoded in the step; it counts as cached, and the"
        " victim's tokens are computed without it",
        asks("a", LATE_IMAGE, 2, priority=1),
        asks("b", 4, 2, 1),
        scheduling=Scheduling.PRIORITY,
        long_prefill_token_threshold=5,
        max_num_batched_tokens=9,
        num_blocks=6,
        prefix_caching=False,
        reserve_full_prompt=False,
        release=Release.V0_33_0,
    ),
    "image_never_computed": vllm_v1_scene(
        "images must not be split, and are longer than the threshold: none of two requests runs",
        asks("a", IMAGE.with_spans([(1, 4, "a")]), 1),
        asks("b", IMAGE.with_spans([(1, 4, "a")]), 1),
        long_prefill_token_threshold=3,
        disable_chunked_mm_input=True,
        release=Release.V0_33_0,
    ),
    "image_within_a_block": vllm_v1_scene(
        "an image must not be split and begins within a block: the chunk there ends with the block",
        asks("a", TWO_IMAGES, 1),
        encoder_cache_size=4,
        disable_chunked_mm_input=True,
        kv_groups="mamba",
        release=Release.V0_33_0,
    ),
    "window_not_loaded": vllm_v1_scene(
        "all tokens were loaded: the last one is computed again and reads a block of its window"
        " that was not",
        asks("a", 8, 2),
        connector=Connector.ASYNC,
        external={"a": External(8)},
        kv_groups="sliding 5",
        release=Release.V0_33_0,
    ),
    "given_back_after_its_turn": vllm_v1_scene(
        "0.33.0 beside a step in flight: a request lacks a block at its turn; later in the step a"
        " failed load gives one back",
        asks("a", 2, 1),
        asks("b", 1, 5, priority=-1),
        block_size=1,
        num_blocks=6,
        max_model_len=7,
        max_num_batched_tokens=8,
        num_speculative_tokens=1,
        right_drafts={"a": "0", "b": "0"},
        connector=Connector.ASYNC,
        external={"a": External(1, every=3, fails=True)},
        scheduling=Scheduling.PRIORITY,
        reserve_full_prompt=False,
        steps_in_flight=1,
        release=Release.V0_33_0,
    ),
    "still_in_progress": vllm_v1_scene(
        "by priority: a request that has lost its load and waits for two blocks keeps a more urgent"
        " one from loading into the only one",
        asks("a", 5, 4),
        asks("b", 8, 2, priority=1),
        asks("c", 6, 2, 2),
        connector=Connector.ASYNC,
        external={"b": External(4, fails=True), "c": External(4)},
        scheduling=Scheduling.PRIORITY,
        num_blocks=3,
        reserve_full_prompt=False,
    ),
    "load_lost": vllm_v1_scene(
        "what a connector should bring within a step does not come: the request is given drafts",
        asks("a", 8, 3),
        known="VLM-3",
        connector=Connector.SYNC,
        external={"a": External(4, fails=True)},
        num_speculative_tokens=1,
        prefix_caching=False,
    ),
    "load_lost_and_padding_cut": vllm_v1_scene(
        "its load is lost in the step in which a threshold cuts its padding: it is not rolled back",
        asks("a", 1, 3),
        asks("b", 2, 1, 1),
        known="VLM-3",
        connector=Connector.SYNC,
        external={"b": External(2, fails=True)},
        long_prefill_token_threshold=1,
        num_speculative_tokens=1,
        prefix_caching=False,
    ),
    "gone_in_their_order": vllm_v1_scene(
        "two clients leave while the model runs: their blocks come back in the order of the aborts",
        asks("9", 3, 4, abort_at=2),
        asks("10", 3, 4, abort_at=2),
        aborts_while_running=True,
        prefix_caching=False,
    ),
    "lost_and_gone": vllm_v1_scene(
        "its load is lost and its client leaves in one step: a request that shares the blocks"
        " computes them",
        asks("a", Prompt.of_parts([("system", 8), ("a", 4)]), 2, abort_at=1),
        asks("b", Prompt.of_parts([("system", 8), ("b", 4)]), 2),
        asks("c", Prompt.of_parts([("system", 8), ("c", 4)]), 2),
        aborts_while_running=True,
        connector=Connector.SYNC,
        external={"a": External(8, fails=True)},
        long_prefill_token_threshold=3,
    ),
    "unwritten": vllm_v1_scene(
        "blocks whose load is lost can be found: the next request reads what was not written"
        " (V1-KV-10)",
        asks("a", Prompt.of_parts([("system", 8), ("a", 8)]), 1),
        asks("b", Prompt.of_parts([("system", 8), ("b", 2)]), 1, 1),
        connector=Connector.SYNC,
        external={"a": External(8, fails=True)},
        long_prefill_token_threshold=4,
        max_num_batched_tokens=8,
    ),
    "freed_behind": vllm_v1_scene(
        "0.11.2 puts all freed blocks behind the free ones",
        *CROWD,
        num_blocks=5,
        **OLD,
    ),
    "stepped_over": vllm_v1_scene(
        "without chunked prefill 0.11.2 steps over two prompts, which come back reversed",
        asks("a", 20, 2),
        asks("b", 20, 2),
        asks("c", 20, 2),
        known="VLM-2",
        chunked_prefill=False,
        max_num_batched_tokens=32,
        **OLD,
    ),
    "fits_with_a_block_of_the_step": vllm_v1_scene(
        "without chunked prefill 0.11.2 steps over no prompt that the budget holds with a block of"
        " the same step: it lacks blocks, and those behind it wait",
        asks("a", 1, 1),
        asks("b", Prompt.of_parts([("s", 1)]), 1),
        asks("c", Prompt.of_parts([("s", 1), ("s", 2)]), 1),
        asks("d", 1, 1),
        block_size=1,
        num_blocks=3,
        max_num_seqs=4,
        max_model_len=4,
        max_num_batched_tokens=4,
        chunked_prefill=False,
        **OLD,
    ),
    "kept_until_sent": vllm_v1_scene(
        "what has ended is sent and holds its blocks: the next request waits for them",
        asks("a", 9, 2),
        asks("b", 9, 2, 1),
        connector=Connector.SYNC,
        num_blocks=4,
        sends=True,
    ),
    "received_and_sent": vllm_v1_scene(
        "aborted while it loads, then received and sent: the second report ends the engine",
        asks("a", 9, 1, abort_at=1),
        known="VLM-5",
        connector=Connector.ASYNC,
        external={"a": External(8)},
        num_blocks=8,
        sends=True,
    ),
    "sent_and_still_loading": vllm_v1_scene(
        "aborted while it loads, then sent: its blocks are free while the load writes to them",
        asks("a", 9, 1, abort_at=1),
        asks("b", 9, 1, 2),
        known="VLM-5",
        connector=Connector.ASYNC,
        external={"a": External(8, every=4)},
        num_blocks=4,
        sends=True,
        **NEW,
    ),
    "lost_in_flight": vllm_v1_scene(
        "beside a step in flight: a request that lost its load is given a token computed from it",
        asks("a", 9, 3),
        known="VLM-6",
        connector=Connector.SYNC,
        external={"a": External(8, fails=True)},
        num_blocks=8,
        steps_in_flight=1,
        **NEW,
    ),
    "preempted_in_vain": vllm_v1_scene(
        "beside a step in flight: a victim's blocks are free only later, so all are preempted",
        *TWO_IN_FLIGHT,
        **SCARCE,
    ),
    "blocks_waited_for": vllm_v1_scene(
        "the same in 0.33.0: the request that lacks a block waits for it",
        *TWO_IN_FLIGHT,
        **SCARCE,
        **NEW,
    ),
    "padding_asserted": vllm_v1_scene(
        "a threshold below the padding of a newcomer: an assertion ends the engine",
        asks("a", 2, 8),
        asks("b", 1, 8, 2),
        known="VLM-4",
        long_prefill_token_threshold=2,
        num_speculative_tokens=3,
        prefix_caching=False,
        **NEW,
    ),
    "turns_go_on": vllm_v1_scene(
        "by priority: a request preempts itself, the more urgent one behind it has its turn",
        asks("a", 3, 6, priority=2),
        asks("b", 5, 4, 1, priority=1),
        num_blocks=3,
        scheduling=Scheduling.PRIORITY,
        **NEW,
    ),
    "alone": vllm_v1_scene(
        "a prompt is cut to the threshold only while another request is there",
        asks("a", 20, 6),
        asks("b", 20, 2, 3),
        long_prefill_token_threshold=3,
        **NEW,
    ),
    "found_at_once": vllm_v1_scene(
        "blocks of accepted drafts are found by the next step, also those of a request that ended",
        asks("a", 3, 6),
        asks("b", TWIN, 8),
        asks("c", TWIN, 2, 3),
        right_drafts={"a": "1", "b": "1"},
        num_speculative_tokens=3,
        **NEW,
    ),
    "padded_alone": vllm_v1_scene(
        "what is cached but for one token is padded with no other beside it",
        asks("a", Prompt.of_parts([("system", 8), ("a", 1)]), 1),
        asks("b", Prompt.of_parts([("system", 8), ("b", 1)]), 3, 1),
        num_speculative_tokens=2,
        **NEW,
    ),
    "holders_first": vllm_v1_scene(
        "by priority: what has loaded runs before a more urgent request, so that both end",
        asks("a", 4, 6),
        asks("c", 3, 2, priority=1),
        asks("b", 2, 1, priority=1),
        connector=Connector.ASYNC,
        external={"a": External(4, 4), "b": External(2)},
        max_num_batched_tokens=2,
        scheduling=Scheduling.PRIORITY,
        max_num_seqs=1,
        max_model_len=10,
        num_blocks=3,
        reserve_full_prompt=False,
        **NEW,
    ),
    "whole_prompts": nano_vllm_scene(
        "prompts are never cut: a step prefills as many as its gates let in, or all decode",
        asks("a", 6, 3),
        asks("b", 20, 2, 1),
        asks("c", 9, 3, 1),
        asks("d", 5, 2, 2, output_len=1),
    ),
    "shared_in_one_step": nano_vllm_scene(
        "blocks are hashed when they are handed out: the second prompt of a step shares them",
        asks("a", Prompt.of_parts([("system", 8), ("a", 2)]), 2),
        asks("b", Prompt.of_parts([("system", 8), ("b", 3)]), 2),
    ),
    "nothing_to_compute": nano_vllm_scene(
        "a prompt of whole cached blocks is let in and computes nothing (NANO-PFX-8)",
        asks("a", TWO_BLOCKS, 3),
        asks("b", TWO_BLOCKS, 2, 1),
    ),
    "counted_as_if_new": nano_vllm_scene(
        "a prompt that finds blocks is scheduled as if it had found none",
        asks("a", Prompt.of_tokens(range(9)), 3),
        asks("b", Prompt.of_tokens(range(9)), 3, 1),
        known="NAN-1",
        driver="nano-vllm@812eb1c",
        **CUT,
    ),
    "a_token_again": nano_vllm_scene(
        "a prompt of whole cached blocks computes its last token again",
        asks("a", TWO_BLOCKS, 3),
        asks("b", TWO_BLOCKS, 3, 1),
        known="NAN-2",
        driver="nano-vllm@77dd709",
        **CUT,
    ),
    "back_without_a_token": nano_vllm_scene(
        "a preempted sequence gets no token with its next prefill",
        asks("a", 3, 9),
        asks("b", 3, 9),
        known="NAN-3",
        driver="nano-vllm@77dd709",
        num_blocks=4,
        **CUT,
    ),
    "waits_with_blocks": nano_vllm_scene(
        "a sequence that the token gate refuses has its blocks already",
        asks("a", 9, 3),
        asks("b", 9, 3),
        known="NAN-4",
        driver="nano-vllm@77dd709",
        max_num_batched_tokens=12,
        **CUT,
    ),
    "decoded_first": nano_vllm_scene(
        "prompts of whole cached blocks are in no prefill: two of them decode their last token at"
        " once, into one slot (NANO-SLT-1)",
        asks("a", TWO_BLOCKS, 1),
        asks("b", TWO_BLOCKS, 3, 1, abort_at=3),
        asks("c", TWO_BLOCKS, 2, 1),
        driver="nano-vllm-voxcpm",
        full_hit="last_decoded",
    ),
    "same_tokens_twice": nano_vllm_scene(
        "a victim's last block becomes another's; both entries of the lookup table name it, and the"
        " victim's table holds it twice when it returns (NANO-BLK-4)",
        asks("a", Prompt.of_tokens((7,)), 4, output=(1, 2, 2, 3)),
        asks("b", Prompt.of_tokens((7, 1, 2, 2, 2, 2)), 3, output=(4, 5, 6)),
        block_size=2,
        num_blocks=4,
        max_model_len=10,
    ),
    "last_gives_way": nano_vllm_scene(
        "the back of the running queue is preempted, waits in front, and computes all again",
        *CROWD,
        num_blocks=5,
    ),
    "beyond_the_batch": nano_vllm_scene(
        "a sequence that runs behind a full batch gets no token in the step (NANO-DEC-1)",
        asks("a", 4, 6),
        asks("b", 4, 6),
        asks("c", 4, 6, 1),
        max_num_seqs=2,
    ),
    "swapped_and_aborted": vllm_v0_scene(
        "one of two is swapped out, comes back, and its client leaves",
        asks("a", 4, 6),
        asks("b", 4, 6),
        asks("c", 8, 3, 2, abort_at=8),
        **SWAPPING,
    ),
    "chunks_and_a_prefix": vllm_v0_scene(
        "prompts in chunks of whole blocks, next to decodes; a prefix that is found",
        asks("a", Prompt.of_parts([("system", 12), ("a", 1)]), 3),
        asks("b", Prompt.of_parts([("system", 12), ("b", 1)]), 4, output_len=2),
        asks("c", 3, 6, 2),
        asks("d", Prompt.of_parts([("system", 8), ("d", 5)]), 2, 5),
        num_blocks=9,
        chunked_prefill=True,
        prefix_caching=True,
        max_num_batched_tokens=10,
    ),
    "forked_copied_and_swapped": vllm_v0_scene(
        "two sequences of a prompt copy its last block, are swapped out together, and come back",
        asks("a", 7, 6),
        asks("b", 6, 4, n=2),
        num_blocks=6,
    ),
    "several_steps": vllm_v0_scene(
        "four decode steps follow one decision; one request ends within them",
        asks("a", 4, 9),
        asks("b", 6, 7, 1, output_len=3),
        num_scheduler_steps=4,
        num_lookahead_slots=3,
    ),
    "speculated": vllm_v0_scene(
        "of three speculated tokens two are right, or none",
        asks("a", 4, 9),
        asks("b", 6, 5, 1),
        num_lookahead_slots=3,
        right_drafts={"a": "110", "b": "0"},
    ),
    "adapters_and_encoders": vllm_v0_scene(
        "a batch has one adapter at most, and is in their order; encoders have tables of their own",
        asks("a", 4, 3, lora=2),
        asks("b", 4, 3, lora=1),
        asks("c", 5, 2, encoder_len=6),
        max_loras=1,
    ),
    "held_back_and_urgent": vllm_v0_scene(
        "prompts wait for the delay; the urgent one then takes the place of another",
        asks("a", 4, 12, priority=2),
        asks("b", 4, 3, 1, priority=1),
        asks("c", 4, 2, 2),
        max_num_seqs=1,
        scheduling="priority",
        delay_factor=0.25,
    ),
    "never_swapped_in": vllm_v0_scene(
        "a request that needs a part of the watermark is never swapped in, with every block free",
        asks("a", 11, 5),
        num_blocks=4,
        watermark_blocks=1,
        preemption_mode="swap",
    ),
    "mislaid": vllm_v0_scene(
        "one that was swapped out for a more urgent one stands among the waiting",
        asks("a", 4, 3, priority=1),
        asks("b", 4, 3, 1),
        known="VLZ-1",
        max_num_seqs=1,
        scheduling="priority",
        preemption_mode="swap",
    ),
    "gives_way_before_it_is_computed": vllm_v0_scene(
        "a right guess lets a block give way to an equal one whose last token is not computed",
        asks("a", TWIN_OF_TWO_BLOCKS, 3),
        asks("b", TWIN_OF_TWO_BLOCKS, 4),
        block_size=8,
        max_num_seqs=2,
        num_cpu_blocks=0,
        prefix_caching=True,
        num_lookahead_slots=1,
        right_drafts={"a": "0", "b": "1"},
    ),
    "swapped_onto_one_another": vllm_v0_scene(
        "a block swapped in full gives way to an equal one, and the next is swapped onto it",
        asks("a", TWIN_OF_ONE, 2),
        asks("b", TWIN_OF_ONE, 5),
        asks("c", TWIN_OF_ONE, 3),
        block_size=3,
        max_model_len=6,
        max_num_seqs=2,
        max_num_batched_tokens=4,
        num_blocks=2,
        num_cpu_blocks=4,
        chunked_prefill=True,
        prefix_caching=True,
        preemption_mode="swap",
    ),
    "evicted_for_old_contents": vllm_v0_scene(
        "a block of the CPU is to be evicted before its turn, for what it held before",
        asks("a", TWO_BLOCKS, 1),
        asks("b", 1, 23),
        asks("c", 1, 23),
        asks("d", 4, 6),
        asks("e", TWO_BLOCKS, 6),
        asks("f", 9, 15),
        asks("g", 9, 15),
        known="VLZ-10",
        max_model_len=24,
        max_num_seqs=2,
        max_num_batched_tokens=24,
        num_blocks=6,
        num_cpu_blocks=12,
        prefix_caching=True,
        preemption_mode="swap",
    ),
    "gone_while_swapped": vllm_v0_scene(
        "with prefix caching, the client of a swapped request leaves",
        asks("a", 8, 9),
        asks("b", 8, 9, abort_at=2),
        known="VLZ-2",
        prefix_caching=True,
        **SWAPPING,
    ),
    "swapped_half_done": vllm_v0_scene(
        "with prefix caching, a prompt was swapped out half done and is to come back",
        asks("a", 4, 20),
        asks("b", 24, 1, 1),
        known="VLZ-3",
        num_blocks=8,
        chunked_prefill=True,
        prefix_caching=True,
        max_num_batched_tokens=8,
        preemption_mode="swap",
    ),
    "swapped_in_for_a_cached_block": vllm_v0_scene(
        "a block that was taken to be swapped in is given up for a cached one with its tokens",
        asks("a", Prompt.of_tokens([1, 2]), 2, priority=1, output=(3, 9)),
        asks("b", Prompt.of_tokens([1, 2, 3, *[0] * 5]), 2),
        asks("c", 1, 4),
        asks("d", 1, 14, priority=1),
        block_size=3,
        num_blocks=6,
        num_cpu_blocks=4,
        max_num_seqs=4,
        max_num_batched_tokens=18,
        max_model_len=18,
        scheduling="priority",
        prefix_caching=True,
        preemption_mode="swap",
        num_lookahead_slots=1,
        num_scheduler_steps=2,
    ),
    "no_space_on_the_cpu": vllm_v0_scene(
        "a victim does not fit the CPU",
        asks("a", 8, 9),
        asks("b", 8, 9),
        known="VLZ-4",
        **SWAPPING | {"num_cpu_blocks": 1},
    ),
    "more_than_may_run": vllm_v0_scene(
        "two sequences come of one that was counted",
        asks("a", 4, 3, n=2),
        asks("b", 4, 3),
        known="VLZ-5",
        max_num_seqs=2,
    ),
    "not_to_be_recomputed": vllm_v0_scene(
        "a group of two sequences is to be recomputed",
        asks("a", 7, 6),
        asks("b", 6, 4, n=2),
        known="VLZ-6",
        num_blocks=4,
        preemption_mode="recompute",
    ),
    "gone_when_forked": vllm_v0_scene(
        "with prefix caching, a forked sequence ends with its first token",
        asks("a", 6, 1, n=2),
        known="VLZ-7",
        prefix_caching=True,
    ),
    "empty_blocks_swapped": vllm_v0_scene(
        "the CPU has room for a victim's tokens, and not for its lookahead blocks",
        asks("a", 4, 6),
        asks("b", 3, 6),
        known="VLZ-8",
        num_blocks=4,
        num_cpu_blocks=3,
        num_lookahead_slots=5,
        preemption_mode="swap",
    ),
    "dropped_twice": vllm_v0_scene(
        "with prefix caching, a swapped request finds no place among the running in two steps",
        asks("a", 3, 2),
        asks("b", TWIN, 3),
        asks("c", 3, 6),
        asks("d", TWIN, 1),
        asks("e", 2, 1),
        known="VLZ-9",
        block_size=2,
        num_blocks=5,
        max_num_seqs=1,
        max_num_batched_tokens=4,
        max_num_partial_prefills=2,
        long_prefill_token_threshold=3,
        chunked_prefill=True,
        prefix_caching=True,
        preemption_mode="swap",
        num_lookahead_slots=1,
    ),
}


FILE_NAMES = {
    name: f"{scene.driver.replace('==', '-').replace('@', '-')}-{name}.jsonl"
    for name, scene in SCENES.items()
}
