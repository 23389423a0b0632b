"""The memory of inference servers: what public logs print, what models publish, and where nothing is predicted."""

import sys
from pathlib import Path
from typing import Any

import pytest

from catalog_sample import load_catalog, load_guide
from kb.core.release import parse_version
from kb.core.units import GIB
from kb.memory import architecture_from_config
from kb.memory.config_fields import UnsupportedArchitectureError
from kb.memory.serving.answer import OWN_SHARE, Served, changes, load, serve, smallest
from kb.memory.serving.budget import Term, bytes_of_request, bytes_of_token, weights_bytes
from kb.memory.serving.setup import Measured, ServedModel, ServingSetup, served_model, served_model_of_config

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from server_logs import starts

CATALOG = load_catalog()
ENGINES: dict[str, Any] = dict(load_guide()["serving"])

# Parameters as the hub lists them; bytes of one token in bf16 as layers × KV heads × head size × 2 × 2.
PUBLISHED = {
    "llama-3-8b": (8_030_261_248, 32 * 8 * 128 * 4),
    "llama-3.1-70b": (70_553_706_496, 80 * 8 * 128 * 4),
    "llama-3.2-1b": (1_235_814_400, 16 * 8 * 64 * 4),
    "llama-3.2-3b": (3_212_749_824, 28 * 8 * 128 * 4),
    "llama-2-7b": (6_738_415_616, 32 * 32 * 128 * 4),
    "llama-2-13b": (13_015_864_320, 40 * 40 * 128 * 4),
    "tinyllama-1.1b": (1_100_048_384, 22 * 4 * 64 * 4),
    "mistral-7b": (7_241_732_096, 32 * 8 * 128 * 4),
    "mixtral-8x7b": (46_702_792_704, 32 * 8 * 128 * 4),
    "qwen2.5-0.5b": (494_032_768, 24 * 2 * 64 * 4),
    "qwen2.5-7b": (7_615_616_512, 28 * 4 * 128 * 4),
    "qwen2.5-14b": (14_770_033_664, 48 * 8 * 128 * 4),
    "qwen3-4b": (4_022_468_096, 36 * 8 * 128 * 4),
    "qwen3-8b": (8_190_735_360, 36 * 8 * 128 * 4),
    "qwen3-14b": (14_768_307_200, 40 * 8 * 128 * 4),
    "qwen3-30b-a3b": (30_532_122_624, 48 * 4 * 128 * 4),
    "gemma-7b": (8_537_680_896, 28 * 16 * 256 * 4),
    "gemma-2-9b": (9_241_705_984, 42 * 8 * 256 * 4),
    "phi-3-mini": (3_821_079_552, 32 * 32 * 96 * 4),
    "phi-4": (14_659_507_200, 40 * 10 * 128 * 4),
    "gpt2": (124_439_808, 12 * 12 * 64 * 4),
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_NEXT = {
    "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936,
    "max_position_embeddings": 262144, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "full_attention_interval": 4,
}  # fmt: skip


def model(name: str) -> ServedModel:
    row = CATALOG.models[name]
    return served_model(row.name, row.architecture, row.max_length)


def size(gib: float) -> int:
    return round(gib * GIB)


def setup(gpu: float = 24.0, **options: Any) -> ServingSetup:
    return ServingSetup(**{"engine": "vllm", "release": (0, 33, 0), "gpu_bytes": size(gpu), **options})


def served(name: str, one: ServingSetup) -> Served:
    return serve(model(name), one, ENGINES[one.engine], CATALOG.constants)


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_and_bytes_of_a_token_are_those_of_the_published_shape(name: str) -> None:
    parameters, token = PUBLISHED[name]
    one = setup(engine="tgi", release=(3, 3))
    assert weights_bytes(model(name), one) == 2 * parameters
    assert bytes_of_token(model(name), one) == token


def test_servers_that_others_logged_hold_what_kb_says() -> None:
    """Weights with the table of positions and blocks that the allocator does not split, and the cache in kb's range. Of
    the models of few parameters a printed hundredth of a GiB is 0.6 %."""
    for each in starts(CATALOG, ENGINES):
        rounded = each.row["weights_gib"] < 20 or each.row["options"].get("quantization") == "mxfp4"
        assert abs(each.weights_off) < (0.0065 if rounded else 0.0005), each.row["source"]
        assert each.inside is not False or each.row.get("off"), (each.row["source"], each.kv_gib)


def test_experts_in_mxfp4_take_what_their_kernels_widen_them_to() -> None:
    """vllm-project/vllm#22331 prints 12.8848 GiB on an RTX 3090, by a build with Triton's kernels; other logs (above)
    have Marlin's. What other engines make of them is not known."""
    budget = served("gpt-oss-20b", setup(24, release=(0, 10, 1), quantization="mxfp4")).budget
    assert budget is not None
    weights = budget.terms[0]
    assert weights.status == "modelled"
    assert 0.99 * 12.8848 < weights.low / GIB <= 12.8848 < weights.bytes / GIB < weights.high / GIB < 14.16
    assert weights_bytes(model("gpt-oss-20b"), setup(24, engine="sglang", quantization="mxfp4")) is None


def test_scales_of_four_bits_are_packed_too_before_0_9_2() -> None:
    """vllm-project/vllm#13882 prints 5.2032 for Qwen2.5-7B by bitsandbytes, and an activation peak of 1.42 GiB."""
    before = setup(8, release=(0, 7, 3), utilization=0.7, max_model_len=4096, quantization="bitsandbytes")
    held = weights_bytes(model("qwen2.5-7b"), before)
    assert held is not None
    assert held / GIB == pytest.approx(5.2032, rel=0.002)
    budget = served("qwen2.5-7b", before).budget
    assert budget is not None
    assert budget.kv < 0  # the log: -1.05 GiB
    (activations,) = [term for term in budget.terms if term.name == "activations"]
    assert activations.low <= size(1.425)
    assert activations.high >= size(1.42)
    since = weights_bytes(model("qwen2.5-7b"), before._replace(release=(0, 9, 2)))
    assert since is not None
    assert since > held + 0.2 * GIB


def test_blocks_of_llama_3_8b_on_an_a100() -> None:
    """vllm-project/vllm#12330 prints 5691 blocks and 11.12 requests of 8192 tokens, from figures of two decimals."""
    measured = Measured(weights=size(14.96), non_torch=size(0.10), activations=size(9.37))
    found = served("llama-3-8b", setup(39.5, release=(0, 6, 6), utilization=0.9, measured=measured))
    assert found.kv_tokens is not None
    assert found.concurrency is not None
    assert found.kv_tokens / 16 == pytest.approx(5691, abs=10)  # 0.01 GiB is five blocks
    assert round(found.concurrency, 2) == 11.12


@pytest.mark.parametrize(
    ("length", "peak", "blocks", "times"), [(20_000, 17.06, 1952, 1.56), (29_000, 17.98, 1478, 0.82)]
)
def test_blocks_of_llama_3_1_8b_on_an_rtx_3090(length: int, peak: float, blocks: int, times: float) -> None:
    """vllm-project/vllm#10517: the longer length is refused; its profile takes more, for it computes it at once."""
    one = setup(23.58, release=(0, 6, 3), utilization=0.9, max_model_len=length)
    measured = Measured(weights=size(14.99), non_torch=size(0.35), activations=size(peak - 14.99))
    found = served("llama-3.1-8b", one._replace(measured=measured))
    assert found.kv_tokens is not None
    assert found.concurrency is not None
    assert found.kv_tokens / 16 == pytest.approx(blocks, abs=10)
    assert round(found.concurrency, 2) == times
    assert found.starts is (length == 20_000)
    predicted = served("llama-3.1-8b", one)  # nothing measured: the closed form alone
    assert predicted.kv_tokens is not None
    assert predicted.kv_tokens / 16 == pytest.approx(blocks, rel=0.07)
    assert predicted.budget is not None
    peak_of_model = next(term.bytes for term in predicted.budget.terms if term.name == "activations")
    assert peak_of_model / GIB == pytest.approx(peak - 14.99, abs=0.02)


def test_a_request_of_qwen3_coder_over_two_stages_takes_half() -> None:
    """vllm-project/vllm#34076: 24.0 GiB for 262,144 tokens of 48 layers; 3.18 GiB hold 34,734."""
    coder = model("qwen3-30b-a3b")._replace(positions=262_144)
    one = setup(24, quantization="fp8")
    assert bytes_of_request(coder, one, 262_144, 0, 16) / GIB == 24.0
    assert bytes_of_request(coder, one._replace(pipeline_parallel=2), 262_144, 0, 16) / GIB == 12.0
    assert int(3.18 * GIB / bytes_of_token(coder, one)) == 34_734


def test_tokens_of_qwen3_235b_over_four_gpus() -> None:
    """vllm-project/vllm#21348: SGLang prints 367,404 tokens and a K of 8.23."""
    large = model("qwen3-30b-a3b")._replace(full_layers=94, heads=64)
    token = bytes_of_token(large, setup(tensor_parallel=4))
    assert token == 48_128
    assert round(367_404 * token / 2 / GIB, 2) == 8.23


def test_cache_of_llama_cpp_is_taken_whole() -> None:
    """ggml-org/llama.cpp#8101: 137,438,953,504 B, 32 of them alignment."""
    one = setup(engine="llama.cpp", release=(0, 3, 36), dtype="float16")
    assert bytes_of_request(model("llama-3-8b"), one, 1_048_576, 0, 1) == 137_438_953_504 - 32


def test_mla_keeps_one_latent_that_no_rank_shares_out() -> None:
    deepseek = served_model_of_config("deepseek-v3", DEEPSEEK_V3)
    assert bytes_of_token(deepseek, setup()) == 70_272
    assert bytes_of_token(deepseek, setup(tensor_parallel=8)) == 70_272
    assert deepseek.weights is not None
    assert deepseek.weights.total == 671_026_419_200  # the published count without the layer of further tokens


def test_kv_heads_are_repeated_where_ranks_outnumber_them() -> None:
    qwen = model("qwen2.5-7b")  # four KV heads
    assert bytes_of_token(qwen, setup(tensor_parallel=4)) == bytes_of_token(qwen, setup()) / 4
    assert bytes_of_token(qwen, setup(tensor_parallel=8)) == bytes_of_token(qwen, setup()) / 4


def test_fp8_halves_the_cache() -> None:
    full, half = (served("llama-3-8b", setup(kv_cache_dtype=kind)) for kind in ("auto", "fp8"))
    assert half.ranks[0].kv_bytes_per_token == full.ranks[0].kv_bytes_per_token / 2
    assert half.kv_tokens is not None
    assert full.kv_tokens is not None
    assert half.kv_tokens == pytest.approx(2 * full.kv_tokens, abs=32)


def test_windowed_layers_keep_their_window_and_what_is_computed() -> None:
    gemma, one = model("gemma-2-9b"), setup(80)
    whole = bytes_of_token(gemma, one) * 8192
    kept = bytes_of_request(gemma, one, 8192, 2048, 16)
    assert whole / 2 < kept < whole
    assert bytes_of_request(gemma, one, 8192, 8192, 16) == whole  # more in flight: nothing is saved
    counts = {name: model(name).windowed_layers for name in ("exaone-4.0-1.2b", "exaone-4.0-32b")}
    assert counts == {"exaone-4.0-1.2b": 0, "exaone-4.0-32b": 48}  # the small one's config turns windows off


def test_layers_with_a_window_keep_as_much_as_others_before_0_9_1_and_where_asked() -> None:
    long = {"gpu": 80.0, "max_model_len": 8192, "max_num_seqs": 8, "max_num_batched_tokens": 2048}
    new, old = (served("gemma-2-9b", setup(**long, release=each)) for each in ((0, 9, 1), (0, 9, 0)))
    asked = served("gemma-2-9b", setup(**long, release=(0, 9, 1), uses=frozenset(("one_kind_of_cache",))))
    assert old.kv_tokens == asked.kv_tokens and old.model.windowed_layers == 0
    assert new.kv_tokens is not None and old.kv_tokens is not None and new.kv_tokens > old.kv_tokens
    alike = served("mistral-7b", setup(**long, release=(0, 9, 0)))  # all of its layers slide: one kind
    assert alike.model.windowed_layers == 32


def test_a_recurrent_state_is_not_predicted_and_said_by_name() -> None:
    hybrid = served_model_of_config("qwen3-next", QWEN3_NEXT)
    assert (hybrid.full_layers, hybrid.recurrent_layers) == (12, 36)
    found = serve(hybrid, setup(80), ENGINES["vllm"], CATALOG.constants)
    assert found.not_predicted == "a recurrent state in some layers"
    assert found.concurrency is None
    assert found.kv_tokens is None
    assert found.ranks[0].kv_bytes_per_token == 12 * 2 * 2 * 256 * 2
    known = served("lfm2-1.2b", setup())
    assert known.not_predicted == found.not_predicted
    assert (known.ranks[0].kv_bytes_per_token, known.model.recurrent_layers) == (6 * 2 * 8 * 64 * 2, 10)
    granite = {"model_type": "granitemoehybrid", "hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 100352,
               "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 10, "num_local_experts": 0,
               "layer_types": [*["mamba"] * 5, "attention", *["mamba"] * 4]}  # fmt: skip
    without = served_model_of_config("granite 4 h", granite)  # which writes 0 experts
    assert (without.full_layers, without.recurrent_layers, without.active_experts) == (1, 9, 0)


def test_layers_that_reuse_keys_and_values_keep_none() -> None:
    config = {"model_type": "gemma4_text", "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 10,
              "num_attention_heads": 8, "num_key_value_heads": 1, "vocab_size": 1000, "num_kv_shared_layers": 4,
              "hidden_size_per_layer_input": 0,
              "layer_types": 2 * (["sliding_attention"] * 4 + ["full_attention"])}  # fmt: skip
    found = served_model("gemma 4", architecture_from_config(config), 32768)
    assert (found.full_layers, found.windowed_layers) == (1, 5)
    assert found.not_modelled == "heads of another size in some layers"


def test_an_encoder_has_no_server_cache() -> None:
    with pytest.raises(UnsupportedArchitectureError):
        model("bert-base-uncased")


def test_defaults_follow_the_release_and_the_gpu() -> None:
    old, new = (served("llama-3-8b", setup(release=release)).options for release in ((0, 19, 1), (0, 20, 0)))
    assert (old.utilization, new.utilization) == (0.9, 0.92)
    assert (old.counts_graphs, new.counts_graphs) == (False, True)
    large = served("llama-3-8b", setup(79.2, gpu_id="h100-80gb")).options
    assert (large.max_num_seqs, large.batched_tokens) == (1024, 8192)
    ampere = served("llama-3-8b", setup(79.2, gpu_id="a100-80gb")).options
    assert (ampere.max_num_seqs, ampere.batched_tokens) == (256, 2048)
    python = served("llama-3-8b", setup(called="python")).options
    assert python.batched_tokens == 8192
    engine = served("llama-3-8b", setup(79.2, gpu_id="h100-80gb", called="engine")).options
    assert (engine.max_num_seqs, engine.batched_tokens) == (128, 2048)


def test_a_gb10_has_the_defaults_of_a_small_gpu_from_0_33() -> None:
    spark = {"gpu": 117.6, "gpu_id": "gb10", "max_model_len": 4096}
    found = [served("qwen2.5-7b", setup(**spark, release=each)).options for each in ((0, 32, 0), (0, 33, 0))]
    assert [(each.max_num_seqs, each.batched_tokens) for each in found] == [(1024, 8192), (256, 2048)]


def test_the_longest_length_is_one_that_fits_and_no_more() -> None:
    one = setup(23.58, max_model_len=131_072)
    found = served("llama-3.1-8b", one)
    assert found.starts is False
    assert found.longest is not None
    assert served("llama-3.1-8b", one._replace(max_model_len=found.longest)).starts
    assert not served("llama-3.1-8b", one._replace(max_model_len=found.longest + 16)).starts


def test_the_share_that_is_needed_starts_and_a_hundredth_less_does_not() -> None:
    one = setup(23.58, max_model_len=32_768, utilization=0.85)
    needed = served("llama-3.1-8b", one).utilization_needed
    assert needed is not None
    assert served("llama-3.1-8b", one._replace(utilization=needed)).starts
    assert not served("llama-3.1-8b", one._replace(utilization=round(needed - 0.01, 2))).starts


def test_a_load_fits_or_names_what_is_missing() -> None:
    found = served("llama-3.1-8b", setup(23.58, max_model_len=8192))
    few, many = load(found, 2, 4096), load(found, 100, 4096)
    assert few.holds is True
    assert many.holds is False
    assert many.fits is not None
    assert load(found, many.fits, 4096).holds is True
    assert many.missing > 0


def test_the_smallest_gpu_holds_what_the_next_smaller_does_not() -> None:
    gpus = [("t4", size(14.6)), ("rtx-3090", size(23.6)), ("a100-40gb", size(39.5))]
    one = setup(max_model_len=8192)
    assert smallest(model("llama-3-8b"), one, ENGINES["vllm"], CATALOG.constants, gpus) == "rtx-3090"
    assert smallest(model("llama-3.1-70b"), one, ENGINES["vllm"], CATALOG.constants, gpus) is None


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_answers_and_what_is_changed_changes(engine: str) -> None:
    release = {"vllm": (0, 33), "sglang": (0, 5, 23), "tgi": (3, 3), "llama.cpp": (0, 3, 36), "transformers": (5, 23)}
    found = served("qwen2.5-7b", setup(39.5, engine=engine, release=release[engine]))
    assert found.starts
    assert found.budget is not None
    assert found.kv_tokens
    assert found.budget.kv_low <= found.budget.kv <= found.budget.kv_high
    for change in changes(found, ENGINES[engine], CATALOG.constants):
        other = change.served
        same = (other.kv_tokens, other.concurrency, other.longest) == (
            found.kv_tokens,
            found.concurrency,
            found.longest,
        )
        assert not same or change.option in ("max_num_seqs", "max_num_batched_tokens"), change.option


def test_the_share_that_sglang_takes_by_itself_is_that_of_its_release() -> None:
    """A log of March 2025, of QwQ-32B on four GPUs of 22 GiB: 46,611 tokens fit; by the newest rule none do."""
    four = setup(22.0, engine="sglang", tensor_parallel=4, release=(0, 4, 3))
    old = served("qwen2.5-32b", four)
    assert (old.budget, old.kv_tokens, old.not_predicted) == (None, None, OWN_SHARE)
    said = served("qwen2.5-32b", four._replace(utilization=0.85)).kv_tokens
    assert said is not None
    assert said == pytest.approx(46_611, rel=0.15)
    shares = [four._replace(tensor_parallel=1, release=each) for each in ((0, 5, 19), (0, 5, 20))]
    found = [served("qwen2.5-7b", each).budget for each in shares]
    assert [each and round(each.share / GIB, 2) for each in found] == [18.0, 14.89]
    unknown = served("qwen2.5-32b", four._replace(of_any_release=True)).budget
    assert unknown is not None and unknown.share == size(22.0)


@pytest.mark.parametrize("language", ["ko", "en"])
def test_the_guide_shows_what_the_command_says(language: str) -> None:
    from kb.guide.library import load_library
    from kb.guide.tables import serving_defaults, serving_messages, serving_table

    library = load_library(language)
    shown = serving_table(library, ["llama-3.1-8b", "llama-3.1-70b"], ["rtx-3090"], "vllm", 8192)
    seen = CATALOG.gpus["rtx-3090"].visible_bytes(CATALOG.constants["usable_memory_ratio"])
    one = setup(max_model_len=8192)._replace(gpu_bytes=seen, gpu_id="rtx-3090")
    assert f"{served('llama-3.1-8b', one).kv_tokens:,}" in shown
    assert shown.splitlines()[-1].endswith("| – |")
    for engine in ENGINES:
        assert ENGINES[engine]["options"].keys()
        assert "http" in serving_defaults(library, engine)  # type: ignore[arg-type]
    assert "trouble/serving-no-cache-memory.md" in serving_messages(library)


def test_what_the_sampler_and_graphs_take_depends_on_the_release_and_the_model() -> None:
    """The V2 model runner has dense models from 0.25 on and every model from 0.29 on: what its profiling leaves out."""

    def at(release: str, name: str = "qwen2.5-7b") -> Served:
        return served(name, setup(24.0, release=parse_version(release), max_model_len=8192, max_num_seqs=256))

    def term(found: Served, name: str) -> Term:
        assert found.budget is not None
        return next(each for each in found.budget.terms if each.name == name)

    places = 256 * 152_064  # requests × vocabulary
    forward = term(at("0.26.0"), "activations").bytes  # logits alone stay below it
    assert forward > 2 * places
    assert term(at("0.24.0"), "activations").high == term(at("0.17.0"), "activations").low == 14 * places
    bands = [term(at(each), "activations") for each in ("0.10.1", "0.16.0")]  # FlashInfer may be installed
    assert [(each.low, each.high) for each in bands] == [(14 * places, 41 * places), (39 * places, 41 * places)]
    assert [term(at(each), "activations").high for each in ("0.28.0", "0.29.0")] == [forward, forward]
    newest = term(at("0.33.0"), "activations")
    assert (newest.low, newest.high) == (max(forward, 6 * places), 14 * places)
    assert [term(at(each), "cuda_graphs").inside for each in ("0.24.0", "0.26.0", "0.29.0")] == [True, False, True]
    mixture = at("0.26.0", "qwen3-30b-a3b")  # keeps the former runner until 0.29
    assert term(mixture, "cuda_graphs").inside
    assert term(mixture, "activations").high == 14 * 256 * 151_936


def test_the_runner_of_vllm_is_chosen_as_vllm_chooses_it() -> None:
    """What profiling sets aside for graphs is the old runner's: by release, model, packing, and what the V2 lacks."""

    def counts(release: str, name: str = "llama-3-8b", *uses: str, packed: str | None = None) -> bool:
        one = setup(24.0, release=parse_version(release), uses=frozenset(uses), quantization=packed)
        return served(name, one).options.counts_graphs

    assert [counts(each) for each in ("0.21.0", "0.22.0", "0.23.0", "0.28.0")] == [True, True, False, False]
    assert [counts(each, "qwen3-8b") for each in ("0.21.0", "0.22.0")] == [True, False]
    assert [counts(each, packed="awq") for each in ("0.23.0", "0.24.0")] == [True, False]
    assert counts("0.24.0", "qwen2.5-7b")
    assert not counts("0.25.0", "qwen2.5-7b")
    assert counts("0.28.0", "qwen3-30b-a3b")
    for feature in ("ngram", "prompt_embeds", "logits_processors", "suffix", "v1_model_runner"):
        assert counts("0.28.0", "llama-3-8b", feature), feature
    assert not counts("0.28.0", "llama-3-8b", "eagle3")
    assert not counts("0.28.0", "qwen3-30b-a3b", "v2_model_runner")
