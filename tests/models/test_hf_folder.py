import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from transformers import Gemma2Config, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, Olmo2Config, Phi3Config
from transformers import GraniteConfig as HFGraniteConfig

from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.models import ModelConfig, load
from featherback.models.architecture.experts import ExpertsConfig
from featherback.models.architecture.gguf_metadata import hf_to_gguf_rows
from featherback.models.families.gemma2 import GemmaConfig
from featherback.models.families.gemma3 import Gemma3Config
from featherback.models.families.granite import GraniteConfig
from featherback.models.rope.llama3 import Llama3
from tests.support.families import BY_ARCHITECTURE, MODELS, cases
from tests.support.oracle import reference_model
from tests.support.tiny_models import (
    LLAMA3_ROPE,
    TINY_LLAMA,
    TINY_OLMO2,
    TINY_QWEN2,
    as_stored,
    llama3_factors,
    write_tiny,
)

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def folder_and_gguf(tmp_path: Path, config: ModelConfig, dtype: str = "F32", **save: Any) -> tuple[Path, Path]:
    """The same random model as a Hugging Face folder, saved by transformers, and as GGUF."""
    gguf = write_tiny(tmp_path / "a.gguf", config, TensorType[dtype])
    reference_model(gguf).to(DTYPES[dtype]).save_pretrained(tmp_path / "hf", **save)
    return tmp_path / "hf", gguf


# A GGUF file holds the resulting factors of Llama 3's scaling; test_llama3_rope reads the entries of config.json.
FOLDERS = {
    name: config
    for name, (config, _) in cases().items()
    if not isinstance(config.rope_scaling, Llama3) and not isinstance(config, ExpertsConfig)
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config", FOLDERS.values(), ids=FOLDERS)
def test_folder_and_gguf_are_the_same_model(tmp_path: Path, config: ModelConfig, dtype: str) -> None:
    hf, gguf = (load(path) for path in folder_and_gguf(tmp_path, config, dtype))
    assert hf.source == "hf"
    assert not hf.config.rope_interleaved
    for name, value in vars(config).items():
        if name not in ("rope_interleaved", "architecture", "converted"):
            assert as_stored(getattr(hf.config, name)) == as_stored(value), name
    assert hf.family is gguf.family
    assert hf.embed_tokens.data.tobytes() == gguf.embed_tokens.data.tobytes()
    assert hf.head.weight.data.tobytes() == gguf.head.weight.data.tobytes()
    assert (hf.head.weight is hf.embed_tokens) == config.tie_word_embeddings
    restore = BY_ARCHITECTURE[config.architecture].twin(GGUFReader(gguf.path), config.head_dim).restore
    for index in range(config.num_hidden_layers):
        ours, theirs = hf.layer(index), gguf.layer(index)
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for target, matrix in ours.matrices.items():
            rows = theirs.matrices[target].data.reshape(matrix.rows, -1)
            if target in heads and config.rope_interleaved:
                rows = rows[np.argsort(hf_to_gguf_rows(heads[target], matrix.rows))]
            if restore is not None:
                part = gguf.family.gguf_names[target].removeprefix("blk.{}.")
                rows = restore(part, rows.view(f"u{matrix.type.block_bytes}"))[1].view(np.uint8)
            assert matrix.type is TensorType[dtype]
            assert np.array_equal(matrix.data, rows.reshape(-1)), target
        for name in ours.vectors:
            if name.endswith("norm"):
                assert np.allclose(ours.vectors[name], theirs.vectors[name], rtol=1e-2), name
        if config.attention_bias:
            assert np.allclose(ours.vectors["v_bias"], theirs.vectors["v_bias"], rtol=1e-2)  # type: ignore[arg-type]


def test_a_folder_in_parts(tmp_path: Path) -> None:
    hf, gguf = folder_and_gguf(tmp_path, TINY_QWEN2, max_shard_size="100KB")
    assert len(list(hf.glob("*.safetensors"))) > 3
    ours, theirs = load(hf), load(gguf)
    for target, matrix in ours.layer(1).matrices.items():
        assert np.array_equal(matrix.data, theirs.layer(1).matrices[target].data), target


@pytest.mark.parametrize("style", ["rope_parameters", "rope_scaling"])
def test_llama3_rope(tmp_path: Path, style: str) -> None:
    hf, _ = folder_and_gguf(tmp_path, TINY_LLAMA)
    edit(hf, {"rope_parameters": None, "rope_theta": TINY_LLAMA.rope_theta, style: LLAMA3_ROPE})
    factors = load(hf).rotaries[0].factors
    assert factors is not None
    assert np.allclose(factors, llama3_factors(TINY_LLAMA), rtol=1e-5)


def edit(folder: Path, changes: dict[str, Any]) -> None:
    entries = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(entries))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: folder_and_gguf(tmp_path_factory.mktemp(name), c)[0] for name, c in MODELS.items()}


