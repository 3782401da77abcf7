import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from benchmarks.synthetic import gguf_metadata
from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import OutTensor, Value, tensor_of_array
from featherback.errors import FeatherbackError
from featherback.exports.merged_gguf import MergedGGUF
from featherback.infer.decoder import Decoder
from featherback.models import ModelConfig, load
from featherback.models.adapter import LoRA
from featherback.models.architecture.names import STACKS
from featherback.models.families.gemma2 import GemmaConfig
from featherback.models.families.gemma3 import Gemma3Config
from featherback.models.families.granite import GraniteConfig
from featherback.models.rope.llama3 import Llama3
from tests.support.families import BY_ARCHITECTURE, cases
from tests.support.families.lfm2 import TINY_LFM2
from tests.support.families.qwen3next import TINY_QWEN3NEXT
from tests.support.families.qwen35 import TINY_QWEN35
from tests.support.families.qwen35moe import TINY_QWEN35MOE
from tests.support.families.twin import Twin
from tests.support.tiny_models import (
    TINY_GEMMA2,
    TINY_GEMMA3,
    TINY_GRANITE,
    TINY_LLAMA,
    TINY_OLMO2,
    TINY_PHI3,
    TINY_PHI4,
    TINY_QWEN2,
    TINY_WIDE,
    as_stored,
    llama3_factors,
    tiny,
    write_tiny,
)

