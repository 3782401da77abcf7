"""llama.cpp's tokens are ours: `make test-llamacpp`. Where they are not, transformers is followed; the tests say how.

- Qwen's tokenizer composes characters first (NFC). llama.cpp's does not: for the composed text it gives our tokens.
- A byte that the vocabulary has no token for (some control characters of SmolLM2's) is left out by both, but only in
  transformers is what stands around it merged.
- llama.cpp's expressions of gpt-oss and Mistral's Tekken know upper and lower case of ASCII letters only, and no marks.
  For ASCII texts its tokens are ours.
- llama.cpp's expressions of DeepSeek LLM and Coder take white space beyond ASCII for a vertical tab.
- llama.cpp's SentencePiece may merge pieces of a user's text into a control token that is spelled so, "<s>". In
  SentencePiece and here, such text stays text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from llama_cpp import Llama

from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from featherback.engine.formats.gguf import GGUFFile
from tests.data.oracle import oracle
from tests.data.support import write_vocabulary_gguf
from tests.data.test_text_encoder import same_in_llama_cpp
from tests.data.test_tokenizer import byte_level_gguf, bytes_to_characters, trained_pieces
from tests.data.torture import TORTURE, random_strings

TEXTS = [*TORTURE, *random_strings(0, 2000), *random_strings(1, 20, longest=5000)]


def _compare(path: Path, seen_by_theirs: Callable[[str], str] = str, texts: Iterable[str] = TEXTS) -> None:
    """Our tokens of the texts are llama.cpp's, and those of the `tokenizers` library, which transformers runs."""
    llama = Llama(str(path), vocab_only=True, verbose=False)
    ours, library = load_tokenizer(path), oracle(path)
    for text in texts:
        tokens = ours.encode(text)
        assert tokens == llama.tokenize(seen_by_theirs(text).encode(), add_bos=False, special=False), repr(text)
        spaced = f" {text}" if text and ours.space_prefix == "each" else text
        assert tokens == library.encode(spaced, add_special_tokens=False).ids, repr(text)


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_byte_level(tmp_path: Path, pre: str) -> None:
    """Every pre-tokenizer, with a small vocabulary."""
    path = byte_level_gguf(tmp_path / "v.gguf", pre)
    if not PRE_TOKENIZERS[pre].composes:
        _compare(path, texts=filter(same_in_llama_cpp(pre), TEXTS))
        return
    _compare(path, _composed)
    with pytest.raises(AssertionError, match="assert"):
        _compare(path)


def test_sentencepiece(tmp_path: Path) -> None:
    """As Llama 2's. llama.cpp ends at a token that is there twice, and reads none that holds a NUL."""
    tokens, types, scores = trained_pieces()
    tokens = [f"<{i}>" if token in tokens[:i] or "\0" in token else token for i, token in enumerate(tokens)]
    facts = {"token_scores": scores, "bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0}
    path = write_vocabulary_gguf(tmp_path / "v.gguf", "llama", [t.encode() for t in tokens], types, **facts)
    _compare(path, texts=[text for text in TEXTS if "<s>" not in text])
    assert not {1, 2} & set(load_tokenizer(path).encode("<s></s>"))


def test_smollm2(smollm2_path: Path) -> None:
    known = set(GGUFFile(smollm2_path).array("tokenizer.ggml.tokens"))
    missing = {byte for byte, name in bytes_to_characters().items() if name not in known}
    print("no tokens for the bytes", *map(hex, sorted(missing)))
    kept = ["".join(c for c in text if not missing & set(c.encode())) for text in TEXTS]
    _compare(smollm2_path, texts=kept)