def changed(folders: dict[str, Path], tmp_path: Path, family: str, changes: dict[str, Any]) -> Path:
    """A folder with the weights of `folders[family]` and an edited configuration."""
    copy = tmp_path / "changed"
    copy.mkdir()
    for file in folders[family].iterdir():
        (copy / file.name).symlink_to(file)
    (copy / "config.json").unlink()
    (copy / "config.json").write_bytes((folders[family] / "config.json").read_bytes())
    edit(copy, changes)
    return copy


def longrope(**changes: object) -> dict[str, Any]:
    """The entries of "phi4-mini", with some changed."""
    rope = {"rope_theta": 1e6, "rope_type": "longrope", "partial_rotary_factor": 0.75, "attention_factor": 1.19}
    factors = {"short_factor": [1.0] * 12, "long_factor": [2.0] * 12}
    return {"rope_parameters": rope | factors | changes}


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "type": ("llama", {"model_type": "gemma"}, "'gemma'.*supported: .*llama, mistral, .*qwen2"),
    "no type": ("llama", {"model_type": None}, "the architecture None"),
    "activation": ("llama", {"hidden_act": "gelu"}, "hidden_act .* 'gelu'"),
    "quantised": ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
    "unknown scaling": (
        "qwen2",
        {"rope_scaling": {"type": "dynamic", "factor": 4}, "rope_parameters": None},
        "rope_type .* 'dynamic', .* default, linear, llama3, longrope, su, yarn",
    ),
    "yarn without a context": (
        "qwen2",
        {"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 0}},
        "original_context is 0",
    ),
    "yarn of one frequency": (
        "qwen2",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0}},
        "rope_theta is 1",
    ),
    "linear without a factor": ("qwen2", {"rope_parameters": {"rope_type": "linear"}}, "factor is 0"),
    "half a llama3": ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8}}, "rope_scaling .* 'llama3'"),
    "scaling": ("llama", {"rope_scaling": 4}, "rope_scaling .* is 4"),
    "partial": ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "layers of another kind": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["full_attention", "mamba"]},
        "layer_types .* 'mamba'",
    ),
    "too few kinds of layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["full_attention"]},
        "layer_types",
    ),
    "many layers": ("llama", {"num_hidden_layers": 4_000_000_000}, "num_hidden_layers .* is 4000000000"),
    "mistral of two kinds": (
        "llama",
        {"model_type": "mistral", "layer_types": ["sliding_attention", "full_attention"]},
        "layer_types",
    ),
    "missing": ("llama", {"hidden_size": None}, "no entry hidden_size"),
    "text": ("llama", {"num_hidden_layers": "2"}, "num_hidden_layers .* is '2'"),
    "theta": ("llama", {"rope_parameters": {"rope_theta": "big"}}, "rope_theta .* is 'big'"),
    "flag": ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings .* is 'yes'"),
    "shape": ("llama", {"vocab_size": 102}, r"embed_tokens.weight has shape \(101, 96\)"),
    "untied": ("llama", {"tie_word_embeddings": False}, "lm_head.weight .* is missing"),
    "gemma2 in both directions": ("gemma2", {"use_bidirectional_attention": True}, "bidirectional"),
    "gemma2's activation": ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation .* 'gelu'"),
    "gemma2's scale": ("gemma2", {"query_pre_attn_scalar": 0}, "attention_scale is inf"),
    "gemma2's cap": ("gemma2", {"attn_logit_softcapping": -1.0}, "attention_softcap is -1.0"),
    "gemma3 with images, without text": ("gemma3", {"model_type": "gemma3"}, "text_config .* is None"),
    "gemma3 in both directions": ("gemma3", {"use_bidirectional_attention": True}, "bidirectional"),
    "gemma3's activation": ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation .* 'gelu'"),
    "gemma3's scale": ("gemma3", {"query_pre_attn_scalar": 0}, "attention_scale is inf"),
    "gemma3's cap": ("gemma3", {"final_logit_softcapping": -1.0}, "final_softcap is -1.0"),
    "gemma3's scaling": (
        "gemma3",
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 8.0}}},
        "rope_type .* 'yarn'",
    ),
    "gemma3's scaling of local layers": (
        "gemma3",
        {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 8.0}}},
        "rope_type of local layers .* 'linear'",
    ),
    "gemma3's divisor": (
        "gemma3",
        {"rope_parameters": {"full_attention": {"rope_type": "linear"}}},
        "rope_divisor is 0",
    ),
    "gemma3, one rope for all": ("gemma3", {"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters"),
    "granite without residuals": ("granite", {"residual_multiplier": 0}, "residual_scale is 0.0; it must be"),
    "granite with a text": ("granite", {"logits_scaling": "8"}, "logits_scaling .* is '8'"),
    "granite with biases": ("granite", {"mlp_bias": True}, "mlp_bias .* is True"),
    "olmo2 with biases": ("olmo2", {"attention_bias": True}, "attention_bias .* is True"),
    "llama in part, transformers 5": (
        "llama",
        {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.75}},
        "partial_rotary_factor .* is 0.75",
    ),
    "phi3 in part, odd": (
        "phi3",
        {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.8}},
        "rotates 25 columns of each head",
    ),
    "phi3, more than a head": ("phi3", {"rope_parameters": None, "partial_rotary_factor": 1.5}, "factor .* is 1.5"),
    "phi3's scaling": (
        "phi3",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}},
        r"rope_type .* 'linear', which is not supported \(supported: default, longrope\)",
    ),
    "longrope's factors": ("phi4-mini", longrope(long_factor=[1.0] * 16), "long_factor .* a list of 12 numbers"),
    "longrope's words": ("phi4-mini", longrope(short_factor=["one"] * 12), "short_factor .* is 'one'"),
    "longrope's zero": ("phi4-mini", longrope(short_factor=[0.0] * 12), "factors must all be finite and positive"),
    "longrope's context": ("phi4-mini", longrope() | {"original_max_position_embeddings": -1}, "context is -1"),
    "layers that rotate": ("smollm3", {"no_rope_layers": [1, 1, 0]}, "no_rope_layers .* list of 0 and 1 for 5"),
    "layers that rotate in part": ("smollm3", {"no_rope_layers": [1, 1, 1, 0.5, 1]}, "no_rope_layers"),
    "no interval": ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 0}, "no_rope_layer_interval .* is 0"),
    "window that is not in use": (
        "smollm3",
        {"layer_types": ["full_attention"] * 4 + ["sliding_attention"]},
        "layer_types",
    ),
    "many layers of smollm3": ("smollm3", {"num_hidden_layers": 4_000_000_000}, "num_hidden_layers"),
    "biases of convolutions": ("lfm2", {"conv_bias": True}, "conv_bias .* is True"),
    "attention without a gate": ("qwen35", {"attn_output_gate": False}, "attn_output_gate .* is False"),
    "biases of gated attention": ("qwen35", {"attention_bias": True}, "attention_bias .* is True"),
    "a state without columns": ("qwen35", {"linear_value_head_dim": 0}, "delta_v_dim is 0; 1 to 1024"),
    "value heads in no groups": ("qwen35", {"linear_num_key_heads": 3}, "8 value heads .* 3 key heads"),
    "another layer of qwen35": ("qwen35", {"layer_types": ["mamba"] * 3}, "layer_types"),
    "many layers of qwen35": ("qwen35", {"num_hidden_layers": 4_000_000_000}, "num_hidden_layers"),
    "one tap": ("lfm2", {"conv_L_cache": 1}, "have 1 taps; 2 to 64"),
    "other taps": ("lfm2", {"conv_L_cache": 4}, r"conv.conv.weight has shape \(96, 1, 3\), .* \(96, 4\)"),
    "a layer of another kind": ("lfm2", {"layer_types": ["conv", "mamba", "conv", "conv"]}, "layer_types"),
    "attention in no layers": ("lfm2", {"layer_types": None, "full_attn_idxs": "all"}, "full_attn_idxs .* is 'all'"),
    "attention elsewhere": ("lfm2", {"layer_types": None, "full_attn_idxs": [0]}, "conv.* not part|is missing"),
    "many layers of lfm2": ("lfm2", {"num_hidden_layers": 4_000_000_000}, "num_hidden_layers"),
    "a multiple of nothing": (
        "lfm2",
        {"block_auto_adjust_ff_dim": True, "block_multiple_of": 0},
        "block_multiple_of .* is 0",
    ),
    "endlessly wide": (
        "lfm2",
        {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1e400},
        "block_ffn_dim_multiplier .* is inf",
    ),
    "phi3's window": ("phi3", {"sliding_window": "all"}, "sliding_window .* is 'all'"),
    "biases": ("llama", {"attention_bias": True}, "self_attn.q_proj.bias .* is missing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_exactly_is_refused(folders: dict[str, Path], tmp_path: Path, case: str) -> None:
    family, changes, message = REFUSED[case]
    with pytest.raises(FeatherbackError, match=message):
        load(changed(folders, tmp_path, family, changes))


ACCEPTED: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral without a window": ("llama", {"model_type": "mistral", "sliding_window": None}),
    "mistral, short context": ("llama", {"model_type": "mistral"}),
    "window not in use": ("qwen2", {"use_sliding_window": False, "sliding_window": 64}),
    "old transformers": ("llama", {"rope_parameters": None, "rope_theta": 10_000.0, "rope_scaling": None}),
    "no head_dim": ("llama", {"head_dim": None}),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_changes_nothing_is_accepted(folders: dict[str, Path], tmp_path: Path, case: str) -> None:
    family, changes = ACCEPTED[case]
    config = load(changed(folders, tmp_path, family, changes)).config
    assert (config.architecture, config.rope_theta) == (family, 10_000 if family == "llama" else 1e6)


GEMMA3_BEFORE: dict[str, Any] = {  # transformers 5
    "rope_parameters": None,
    "layer_types": None,
    "rope_theta": 1e6,
    "rope_local_base_freq": 5000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window_pattern": 6,
}


def test_gemma3_as_it_was_written_before(folders: dict[str, Path], tmp_path: Path) -> None:
    before, after = load(changed(folders, tmp_path, "gemma3", GEMMA3_BEFORE)), load(folders["gemma3"])
    assert vars(before.config) == vars(after.config)


def test_gemma3_where_config_json_does_not_say(folders: dict[str, Path], tmp_path: Path) -> None:
    """As transformers reads the same entries."""
    changes = dict.fromkeys(GEMMA3_BEFORE) | {
        "sliding_window": None,
        "query_pre_attn_scalar": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": None,
        "max_position_embeddings": None,
    }
    folder = changed(folders, tmp_path, "gemma3", changes)
    entries = {k: v for k, v in json.loads((folder / "config.json").read_text()).items() if v is not None}
    theirs, ours = Gemma3TextConfig(**entries), load(folder).config
    assert isinstance(ours, Gemma3Config)
    assert ours.windows == tuple(
        theirs.sliding_window if kind == "sliding_attention" else 0 for kind in theirs.layer_types
    )
    assert ours.rope_theta == theirs.rope_parameters["full_attention"]["rope_theta"]
    assert ours.local_theta == theirs.rope_parameters["sliding_attention"]["rope_theta"]
    assert ours.attention_scale == theirs.query_pre_attn_scalar**-0.5
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert (ours.rope_divisor, ours.final_softcap) == (1.0, 0.0)


GEMMA2_SILENT = (
    "layer_types",
    "sliding_window",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "tie_word_embeddings",
    "max_position_embeddings",
    "rope_parameters",
)


def test_gemma2_where_config_json_does_not_say(folders: dict[str, Path], tmp_path: Path) -> None:
    """As transformers reads the same entries."""
    folder = changed(folders, tmp_path, "gemma2", {})
    stated = json.loads((folder / "config.json").read_text())
    entries = {name: value for name, value in stated.items() if name not in GEMMA2_SILENT}
    (folder / "config.json").write_text(json.dumps(entries))
    theirs, ours = Gemma2Config(**entries), load(folder).config
    assert isinstance(ours, GemmaConfig)
    assert ours.windows == tuple(
        theirs.sliding_window if kind == "sliding_attention" else 0 for kind in theirs.layer_types
    )
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.attention_scale == theirs.query_pre_attn_scalar**-0.5
    assert ours.attention_softcap == theirs.attn_logit_softcapping
    assert ours.final_softcap == theirs.final_logit_softcapping
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.max_position_embeddings == theirs.max_position_embeddings


def test_gemma2_whose_caps_are_null_has_none(folders: dict[str, Path], tmp_path: Path) -> None:
    nulls = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    config = load(changed(folders, tmp_path, "gemma2", nulls)).config
    assert isinstance(config, GemmaConfig)
    assert (config.attention_softcap, config.final_softcap) == (0.0, 0.0)


WINDOWS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "mistral": ("llama", {"model_type": "mistral", "sliding_window": 64}, (64, 64)),
    "mistral's default": ("llama", {"model_type": "mistral", "max_position_embeddings": 8192}, (4096, 4096)),
    "phi3": ("phi3", {"sliding_window": 64}, (64, 64)),
    "phi3 without one": ("phi3", {"sliding_window": None}, ()),
    "ministral": ("llama", {"model_type": "ministral", "sliding_window": 64}, (64, 64)),
    "ministral without one": ("llama", {"model_type": "ministral", "sliding_window": None}, ()),
    "smollm3": ("smollm3", {"use_sliding_window": True, "sliding_window": 64, "layer_types": None}, (0, 0, 0, 64, 0)),
    "from a layer on": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1, "layer_types": None},
        (0, 64),
    ),
    "layers by name": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]},
        (64, 0),
    ),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_windows(folders: dict[str, Path], tmp_path: Path, case: str) -> None:
    family, changes, expected = WINDOWS[case]
    assert load(changed(folders, tmp_path, family, changes)).config.windows == expected


