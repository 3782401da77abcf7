"""Packing: every sequence once, deterministic, resumable, a fair shuffle, and light imports."""

import subprocess
import sys

import numpy as np
import pytest

from featherback.data.batch import IGNORE
from featherback.data.packing import Batching, batches, count_batches, permute, rows
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError
from tests.support.tiers import some


@pytest.fixture
def token_file(tmp_path):
    rng = np.random.default_rng(1)
    with TokenFileWriter(tmp_path / "data.tok") as writer:
        for i in range(300):
            tokens = np.full(rng.integers(2, 33), i)
            writer.add(tokens, np.arange(tokens.size) > 0)
    return TokenFile(tmp_path / "data.tok")


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 64, 65, 1000, 4097])
def test_permute_is_a_permutation(n):
    assert sorted(permute(np.arange(n), n, seed=3, epoch=4).tolist()) == list(range(n))


def test_permute_is_stable_and_keyed():
    # Fixed values, because a change would silently reorder the data of every resumed run.
    assert permute(np.arange(10), 10, 0, 0).tolist() == [6, 8, 1, 0, 9, 7, 5, 2, 4, 3]
    assert permute(np.arange(5), 1000, 42, 3).tolist() == [902, 900, 919, 43, 664]
    orders = {tuple(permute(np.arange(100), 100, s, e).tolist()) for s in range(5) for e in range(5)}
    assert len(orders) == 25
    pieces = [permute(np.arange(a, a + 10), 100, 2, 2) for a in range(0, 100, 10)]
    assert np.concatenate(pieces).tolist() == permute(np.arange(100), 100, 2, 2).tolist()


@pytest.mark.parametrize("n", some([3, 6, 20], 1))
def test_permute_is_fair(n):
    trials = 500
    counts = np.zeros((n, n))
    for seed in range(trials):
        counts[np.arange(n), permute(np.arange(n), n, seed, 0)] += 1
    expected = trials / n
    chi2 = ((counts - expected) ** 2 / expected).sum()
    freedom = (n - 1) ** 2
    assert chi2 < freedom + 6 * (2 * freedom) ** 0.5


def test_every_sequence_once_and_rows_fit(token_file):
    seen = []
    for batch in batches(token_file, Batching(32, tokens=64), seed=7, epoch=1):
        assert batch.n_tokens <= 64
        for a, b in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
            tokens = batch.tokens[a:b]
            assert len(set(tokens.tolist())) == 1
            assert tokens.tolist() == token_file.seq(int(tokens[0]))[0].tolist()
            assert batch.targets[b - 1] == IGNORE
            seen.append(int(tokens[0]))
    assert sorted(seen) == list(range(300))


def test_resume_at_any_batch(token_file):
    whole = list(batches(token_file, Batching(32, tokens=64), seed=7))
    assert len(whole) == count_batches(token_file, Batching(32, tokens=64), seed=7)
    for start in (0, 1, 17, len(whole) - 1, len(whole), len(whole) + 5):
        rest = list(batches(token_file, Batching(32, tokens=64), seed=7, start=start))
        assert len(rest) == max(0, len(whole) - start)
        for a, b in zip(whole[start:], rest, strict=True):
            assert a.tokens.tolist() == b.tokens.tolist()
            assert a.targets.tolist() == b.targets.tolist()


def test_epochs_and_seeds_differ_and_order_can_be_kept(token_file):
    first = [r.tolist() for r in rows(token_file, Batching(32), seed=0, epoch=0)]
    assert first != [r.tolist() for r in rows(token_file, Batching(32), seed=0, epoch=1)]
    assert first != [r.tolist() for r in rows(token_file, Batching(32), seed=1, epoch=0)]
    kept = [i for r in rows(token_file, Batching(32), shuffle=False) for i in r.tolist()]
    assert kept == list(range(300))


def test_too_short_a_sequence_length(token_file):
    with pytest.raises(FeatherbackError, match="Prepare the data again"):
        next(batches(token_file, Batching(31)))
    with pytest.raises(FeatherbackError, match="at least 1"):
        next(batches(token_file, Batching(0)))


def test_training_side_imports_stay_small():
    code = (
        "import sys, featherback.data.packing, featherback.data.token_file\n"
        "heavy = {'tokenizers', 'jinja2', 'argparse', 'torch', 'transformers', 'numpy.random'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