K_MIX = {"": TensorType.Q4_K, "v_proj": TensorType.Q6_K, "down_proj": TensorType.Q5_K, "lm_head": TensorType.Q6_K}
CASES: dict[str, tuple[ModelConfig, Any]] = {
    **cases(),
    "llama, biases": (tiny(attention_bias=True), TensorType.F16),
    "llama, untied, factors": (
        tiny(tie_word_embeddings=False, rope_scaling=Llama3(np.linspace(1, 8, 12, dtype=np.float32))),
        {"": TensorType.Q5_0, "lm_head": TensorType.Q8_0, "up_proj": TensorType.Q5_1},
    ),
    "qwen2, bf16": (TINY_QWEN2, {"": TensorType.Q4_0, "q_proj": TensorType.BF16}),
    "wide": (tiny(TINY_WIDE, tie_word_embeddings=False), K_MIX),
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_what_was_written(tmp_path: Path, case: str) -> None:
    config, types = CASES[case]
    path = write_tiny(tmp_path / "a.gguf", config, types)
    model = load(path)
    assert (model.path, model.source) == (path, "gguf")
    for name, expected in vars(config).items():
        assert as_stored(getattr(model.config, name)) == as_stored(expected), name
    stored = {t.name: t for t in gguf.GGUFReader(path).tensors}
    assert (model.head.weight is model.embed_tokens) == config.tie_word_embeddings
    assert model.head.weight.data.tobytes() == stored[_head(config)].data.tobytes()
    layer = model.layer(1)
    named = _file_names(BY_ARCHITECTURE[config.architecture].twin(gguf.GGUFReader(path), config.head_dim), stored)
    for target, ours in layer.matrices.items():
        in_file = model.family.gguf_names[target].format(1)
        if target in model.family.hf_names and target not in STACKS:  # transformers joins those
            in_file = named[model.family.hf_names[target]]
        theirs = stored[in_file]
        assert ours.data.tobytes() == theirs.data.tobytes()
        *heights, width = dequantize(theirs.data, theirs.tensor_type).shape
        assert (ours.rows, ours.cols) == (math.prod(heights), width)
    for name, ours in layer.vectors.items():
        in_file = model.family.gguf_names[name].format(1)
        if name in model.family.hf_names:
            in_file = named[model.family.hf_names[name]]
        assert np.array_equal(ours, stored[in_file].data), name
    divisor = getattr(config, "logit_divisor", 1.0)  # a power of two, of which the norm has its part
    assert np.array_equal(model.head.norm * divisor, stored[model.family.gguf_names["norm"]].data)
    assert config.attention_bias == any(name.endswith("_bias") for name in layer.vectors)
    with pytest.raises(IndexError):
        model.layer(config.num_hidden_layers)
    model.close()
    matrix = next(iter(layer.matrices.values()))
    assert matrix.data.size == matrix.nbytes  # still readable
    assert matrix.data.any()


def _file_names(twin: Twin, stored: dict[str, Any]) -> dict[str, str]:
    """A tensor's name in transformers -> in the file, for layer 1."""
    found = {}
    for name, tensor in stored.items():
        if name.startswith("blk.1."):
            part = name.removeprefix("blk.1.")
            stem, _, kind = part.rpartition(".")
            if twin.restore is not None:
                theirs, _ = twin.restore(part, dequantize(tensor.data, tensor.tensor_type))
            elif stem in twin.block:  # experts are not
                theirs = f"{twin.block[stem]}.{kind}"
            else:
                continue
            found[f"model.layers.{{}}.{theirs}"] = name
    return found


def _head(config: ModelConfig) -> str:
    return "token_embd.weight" if config.tie_word_embeddings else "output.weight"


def test_layers_that_predict_further_tokens_are_not_used(tmp_path: Path) -> None:
    """They are the last ones of the file. The model is the one of a file without them, and a merged file keeps them."""
    further = {"qwen35.block_count": 4, "qwen35.nextn_predict_layers": 1}
    extra = (*named("blk.3.attn_norm.weight", 96), *named("blk.3.nextn.enorm.weight", 96))
    path = write_tiny(tmp_path / "a.gguf", TINY_QWEN35, metadata=further, extra=extra)
    model, tokens = load(path), [5, 1, 77, 3]
    assert (model.config.num_hidden_layers, model.config.delta_layers) == (3, (True, False, True))  # type: ignore[attr-defined]
    alone = load(write_tiny(tmp_path / "b.gguf", TINY_QWEN35))
    logits = [Decoder(each, compute="fp32").forward(tokens) for each in (model, alone)]
    assert np.array_equal(*logits)
    MergedGGUF(LoRA(model, 2)).write(tmp_path / "merged.gguf")
    assert {info.name for info in extra} <= load(tmp_path / "merged.gguf").store.tensors.keys()
    wrong = write_tiny(tmp_path / "c.gguf", TINY_QWEN35, extra=extra)
    with pytest.raises(FeatherbackError, match="not part of a supported qwen35 model"):
        load(wrong)


def test_a_granite_file_may_leave_out_multipliers(tmp_path: Path) -> None:
    """What llama.cpp then takes."""
    absent = {f"granite.{key}": 0.0 for key in ("embedding_scale", "residual_scale", "attention.scale")}
    config = load(write_tiny(tmp_path / "a.gguf", TINY_GRANITE, metadata=absent)).config
    assert isinstance(config, GraniteConfig)
    assert (config.embedding_scale, config.residual_scale) == (1, 1)
    assert config.attention_scale == 24**-0.5


def test_gemma2_as_llama_cpp_reads_a_silent_file(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "a.gguf", tiny(TINY_GEMMA2, windows=(), attention_softcap=50, final_softcap=30))
    keys = {key.removeprefix("gemma2.") for key in GGUFFile(path).metadata}
    assert not keys & {"attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"}
    config = load(path).config
    assert isinstance(config, GemmaConfig)
    assert config.windows == (512, 0, 512)  # 4096, but no longer than the context
    assert (config.attention_softcap, config.final_softcap) == (50, 30)


def test_llama3_factors_survive(tmp_path: Path) -> None:
    factors = llama3_factors(TINY_LLAMA)
    assert factors.min() == 1
    assert factors.max() == pytest.approx(32)
    model = load(write_tiny(tmp_path / "a.gguf", tiny(rope_scaling=Llama3(factors))))
    assert np.array_equal(model.rotaries[0].factors, factors)  # type: ignore[arg-type]


def test_real_model(smollm2_path: Path) -> None:
    model = load(smollm2_path)
    config = model.config
    assert (config.architecture, config.num_hidden_layers, config.hidden_size) == ("llama", 30, 576)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert config.tie_word_embeddings
    assert config.rope_interleaved
    assert config.rope_theta == 100_000
    assert model.embed_tokens.type is TensorType.Q8_0
    assert {m.type for m in model.layer(29).matrices.values()} == {TensorType.Q4_1}


def named(name: str, *shape: int) -> tuple[OutTensor, ...]:
    return (tensor_of_array(name, np.ones(shape)),)


def yarn(**keys: Value) -> dict[str, Value]:
    """The metadata of a Qwen 2 stretched fourfold, with some keys changed."""
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 128}
    stated = {f"rope.scaling.{key}": value for key, value in scaling.items()}
    return {f"qwen2.{key}": value for key, value in {**stated, **keys}.items()}