def test_phi3_where_config_json_does_not_say(folders: dict[str, Path], tmp_path: Path) -> None:
    """As transformers reads the same entries."""
    changes = {"rms_norm_eps": None, "sliding_window": None, "tie_word_embeddings": None}
    folder = changed(folders, tmp_path, "phi3", changes)
    entries = {k: v for k, v in json.loads((folder / "config.json").read_text()).items() if v is not None}
    theirs, ours = Phi3Config(**entries), load(folder).config
    assert ours.rms_norm_eps == theirs.rms_norm_eps != 1e-6
    assert (ours.windows, theirs.sliding_window) == ((), None)
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings


def test_olmo2_where_config_json_does_not_say(folders: dict[str, Path], tmp_path: Path) -> None:
    """As transformers reads the same entries."""
    changes = {"rms_norm_eps": None, "num_key_value_heads": None, "rope_parameters": None}
    folder = changed(folders, tmp_path, "olmo2", changes | {"tie_word_embeddings": None})
    entries = {k: v for k, v in json.loads((folder / "config.json").read_text()).items() if v is not None}
    theirs = Olmo2Config(**entries)
    shape = r"k_proj.weight has shape \(48, 96\)"  # as many key heads as of queries are expected
    with pytest.raises(FeatherbackError, match=shape):
        load(folder)
    assert theirs.num_key_value_heads == theirs.num_attention_heads
    edit(folder, {"num_key_value_heads": TINY_OLMO2.num_key_value_heads})
    ours = load(folder).config
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings


