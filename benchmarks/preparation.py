"""How fast data become tokens, beside the `tokenizers` library, for each family of tokenizers; and in how much memory.

    .venv/bin/python -m benchmarks.preparation model.gguf text.txt --megabytes 8

`model.gguf` lends its byte-level vocabulary, which is cut as each family cuts; a SentencePiece vocabulary is trained on
the text. Every tokenizer is written as one tokenizer.json that both sides read. Rates are megabytes of data per second
of CPU time, loading left out. The library's side parses, renders each conversation once with plain Jinja and encodes.
Ours is the whole preparation: rendered twice, in a process of its own, masked, packed, written and flushed; all its
processes' CPU time counts. `cores` is the time on one core through that on two, `peak` the resident memory of the tree
of processes on two, and the token files of the two must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.watch import run
from featherback.data.prepare import prepare
from featherback.data.source import Source
from featherback.data.token_file import TokenFile
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from featherback.engine.formats.gguf import GGUFFile

CUTS = {"Qwen 2": "qwen2", "Llama 3": "llama3", "GPT-2": "gpt-2"}
SEQ_LEN = 256
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a GGUF file with a byte-level vocabulary")
    parser.add_argument("text", type=Path)
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--only", nargs="*", default=None, help="names of families")
    parser.add_argument("--side", choices=("library", "own"), help="measure one side of one case, print JSON")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cores", type=int, default=1)
    options = parser.parse_args()
    if options.side:
        side = _library if options.side == "library" else _own
        print(json.dumps(side(options.model, options.data, options.cores)))
        return 0
    rows, same = [], True
    with tempfile.TemporaryDirectory() as place:
        data = _write_data(Path(place), options.text, options.megabytes)
        for name in options.only or [*CUTS, "SentencePiece"]:
            folder = _write_tokenizer(Path(place) / name, name, options.model, options.text)
            for file in data:
                size = file.stat().st_size / 1e6
                library = _measured("library", folder, file, 1)
                one, two = (_measured("own", folder, file, cores) for cores in (1, 2))
                same = same and one["checksum"] == two["checksum"]
                rates = size / library["cpu"], size / one["cpu"]
                rows.append(
                    [
                        name, file.suffix[1:], f"{rates[0]:.2f}", f"{rates[1]:.2f}", f"{rates[1] / rates[0]:.2f}",
                        f"{one['seconds'] / two['seconds']:.2f}", f"{two['peak']:.0f}", f"{library['peak']:.0f}",
                    ]
                )  # fmt: skip
    head = ["tokenizer", "data", "library, MB/s", "own, MB/s", "ratio", "cores", "own peak, MB", "library peak, MB"]
    print(table(head, rows))
    print("one core and two wrote the same tokens" if same else "ONE CORE AND TWO WROTE OTHER TOKENS")
    return 0 if same else 1


def _measured(side: str, folder: Path, data: Path, cores: int) -> dict[str, Any]:
    """One side in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.preparation",
        str(folder),
        "-",
        "--side",
        side,
        "--data",
        str(data),
        "--cores",
        str(cores),
    ]
    outcome = run(command, interval=0.02)
    return {**json.loads(outcome.output), "peak": outcome.rss_mb}


def _library(folder: Path, data: Path, _: int) -> dict[str, float]:
    import jinja2
    from tokenizers import Tokenizer

    core = Tokenizer.from_file(str(folder / "tokenizer.json"))
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE)
    began, tokens = time.process_time(), 0
    with open(data, encoding="utf-8") as file:
        if data.suffix == ".txt":
            while block := file.read(1 << 16):
                tokens += len(core.encode(block, add_special_tokens=False).ids)
        else:
            for line in file:
                text = template.render(messages=json.loads(line)["messages"], add_generation_prompt=False)
                tokens += len(core.encode(text, add_special_tokens=False).ids)
    return {"cpu": time.process_time() - began, "tokens": tokens}


def _own(folder: Path, data: Path, cores: int) -> dict[str, Any]:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    before = time.process_time()
    load_tokenizer(folder)
    loading = time.process_time() - before
    with tempfile.TemporaryDirectory() as place:
        began = _cpu()
        report = prepare(folder, Source.of(data, long="cut"), Path(place) / "tokens", SEQ_LEN)
        tokens = TokenFile(Path(place) / "tokens")
        # the children's time is known when they have ended
        return {
            "cpu": _cpu() - began - loading,
            "seconds": report.seconds - loading,
            "tokens": tokens.n_tokens,
            "checksum": [zlib.crc32(part.tobytes()) for part in (tokens.tokens, tokens.supervised, tokens.offsets)],
        }


def _cpu() -> float:
    return sum(os.times()[:4])


def _write_data(place: Path, source: Path, megabytes: float) -> list[Path]:
    """The text as it is, and as conversations of its sentences, each repeated until there is enough."""
    text = source.read_text(encoding="utf-8")
    with open(place / "data.txt", "w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1e6:
            file.write(text)
    with open(place / "data.jsonl", "w", encoding="utf-8") as file:
        for conversation in _conversations(text):
            file.write(json.dumps({"messages": conversation}, ensure_ascii=False) + "\n")
            if file.tell() > megabytes * 1e6:
                break
    return [place / "data.txt", place / "data.jsonl"]


def _conversations(text: str) -> Iterator[list[dict[str, str]]]:
    sentences = [s.strip() + "." for s in text.replace("\n", " ").split(" . ") if 20 < len(s) < 600]
    random_ = random.Random(0)
    while True:
        turns = []
        for _ in range(random_.choice([1, 1, 1, 2])):
            for role, most in (("user", 2), ("assistant", 4)):
                said = " ".join(random_.choices(sentences, k=random_.randint(1, most)))
                turns.append({"role": role, "content": said})
        yield turns


def _write_tokenizer(folder: Path, name: str, model: Path, text: Path) -> Path:
    from tokenizers import AddedToken

    core = _byte_level(CUTS[name], model) if name in CUTS else _sentencepiece(text)
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|im_start|>", "<|im_end|>")])
    folder.mkdir()
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    return folder


def _byte_level(name: str, model: Path) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    file = GGUFFile(model)
    vocabulary = {str(token): i for i, token in enumerate(file.array("tokenizer.ggml.tokens"))}
    merges = [tuple(str(merge).split(" ")) for merge in file.array("tokenizer.ggml.merges")]
    known = PRE_TOKENIZERS[name]
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=known.whole_words))
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(known.cuts[0]), "isolated"), letters])
    core.decoder = decoders.ByteLevel()
    if known.composes:
        core.normalizer = normalizers.NFC()
    return core


def _sentencepiece(text: Path) -> Any:
    """As Llama 2's and Gemma's: pieces and bytes, spaces as marks, no cuts; 32,000 at most."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    learner.train([str(text)], trainers.BpeTrainer(vocab_size=32_000 - 257, show_progress=False))
    learned = json.loads(learner.to_str())["model"]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(learned["vocab"], key=learned["vocab"].get)]
    merges = [tuple(merge) for merge in learned["merges"]]
    core = Tokenizer(
        models.BPE({t: i for i, t in enumerate(names)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return core


if __name__ == "__main__":
    sys.exit(main())
