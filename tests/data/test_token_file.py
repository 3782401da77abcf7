"""Token file: round trip, header checks, atomic appearance."""

import numpy as np
import pytest

from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError
from tests.support.systems import NO_FILE


def write(path, n=50, seed=0):
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, 50_000, rng.integers(1, 40)) for _ in range(n)]
    masks = [rng.integers(0, 2, s.size).astype(bool) for s in sequences]
    with TokenFileWriter(path) as writer:
        writer.metadata["seq_len"] = 40
        for tokens, mask in zip(sequences, masks, strict=True):
            writer.add(tokens, mask)
    return sequences, masks


def test_round_trip(tmp_path):
    path = tmp_path / "data.tok"
    sequences, masks = write(path)
    file = TokenFile(path)
    assert len(file) == 50
    for i, (tokens, mask) in enumerate(zip(sequences, masks, strict=True)):
        got, supervised = file.seq(i)
        assert got.tolist() == tokens.tolist()
        assert supervised.tolist() == mask.tolist()
        assert got.dtype == np.int32
        assert supervised.dtype == np.bool_
        assert not got.flags.writeable
    assert file.n_tokens == sum(s.size for s in sequences)
    assert file.n_targets == sum(int(m[1:].sum()) for m in masks)
    assert file.max_length == max(s.size for s in sequences)
    assert file.metadata == {"seq_len": 40}
    file.drop_pages()
    assert file.seq(3)[0].tolist() == sequences[3].tolist()
    with pytest.raises(IndexError):
        file.seq(50)
    assert [p.name for p in tmp_path.iterdir()] == ["data.tok"]


def test_nothing_appears_when_writing_fails(tmp_path):
    with pytest.raises(ValueError, match="must have the same"), TokenFileWriter(tmp_path / "data.tok") as writer:
        writer.add([1, 2], [1])
    assert list(tmp_path.iterdir()) == []


def test_empty_file_is_valid(tmp_path):
    with TokenFileWriter(tmp_path / "none.tok"):
        pass
    assert len(TokenFile(tmp_path / "none.tok")) == 0


def test_not_a_token_file(tmp_path):
    (tmp_path / "text").write_text("hello " * 40)
    with pytest.raises(FeatherbackError, match="not a token file"):
        TokenFile(tmp_path / "text")
    with pytest.raises(FeatherbackError, match=NO_FILE):
        TokenFile(tmp_path / "absent")


@pytest.mark.parametrize("cut", [1, 100])
def test_truncated(tmp_path, cut):
    path = tmp_path / "data.tok"
    write(path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(FeatherbackError, match="damaged"):
        TokenFile(path)


def test_other_version(tmp_path):
    path = tmp_path / "data.tok"
    write(path)
    content = bytearray(path.read_bytes())
    content[8] = 99
    path.write_bytes(content)
    with pytest.raises(FeatherbackError, match="version 99"):
        TokenFile(path)


def test_unwritable(tmp_path):
    with pytest.raises(FeatherbackError, match="Cannot write"):
        TokenFileWriter(tmp_path / "absent" / "data.tok")
