"""The memory that opening a model and its tokenizer takes, with 150,000 tokens, in a fresh process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.tiny_chat import byte_level_metadata
from tests.support.tiny_models import TINY_LLAMA, write_tiny

TOKENS, PAIRS = 150_000, 60_000
MOST = 10.0  # MB
PROGRAM = """
import sys
from featherback.models import families
from featherback import models
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine.host.meter import Meter
meter = Meter()
meter.start()
footprint, resident = meter.footprint_mb, meter.rss_mb
model, tokenizer = models.load(sys.argv[1]), load_tokenizer(sys.argv[1])
meter.stop()
assert len(tokenizer.encode("hello world")) < len("hello world")
print(tokenizer.n_vocab, meter.peak_footprint_mb - footprint, meter.rss_mb - resident)
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Bytes, pairs of them and triples, each with its merge."""
    metadata = byte_level_metadata()
    names = metadata["tokenizer.ggml.tokens"]
    assert isinstance(names, list)
    letters = [*map(chr, range(97, 123)), *(name for name in names[:256] if not "a" <= name <= "z")]
    pairs = [(a, b) for a in letters for b in letters][:PAIRS]
    triples = [(a + b, "e") for a, b in pairs] + [(a + b, "o") for a, b in pairs]
    merges = [*pairs, *triples][: TOKENS - len(letters)]
    metadata["tokenizer.ggml.tokens"] = [*letters, *(a + b for a, b in merges)]
    metadata["tokenizer.ggml.merges"] = [f"{a} {b}" for a, b in merges]
    metadata["tokenizer.ggml.token_type"] = np.ones(TOKENS, np.int32)
    return write_tiny(tmp_path / "m.gguf", TINY_LLAMA, metadata=metadata)


@pytest.mark.memory_figures
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere resident pages are counted otherwise")
def test_opening_takes_less_than_ten_megabytes(large: Path) -> None:
    """Beside what was imported. The header's pages, which the system may take back at any time, are given back."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, large], check=True, capture_output=True, text=True)
    vocabulary, peak, resident = map(float, done.stdout.split())
    assert vocabulary == TOKENS
    assert peak < MOST
    assert resident < MOST
    assert peak > 1.0, "nothing was measured"
