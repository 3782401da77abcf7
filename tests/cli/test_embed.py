"""`featherback train --objective contrastive` and `embed`, as commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoModel

from featherback.data.tokenizers.loader import load_tokenizer
from featherback.runs.run_directory import RunDirectory
from tests.cli.conftest import Command
from tests.support.encoders import encoder, pooled, tiny_folder, write_pairs

TEXTS = ["the cat sat on the mat", "a dog", "the house and the tree"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("encoder") / "tiny")


def truth(folder: Path, pooling: str) -> np.ndarray:
    model, tokenizer = AutoModel.from_pretrained(folder, add_pooling_layer=False).eval(), load_tokenizer(folder)
    found = []
    with torch.no_grad():
        for text in TEXTS:
            ids = np.array([*tokenizer.encode(text, bos=True), tokenizer.eos_id])
            found.append(torch.nn.functional.normalize(pooled(model, ids, pooling), dim=0).numpy())
    return np.stack(found)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_are_those_of_transformers(command: Command, folder: Path, tmp_path: Path, pooling: str) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    arguments = ("embed", folder, "--file", tmp_path / "texts.txt", "--pooling", pooling)
    code, out, _ = command(*arguments)
    assert code == 0
    printed = np.array([json.loads(line) for line in out.splitlines()])
    np.testing.assert_allclose(printed, truth(folder, pooling), atol=1e-5)
    code, _, _ = command(*arguments, "--out", tmp_path / "v.npy", "--memory", "least")
    assert code == 0
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), printed, atol=1e-5)


def test_a_gguf_file_gives_the_folders_vectors(command: Command, folder: Path, tmp_path: Path) -> None:
    """Under the names of llama.cpp's converter. Its pooling is used."""
    path = write_gguf(tmp_path / "tiny.gguf", folder, pooling_type=2)
    _, out, _ = command("embed", path, TEXTS[0])
    np.testing.assert_allclose(json.loads(out), truth(folder, "cls")[0], atol=1e-5)
    code, _, err = command("embed", write_gguf(tmp_path / "causal.gguf", folder, causal=True), TEXTS[0])
    assert code == 2
    assert "bert.attention.causal" in err


@pytest.mark.parametrize("train", ["lora", "full"])
def test_training_makes_held_out_pairs_easier_to_find(
    command: Command, folder: Path, tmp_path: Path, train: str
) -> None:
    data, held, run = tmp_path / "pairs.jsonl", tmp_path / "held.jsonl", tmp_path / "run"
    write_pairs(data, 200)
    write_pairs(held, 60, seed=1)
    rate = ("--lr", "3e-3", "--batch-tokens", "2000") if train == "full" else ("--lr", "1e-2")
    code, _, err = command(
        "train", folder, "--data", data, "--eval-data", held, "--objective", "contrastive", "--pairs", "64",
        "--epochs", "8", "--out", run, "--train", train, *rate,
    )  # fmt: skip
    assert code == 0, err
    summary = RunDirectory.open(run).record.summary
    assert summary is not None
    assert summary.held_out is not None
    before, after = summary.held_out.first, summary.held_out.kept
    assert after["recall_at_1"] > before["recall_at_1"]
    assert after["mrr"] > before["mrr"]
    assert summary.best_eval_loss is not None
    assert summary.first_eval_loss is not None
    assert summary.best_eval_loss < 0.7 * summary.first_eval_loss
    code, out, _ = command("embed", *(() if train == "full" else (folder, "--adapter")), run, "a dog")
    assert code == 0
    assert np.linalg.norm(json.loads(out)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "is an encoder (BERT, RoBERTa), which writes no text, so --objective next_token cannot train it"),
        (("--objective", "contrastive", "--accumulate", "2"), "for more of them, use --pairs 128"),
        (("--objective", "contrastive", "--batch-size", "32"), "The number of pairs that are compared is --pairs 32"),
        (("--objective", "contrastive", "--method", "mezo"), "Use --method mesp."),
        (("--objective", "contrastive", "--sizes", "64,x"), "write whole numbers, such as 384,128,64"),
        (("--objective", "contrastive", "--sizes", "64,8"), "--sizes 64,8: an embedding of this model has 48 numbers"),
    ],
)
def test_options_that_do_not_fit(
    command: Command, folder: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    write_pairs(tmp_path / "pairs.jsonl", 8)
    code, _, err = command("train", folder, "--data", tmp_path / "pairs.jsonl", "--out", tmp_path / "run", *options)
    assert code == 2
    assert says in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"anchor": "a"}, '"anchor"'),
        ({"anchor": "a", "positive": ""}, '"positive" is empty'),
        ({"anchor": "a", "positive": "b", "negative": [1]}, '"negative" must be a text or a list of texts'),
        ({"text": "a"}, 'expected a pair of texts, "anchor" and "positive"'),
    ],
)
def test_data_that_are_no_pairs(
    command: Command, folder: Path, tmp_path: Path, row: dict[str, object], says: str
) -> None:
    (tmp_path / "d.jsonl").write_text(json.dumps(row) + "\n")
    arguments = ("--data", tmp_path / "d.jsonl", "--out", tmp_path / "run", "--objective", "contrastive")
    code, _, err = command("train", folder, *arguments)
    assert code == 2
    assert says in err
    assert "line 1" in err


def test_an_encoder_writes_no_text(command: Command, folder: Path) -> None:
    for arguments in (("generate", folder, "--prompt", "the cat"), ("evaluate", folder, "--data", __file__)):
        code, _, err = command(*arguments)
        assert code == 2
        assert "is an encoder" in err or "measured in training only" in err


def write_gguf(path: Path, folder: Path, pooling_type: int = 1, causal: bool = False) -> Path:
    model, names = encoder("bert"), json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    config, special = model.config, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    writer = GGUFWriter(path, "bert")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(causal)
    writer.add_uint32("bert.pooling_type", pooling_type)
    writer.add_tokenizer_model("bert")
    written = [each if each in special else each[2:] if each.startswith("##") else f"▁{each}" for each in names]
    written += [f"[unused{number}]" for number in range(config.vocab_size - len(written))]
    writer.add_token_list(written)
    writer.add_token_types([3 if each in special else 1 for each in written])
    for key, value in (("bos", 2), ("seperator", 3), ("unknown", 1)):
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", value)
    parts = {
        "embeddings.word_embeddings": "token_embd",
        "embeddings.position_embeddings": "position_embd",
        "embeddings.token_type_embeddings": "token_types",
        "embeddings.LayerNorm": "token_embd_norm",
        "attention.self.query": "attn_q",
        "attention.self.key": "attn_k",
        "attention.self.value": "attn_v",
        "attention.output.dense": "attn_output",
        "attention.output.LayerNorm": "attn_output_norm",
        "intermediate.dense": "ffn_up",
        "output.dense": "ffn_down",
        "output.LayerNorm": "layer_output_norm",
    }
    for name, values in model.state_dict().items():
        stem, kind = name.rsplit(".", 1)
        layer = ""
        if stem.startswith("encoder.layer."):
            _, _, number, stem = stem.split(".", 3)
            layer = f"blk.{number}."
        writer.add_tensor(f"{layer}{parts[stem]}.{kind}", values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