def test_granite_where_config_json_does_not_say(folders: dict[str, Path], tmp_path: Path) -> None:
    """As in transformers, which then does not divide the scores by the root of the head size either."""
    names = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    folder = changed(folders, tmp_path, "granite", dict.fromkeys((*names, "rms_norm_eps", "rope_parameters")))
    entries = {k: v for k, v in json.loads((folder / "config.json").read_text()).items() if v is not None}
    theirs, ours = HFGraniteConfig(**entries), load(folder).config
    assert isinstance(ours, GraniteConfig)
    assert [getattr(theirs, name) for name in names] == [1, 1, 1, 1]
    assert (ours.embedding_scale, ours.residual_scale, ours.attention_scale, ours.logit_divisor) == (1, 1, 1, 1)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]


def test_a_bias_on_o_is_refused(tmp_path: Path) -> None:
    """transformers' llama with attention_bias also has one there."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, vocab_size=7, attention_bias=True, tie_word_embeddings=True)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(FeatherbackError, match=r"not part of a supported llama model.*o_proj\.bias"):
        load(tmp_path)


def test_no_model_folder(tmp_path: Path) -> None:
    with pytest.raises(FeatherbackError, match="not a Hugging Face model folder"):
        load(tmp_path)
    with pytest.raises(FeatherbackError, match="name the folder that also has"):
        load(tmp_path / "model.safetensors")
