"""A selection of a token file reads like a copy, but does not store the tokens again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from featherback.data.token_file import CHOSEN, TokenFile, TokenFileWriter, as_whole_file, selecting
from featherback.errors import FeatherbackError


def _written(path: Path, count: int = 50) -> TokenFile:
    random = np.random.default_rng(0)
    with TokenFileWriter(path) as writer:
        writer.metadata["seq_len"] = 40
        for length in random.integers(2, 40, count):
            writer.add(random.integers(0, 500, length), random.integers(0, 2, length).astype(bool))
    return TokenFile(path)


def _sequences(file: TokenFile) -> list[tuple[list[int], list[bool]]]:
    return [tuple(part.tolist() for part in file.seq(i)) for i in range(len(file))]  # type: ignore[misc]


def _chosen(file: TokenFile, path: Path, length: int = 40, step: int = 3) -> TokenFile:
    """Every third sequence, cut at `length`."""
    with selecting(file, path) as chosen:
        starts, ends = file.starts[::step], file.ends[::step]
        chosen.add(starts, np.minimum(ends, starts + length))
        chosen.add(starts[:0], ends[:0])
        chosen.n_targets = sum(sum(mask[1:length]) for _, mask in _sequences(file)[::step])
        chosen.metadata.update(seq_len=length)
    return TokenFile(path)


@pytest.mark.parametrize("length", [40, 9])
def test_they_are_as_if_written_again(tmp_path: Path, length: int) -> None:
    file = _written(tmp_path / "all.tokens")
    chosen = _chosen(file, tmp_path / "some.tokens", length)
    with TokenFileWriter(tmp_path / "again.tokens") as writer:
        for tokens, supervised in _sequences(file)[::3]:
            writer.add(tokens[:length], supervised[:length])
    again = TokenFile(tmp_path / "again.tokens")
    assert _sequences(chosen) == _sequences(again)
    for name in ("n_sequences", "n_tokens", "n_targets", "max_length", "mean_length"):
        assert getattr(chosen, name) == getattr(again, name)
    assert chosen.metadata == {"seq_len": length}
    order = np.array([5, 0, 3])
    assert chosen.lengths(order).tolist() == again.lengths(order).tolist()
    assert [(i, n.tolist()) for i, n in chosen.all_lengths()] == [(i, n.tolist()) for i, n in again.all_lengths()]
    chosen.check(500)
    chosen.drop_pages()
    assert _sequences(chosen) == _sequences(again)


def test_they_may_take_the_name_of_the_file_and_be_chosen_from_again(tmp_path: Path) -> None:
    path = tmp_path / "train.tokens"
    file = _written(path)
    before = _sequences(file)
    half = _chosen(as_whole_file(file), path, step=2)
    quarter = _chosen(as_whole_file(half), path, step=2)
    assert _sequences(quarter) == before[::4]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["train.tokens", "train.whole.tokens"]
    assert _sequences(half) == before[::2], "an open file stays what it was"


def test_nothing_appears_if_choosing_fails(tmp_path: Path) -> None:
    file = _written(tmp_path / "all.tokens")
    with pytest.raises(ValueError, match="shape"), selecting(file, tmp_path / "some.tokens") as chosen:
        chosen.add(file.starts, file.ends[1:])
    assert [each.name for each in tmp_path.iterdir()] == ["all.tokens"]


@pytest.mark.parametrize("name", ["../all.tokens", "some.tokens", "other.tokens", "", "..", 7])
def test_they_refer_to_the_tokens_of_one_file_beside_them(tmp_path: Path, name: object) -> None:
    (tmp_path / "run").mkdir()
    for folder in (tmp_path, tmp_path / "run"):
        file = _written(folder / "all.tokens")
    _written(tmp_path / "run" / "other.tokens", 3)
    path = tmp_path / "run" / "some.tokens"
    with selecting(file, path) as chosen:
        chosen.add(file.starts, file.ends)
        finish = chosen.finish

        def other() -> None:
            chosen.metadata["of"] = name
            finish()

        chosen.finish = other  # type: ignore[method-assign]
    with pytest.raises(FeatherbackError, match=rf"is not in the same folder|another version of|version {CHOSEN}"):
        TokenFile(path)


@pytest.mark.parametrize("at", [16, 70, -3])
def test_damage_is_found(tmp_path: Path, at: int) -> None:
    file = _written(tmp_path / "all.tokens")
    path = _chosen(file, tmp_path / "some.tokens").path
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(FeatherbackError, match="damaged"):
        TokenFile(path).check(500)
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(FeatherbackError, match="token id 4"):
        TokenFile(path).check(400)