REFUSED: dict[str, tuple[ModelConfig, dict[str, Value], tuple[OutTensor, ...], str]] = {
    "architecture": (TINY_LLAMA, {"general.architecture": "mamba"}, (), r"'mamba'.*supported: .*llama, .*qwen2"),
    "no architecture": (TINY_LLAMA, {"general.architecture": 3}, (), "no metadata key general.architecture"),
    "adapter": (TINY_LLAMA, {"general.type": "adapter"}, (), "type 'adapter', not a model"),
    "split": (TINY_LLAMA, {"split.count": 3}, (), "one of 3 parts of a split model. Rename it"),
    "missing key": (TINY_LLAMA, {"general.architecture": "qwen2"}, (), "no metadata key qwen2.embedding_length"),
    "list": (TINY_LLAMA, {"llama.feed_forward_length": np.array([1, 2])}, (), "is 'a list'"),
    "text for a number": (TINY_LLAMA, {"llama.block_count": "two"}, (), "block_count .* is 'two'"),
    "number for a count": (TINY_LLAMA, {"llama.block_count": 2.5}, (), "block_count .* is 2.5"),
    "text for a real": (TINY_LLAMA, {"llama.rope.freq_base": "big"}, (), "freq_base .* is 'big'"),
    "eps": (TINY_LLAMA, {"llama.attention.layer_norm_rms_epsilon": float("nan")}, (), "rms_norm_eps is nan"),
    "no heads": (TINY_LLAMA, {"llama.attention.head_count": 0}, (), "num_attention_heads is 0"),
    "groups": (TINY_LLAMA, {"llama.attention.head_count_kv": 3}, (), "4 attention heads .* groups of 3"),
    "heads that differ": (
        TINY_LFM2,
        {"lfm2.attention.head_count_kv": np.array([0, 2, 1, 0], np.int32)},
        (),
        "head_count_kv .* the same number in all layers with attention",
    ),
    "heads of other layers": (
        TINY_LFM2,
        {"lfm2.attention.head_count_kv": np.array([0, 2], np.int32)},
        (),
        "head_count_kv .* a list of 4 whole numbers",
    ),
    "heads of endless layers": (
        TINY_LFM2,
        {"lfm2.attention.head_count_kv": 2, "lfm2.block_count": np.uint32(4_000_000_000)},
        (),
        "list of convolution and attention layers has",
    ),
    "no state": (TINY_QWEN35, {"qwen35.ssm.state_size": 0}, (), "delta_k_dim is 0; 1 to 1024"),
    "key heads that do not divide": (TINY_QWEN35, {"qwen35.ssm.group_count": 3}, (), "8 value heads .* 3 key heads"),
    "absurd taps": (TINY_QWEN35, {"qwen35.ssm.conv_kernel": 1 << 30}, (), "have 1073741824 taps; 2 to 64"),
    "value heads that do not divide": (TINY_QWEN35, {"qwen35.ssm.time_step_rank": 7}, (), "time_step_rank .* is 7"),
    "no value heads": (TINY_QWEN35, {"qwen35.ssm.time_step_rank": 0}, (), "time_step_rank .* is 0"),
    "another number of value heads": (TINY_QWEN35, {"qwen35.ssm.time_step_rank": 4}, (), "ssm_alpha.* has shape"),
    "no interval": (TINY_QWEN35, {"qwen35.full_attention_interval": 0}, (), "full_attention_interval .* is 0"),
    "another interval": (TINY_QWEN35, {"qwen35.full_attention_interval": 3}, (), "is missing|not part"),
    "many delta nets": (TINY_QWEN35, {"qwen35.block_count": np.uint32(4_000_000_000)}, (), "layers"),
    "only layers for further tokens": (
        TINY_QWEN35,
        {"qwen35.nextn_predict_layers": 3},
        (),
        "nextn_predict_layers .* is 3; .*less than the 3 layers",
    ),
    "fewer than no layers for further tokens": (
        TINY_QWEN35,
        {"qwen35.nextn_predict_layers": np.int32(-1)},
        (),
        "nextn_predict_layers .* is -1",
    ),
    "kinds of other layers": (
        TINY_QWEN35,
        {"qwen35.attention.recurrent_layers": np.array([True, False])},
        (),
        "recurrent_layers .* a list of 3 booleans",
    ),
    "other kinds of layers": (
        TINY_QWEN35,
        {"qwen35.attention.recurrent_layers": np.array([True, True, False])},
        (),
        "not part of a supported qwen35 model",
    ),
    "q, k, v and z in one tensor": (
        TINY_QWEN3NEXT,
        {},
        named("blk.0.ssm_in.weight", 8, 96),
        r"in one tensor, NAME.ssm_in.weight, as old versions of llama.cpp",
    ),
    "no width of experts": (TINY_QWEN35MOE, {"qwen35moe.expert_feed_forward_length": 0}, (), "experts have the widths"),
    "no taps": (TINY_LFM2, {"lfm2.shortconv.l_cache": 0}, (), "have 0 taps; 2 to 64"),
    "odd heads": (
        TINY_LLAMA,
        {f"llama.{key}": 23 for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")},
        (),
        "head_dim is 23",
    ),
    "partial rotary": (TINY_LLAMA, {"llama.rope.dimension_count": 12}, (), "dimension_count .* is 12; supported: 24"),
    "value heads": (TINY_LLAMA, {"llama.attention.value_length": 12}, (), "value_length .* is 12"),
    "unknown scaling": (
        TINY_LLAMA,
        {"llama.rope.scaling.type": "dynamic", "llama.rope.scaling.factor": 4.0},
        (),
        "rope.scaling.type .* is 'dynamic'; supported: none, linear, longrope, yarn",
    ),
    "scaling of no name": (TINY_LLAMA, {"llama.rope.scaling.type": 3}, (), "type .* is 3; supported: a string"),
    "linear, backwards": (TINY_LLAMA, {"llama.rope.scaling.factor": -4.0}, (), "factor is -4.0"),
    "yarn of unknown factor": (
        TINY_QWEN2,
        {"qwen2.rope.scaling.type": "yarn"},
        (),
        "no metadata key qwen2.rope.scaling.factor",
    ),
    "yarn in part": (
        TINY_QWEN2,
        yarn(**{"rope.scaling.yarn_ext_factor": 0.5}),
        (),
        r"yarn_ext_factor .* is 0.5; supported: 1\.",
    ),
    "yarn's own attention": (
        TINY_QWEN2,
        yarn(**{"rope.scaling.yarn_attn_factor": 1.0}),
        (),
        r"yarn_attn_factor .* is 1.0; supported: 1.138629\.",
    ),
    "yarn's logarithm": (
        TINY_QWEN2,
        yarn(**{"rope.scaling.yarn_log_multiplier": 0.1}),
        (),
        "yarn_log_multiplier .* is 0.1",
    ),
    "yarn without a context": (
        TINY_QWEN2,
        yarn(**{"rope.scaling.original_context_length": 0}),
        (),
        "original_context is 0",
    ),
    "yarn without turns": (TINY_QWEN2, yarn(**{"rope.scaling.yarn_beta_slow": 0.0}), (), "beta_slow is 0.0"),
    "yarn of one frequency": (TINY_QWEN2, yarn(**{"rope.freq_base": 1.0}), (), "rope_theta is 1"),
    "scaled twice": (
        tiny(rope_scaling=Llama3(np.ones(12, np.float32))),
        {"llama.rope.scaling.factor": 4.0},
        (),
        r"has two rotary scalings \(linear and llama3\)",
    ),
    "longrope in name": (TINY_PHI3, {"phi3.rope.scaling.type": "longrope"}, (), "no tensor rope_factors_short.weight"),
    "longrope without attention": (
        TINY_PHI3,
        {"phi3.rope.scaling.original_context_length": 64},
        (*named("rope_factors_long.weight", 16), *named("rope_factors_short.weight", 16)),
        "no metadata key phi3.rope.scaling.attn_factor",
    ),
    "longrope of another size": (
        TINY_PHI4,
        {"phi3.rope.dimension_count": 32},
        (),
        r"rope_factors_short.weight .* has shape \(12,\), not \(16,\)",
    ),
    "longrope without a context": (
        TINY_PHI4,
        {"phi3.rope.scaling.original_context_length": 0},
        (),
        "original_context is 0",
    ),
    "longrope's attention": (TINY_PHI4, {"phi3.rope.scaling.attn_factor": -1.0}, (), "attention factor is -1.0"),
    "old scaling": (TINY_LLAMA, {"llama.rope.scale_linear": 4.0}, (), "rope.scale_linear"),
    "experts": (TINY_LLAMA, {"llama.expert_count": 8}, (), "no metadata key llama.expert_used_count"),
    "a window of unknown layers": (
        TINY_QWEN2,
        {"qwen2.attention.sliding_window": 64},
        (),
        "sliding_window .* is 64; .*sliding_window_pattern",
    ),
    "a window of other layers": (
        TINY_QWEN2,
        {"qwen2.attention.sliding_window": 64, "qwen2.attention.sliding_window_pattern": np.array([True, False, True])},
        (),
        "sliding_window_pattern .* a list of 2 booleans",
    ),
    "a window of layers 1 and 7": (
        TINY_LLAMA,
        {"llama.attention.sliding_window": 64, "llama.attention.sliding_window_pattern": np.array([1, 7], np.uint32)},
        (),
        "sliding_window_pattern .* a list of 2 booleans",
    ),
    "attention scale": (TINY_LLAMA, {"llama.attention.scale": 0.5}, (), "attention.scale .* is 0.5"),
    "not causal": (TINY_LLAMA, {"llama.attention.causal": False}, (), "attention.causal .* is False"),
    "many layers": (TINY_LLAMA, {"llama.block_count": 4_000_000_000}, (), "claims 4000000000 layers"),
    "few layers": (
        TINY_LLAMA,
        {"llama.block_count": 1},
        (),
        "not part of a supported llama .*'blk.1.attn_q.weight', .* and 1 more",
    ),
    "missing layer": (TINY_LLAMA, {"llama.block_count": 3}, (), r"tensor blk.2.attn_norm.weight \(96,\) is missing"),
    "shape": (
        TINY_LLAMA,
        {"llama.feed_forward_length": 128},
        (),
        r"tensor blk.0.ffn_gate.weight has shape \(160, 96\), but .* needs \(128, 96\); tensor blk.0",
    ),
    "o bias": (
        TINY_LLAMA,
        {},
        named("blk.0.attn_output.bias", 96),
        "not part of a supported llama model.*: 'blk.0.attn_output.bias'",
    ),
    "gemma2's caps": (TINY_GEMMA2, {"gemma2.attn_logit_softcapping": -1.0}, (), "attention_softcap is -1.0"),
    "gemma2's local base": (
        TINY_GEMMA2,
        {"gemma2.rope.freq_base_swa": 5000.0},
        (),
        "rope.freq_base_swa .* is 5000.0; supported: 10000, the value of rope.freq_base",
    ),
    "gemma3's scaling": (
        TINY_GEMMA3,
        {"gemma3.rope.scaling.type": "yarn"},
        (),
        "rope.scaling.type .* is 'yarn'; supported: 'linear'",
    ),
    "gemma3's local base": (TINY_GEMMA3, {"gemma3.rope.freq_base_swa": 0.0}, (), "local_theta is 0.0"),
    "granite without positions": (
        TINY_GRANITE,
        {"granite.rope.scaling.finetuned": False},
        (),
        "rope.scaling.finetuned .* is False; supported: True .rotary embedding in all layers",
    ),
    "granite's logits": (TINY_GRANITE, {"granite.logit_scale": 0.0}, (), "logit_divisor is 0.0"),
    "olmo2 with a window": (
        TINY_OLMO2,
        {"olmo2.attention.sliding_window": 64},
        (),
        "sliding_window .* is 64; .*sliding_window_pattern",
    ),
    "olmo2 with norms before": (
        TINY_OLMO2,
        {},
        named("blk.0.attn_norm.weight", 96),
        "not part of a supported olmo2 model.*: 'blk.0.attn_norm.weight'",
    ),
    "half of longrope": (TINY_PHI3, {}, named("rope_factors_long.weight", 16), "no tensor rope_factors_short.weight"),
    "phi3, odd columns": (TINY_PHI3, {"phi3.rope.dimension_count": 17}, (), "rotates 17 columns of each head"),
    "phi3, no columns": (TINY_PHI3, {"phi3.rope.dimension_count": 0}, (), "rotates 0 columns of each head"),
    "phi3, more columns": (TINY_PHI3, {"phi3.rope.dimension_count": 34}, (), "rotates 34 columns .* up to 32"),
    "gemma3 with factors": (TINY_GEMMA3, {}, named("rope_freqs.weight", 16), "not part .*: 'rope_freqs.weight'"),
    "phi3 with parts apart": (
        TINY_PHI3,
        {},
        named("blk.0.attn_q.weight", 96),
        "not part of a supported phi3 model.*: 'blk.0.attn_q.weight'",
    ),
    "no q norm": (
        TINY_QWEN2,
        {key.replace("qwen2", "qwen3"): value for key, value in gguf_metadata(TINY_QWEN2, "").items()}
        | {"general.architecture": "qwen3"},
        (),
        "does not fit its configuration: not part of .*attn_q.bias.*blk.0.attn_q_norm.weight .* is missing",
    ),
    "q norm": (
        TINY_QWEN2,
        {},
        named("blk.1.attn_q_norm.weight", 24),
        "not part of a supported qwen2 model.*: 'blk.1.attn_q_norm.weight'",
    ),
    "half the biases": (TINY_LLAMA, {}, named("blk.0.attn_q.bias", 96), r"blk.0.attn_k.bias \(48,\) is missing"),
    "late bias": (TINY_LLAMA, {}, named("blk.1.attn_q.bias", 96), "not part .*: 'blk.1.attn_q.bias'"),
    "qwen2 without biases": (tiny(TINY_QWEN2, attention_bias=False), {}, (), "blk.0.attn_q.bias .* is missing"),
    "factors": (TINY_LLAMA, {}, named("rope_freqs.weight", 5), r"rope_freqs.weight .* shape \(5,\), not \(12,\)"),
    "factor of zero": (TINY_LLAMA, {}, (tensor_of_array("rope_freqs.weight", np.zeros(12)),), "finite and positive"),
    "head shape": (TINY_LLAMA, {}, named("output.weight", 100, 96), r"output.weight has shape \(100, 96\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_exactly_is_refused(tmp_path: Path, case: str) -> None:
    config, metadata, extra, message = REFUSED[case]
    path = write_tiny(tmp_path / "a.gguf", config, metadata=metadata, extra=extra)
    with pytest.raises(FeatherbackError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


NEUTRAL: dict[str, tuple[ModelConfig, dict[str, Value]]] = {
    "no scaling": (TINY_LLAMA, {"llama.rope.scaling.type": "none"}),
    "scaling by one": (TINY_LLAMA, {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 1.0}),
    "a window as wide as the context": (TINY_QWEN2, {"qwen2.attention.sliding_window": 512}),
    "no experts": (TINY_LLAMA, {"llama.expert_count": 0, "llama.vocab_size": 101}),
}


@pytest.mark.parametrize("case", NEUTRAL)
def test_what_changes_nothing_is_accepted(tmp_path: Path, case: str) -> None:
    config, metadata = NEUTRAL[case]
    load(write_tiny(tmp_path / "a.gguf", config, metadata=metadata))


WINDOWS: dict[str, tuple[ModelConfig, dict[str, Value], tuple[int, ...]]] = {
    "Mistral": (TINY_LLAMA, {"llama.attention.sliding_window": 64}, (64, 64)),
    "none": (TINY_LLAMA, {"llama.attention.sliding_window": 0}, ()),
    "longer than the context": (TINY_LLAMA, {"llama.attention.sliding_window": 4096}, (512, 512)),
    "a list": (
        TINY_QWEN2,
        {"qwen2.attention.sliding_window": 64, "qwen2.attention.sliding_window_pattern": np.array([False, True])},
        (0, 64),
    ),
    "a period": (
        TINY_QWEN2,
        {"qwen2.attention.sliding_window": 64, "qwen2.attention.sliding_window_pattern": 2},
        (64, 0),
    ),
    "as written": (tiny(TINY_QWEN2, windows=(9, 0)), {}, (9, 0)),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_windows(tmp_path: Path, case: str) -> None:
    config, metadata, expected = WINDOWS[case]
    model = load(write_tiny(tmp_path / "a.gguf", config, metadata=metadata))
    assert model.config.windows == expected
    assert [block.branches[0].window for block in model.blocks] == list(expected or (0, 0))


UNSAID: dict[str, Value] = {
    "gemma3.attention.scale": 0.0,
    "gemma3.rope.scaling.type": "none",
    "gemma3.final_logit_softcapping": 0.0,
}


@pytest.mark.parametrize(("layers", "scale"), [(7, 32**-0.5), (62, 24**-0.5)])
def test_gemma3_where_the_file_does_not_say(tmp_path: Path, layers: int, scale: float) -> None:
    """As in llama.cpp: from the head size, except in the 27B model, which has 62 layers."""
    pattern = ((9,) * 5 + (0,)) * 11
    config = tiny(TINY_GEMMA3, num_hidden_layers=layers, windows=pattern[:layers], hidden_size=96)
    path = write_tiny(tmp_path / "a.gguf", config, metadata=UNSAID)
    assert "gemma3.attention.sliding_window_pattern" not in GGUFFile(path).arrays
    found = load(path).config
    assert isinstance(found, Gemma3Config)
    assert found.windows == pattern[:layers]
    assert found.attention_scale == np.float32(scale)
    assert (found.rope_divisor, found.final_softcap) == (1.0, 0.0)


def test_windows_that_cannot_be() -> None:
    for windows in ((7,), (7, -1)):
        with pytest.raises(FeatherbackError, match="attention windows are"):
            tiny(windows=windows)


def test_norms_of_a_strange_type_fail_at_load(tmp_path: Path) -> None:
    from featherback.engine.formats.writer import tensor_of_bytes, write_gguf

    good = GGUFFile(write_tiny(tmp_path / "good.gguf"))
    tensors = [
        tensor_of_array(name, np.ones(96), TensorType.Q8_0)
        if name == "blk.1.ffn_norm.weight"
        else tensor_of_bytes(name, info.type, info.shape, good.data(name))
        for name, info in good.tensors.items()
    ]
    write_gguf(tmp_path / "bad.gguf", gguf_metadata(TINY_LLAMA, "bad"), tensors)
    with pytest.raises(FeatherbackError, match=r"blk.1.ffn_norm.weight .* is stored as Q8_0"):
        load(tmp_path / "bad.gguf")
