"""Preparation: the token file, the counts, the errors and the separate process."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from featherback.core.decode import encode
from featherback.data import encoder
from featherback.data.containers import text as text_files
from featherback.data.duplicates import DuplicateCounter, hash_part
from featherback.data.encoder import Encoder
from featherback.data.example import Example
from featherback.data.inputs import Input
from featherback.data.launch import prepare_in_subprocess
from featherback.data.prepare import main, prepare
from featherback.data.preview import preview
from featherback.data.report import PrepareReport
from featherback.data.source import Source
from featherback.data.token_file import TokenFile
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.errors import FeatherbackError
from tests.data.support import byte_tokenizer
from tests.data.test_tokenizer import byte_level_gguf


def chat(question, answer):
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns}


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def trained(tokenizer, file, i):
    """The supervised tokens of sequence i as text."""
    tokens, mask = file.seq(i)
    return tokenizer.decode(tokens[mask], special=True)


@pytest.fixture(scope="module")
def tokenizer(smollm2_path):
    return load_tokenizer(smollm2_path)


@pytest.fixture
def base_model(tmp_path):
    """A model without a chat template."""
    return byte_level_gguf(tmp_path / "base.gguf", "gpt-2")


def test_the_three_shapes_with_a_chat_model(smollm2_path, tokenizer, tmp_path):
    rows = [chat("Capital of France?", "Paris."), {"prompt": "2+2?", "completion": "4"}, {"text": "Once upon a time"}]
    report = prepare(smollm2_path, write(tmp_path / "d.jsonl", *rows), tmp_path / "d.tok", 64)
    file = TokenFile(tmp_path / "d.tok")
    assert trained(tokenizer, file, 0) == "Paris.<|im_end|>"
    assert trained(tokenizer, file, 1) == "4<|im_end|>"
    assert trained(tokenizer, file, 2) == "Once upon a time<|im_end|>"
    whole = tokenizer.decode(file.seq(1)[0], special=True)
    assert whole.endswith("<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n")
    assert report.shapes == {"messages": 1, "prompt_completion": 1, "text": 1}
    assert (report.examples, report.sequences, report.truncated, report.dropped) == (3, 3, 0, 0)
    assert (report.tokens, report.supervised_tokens) == (file.n_tokens, file.n_targets)
    assert sum(report.lengths.values()) == 3
    assert report.notes() == []
    assert file.metadata["seq_len"] == 64
    assert file.metadata["n_vocab"] == 49152


def test_prompt_and_completion_without_a_chat_template(base_model, tmp_path):
    data = write(tmp_path / "d.jsonl", {"prompt": "the cat", "completion": " sat"}, {"prompt": "", "completion": "on"})
    prepare(base_model, data, tmp_path / "d.tok", 64)
    tokenizer, file = load_tokenizer(base_model), TokenFile(tmp_path / "d.tok")
    assert trained(tokenizer, file, 0) == " sat<|end|>"
    # The prompt has the same tokens as in generation.
    assert file.seq(0)[0].tolist() == [*tokenizer.encode("the cat"), *tokenizer.encode(" sat"), tokenizer.eos_id]
    assert tokenizer.decode(file.seq(1)[0], special=True) == "on<|end|>"


def test_text_is_cut_into_sequences(base_model, tmp_path):
    text = "the cat sat on the mat, and " * 40
    tokenizer = load_tokenizer(base_model)
    ids = [*tokenizer.encode(text), tokenizer.eos_id]
    report = prepare(base_model, write(tmp_path / "d.jsonl", {"text": text}), tmp_path / "d.tok", 32)
    file = TokenFile(tmp_path / "d.tok")
    assert [i for n in range(len(file)) for i in file.seq(n)[0].tolist()] == ids
    assert all(file.seq(n)[0].size == 32 for n in range(len(file) - 1))
    assert file.n_targets == len(ids) - len(file)
    assert report.longest == len(ids)
    assert report.truncated == 0


def test_text_file_in_blocks_has_the_tokens_of_the_whole(smollm2_path, base_model, tmp_path, monkeypatch):
    monkeypatch.setattr(encoder, "_BLOCK", 50)
    monkeypatch.setattr(encoder, "_BLOCK_AT_MOST", 10**6)
    odd = "\n\n\n  odd\n \n spaces \n\tand\n\n tabs\n like = in WikiText \n \n = = \nend \n" * 9
    text = Path(__file__).read_text(encoding="utf-8") + odd
    (tmp_path / "d.txt").write_text(text, encoding="utf-8")
    for model in (smollm2_path, base_model):
        tokenizer = load_tokenizer(model)
        report = prepare(model, tmp_path / "d.txt", tmp_path / "d.tok", 100)
        file = TokenFile(tmp_path / "d.tok")
        assert file.tokens.tolist() == [*tokenizer.encode(text), tokenizer.eos_id]
        assert report.shapes == {"text": 1}
        assert len(list(encoder._blocks(text.splitlines(keepends=True)))) > 20


def test_a_long_line_in_blocks_has_the_tokens_of_the_whole(smollm2_path, base_model, tmp_path, monkeypatch):
    monkeypatch.setattr(encoder, "_BLOCK", 50)
    monkeypatch.setattr(encoder, "_BLOCK_AT_MOST", 10**6)
    monkeypatch.setattr(text_files, "_PIECE", 30)
    text = " ".join(Path(__file__).read_text(encoding="utf-8").split("\n")) + "  two  ,é \r  日本 語\r" * 9
    (tmp_path / "d.txt").write_text(text, encoding="utf-8", newline="")
    for model in (smollm2_path, base_model):
        tokenizer = load_tokenizer(model)
        prepare(model, tmp_path / "d.txt", tmp_path / "d.tok", 100)
        assert TokenFile(tmp_path / "d.tok").tokens.tolist() == [*tokenizer.encode(text), tokenizer.eos_id]
    assert max(map(len, encoder._blocks(text_files.read_text(Input(tmp_path / "d.txt"))))) < 500


@pytest.mark.parametrize("piece", ["\tno good place\n", "不要写", "aaa"])
def test_blocks_are_bounded(piece, monkeypatch):
    monkeypatch.setattr(encoder, "_BLOCK", 10)
    monkeypatch.setattr(encoder, "_BLOCK_AT_MOST", 40)
    pieces = [piece] * 30
    blocks = list(encoder._blocks(pieces))
    assert "".join(blocks) == "".join(pieces)
    assert max(map(len, blocks)) < 40 + 2 * len(piece)


def test_a_long_text_of_an_example_comes_in_pieces():
    text = "a" * 200_000 + "\n\nb" + "\n"
    pieces = encoder._PIECE.findall(text)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) == 1 << 16


def test_long_examples_are_cut_counted_and_dropped(smollm2_path, tokenizer, tmp_path):
    rows = [
        chat("a", "b"),
        chat("a", "word " * 200),
        chat("word " * 200, "b"),
        {"messages": chat("a", "b")["messages"][:1]},
    ]
    data = write(tmp_path / "d.jsonl", *rows)
    report = prepare(smollm2_path, Source.of(data, long="cut"), tmp_path / "d.tok", 64)
    file = TokenFile(tmp_path / "d.tok")
    assert [file.seq(i)[0].size for i in range(len(file))][1] == 64
    assert (report.examples, report.sequences, report.truncated, report.dropped) == (4, 2, 2, 2)
    assert report.truncated_tokens == sum(len(encode_row(tokenizer, row)) - 64 for row in rows[1:3])
    assert report.first_truncated == f"{data}, line 2"
    assert report.first_dropped == f"{data}, line 3"
    cut, dropped = report.notes()
    assert cut.startswith("2 of 4 examples are longer than 64 tokens")
    assert dropped.startswith("2 of 4 examples have no supervised token")


def test_long_examples_are_refused_or_kept_whole(smollm2_path, tmp_path):
    rows = [chat("a", "b"), chat("a", "word " * 200), chat("word " * 300, "b"), {"text": "word " * 900}]
    data = write(tmp_path / "d.jsonl", *rows)
    with pytest.raises(FeatherbackError) as refused:
        prepare(smollm2_path, data, tmp_path / "d.tok", 64)
    assert not (tmp_path / "d.tok").exists()
    report = prepare(smollm2_path, Source.of(data, long="keep"), tmp_path / "d.tok", 64)
    assert str(refused.value) == (
        f"2 of 4 examples in {data} (first: {data}, line 2) are longer than 64 tokens (the longest has "
        f"{report.longest_chat}): --seq-len {report.longest_chat} keeps them whole; --cut cuts them at the end."
    )
    file = TokenFile(tmp_path / "d.tok")
    assert report.longest > 900
    assert file.max_length == report.longest_chat > 300
    assert file.lengths(np.arange(len(file)))[3:].max() == 64  # text is still split into sequences
    assert (report.examples, report.truncated) == (4, 0)


def test_what_is_enough_grows_with_what_is_kept_whole(smollm2_path, tmp_path):
    """Longer sequences need more tokens per batch."""
    data = write(tmp_path / "d.jsonl", chat("a", "word " * 300), *[chat(f"Say {n}", "b") for n in range(200)])
    part = prepare(smollm2_path, Source.of(data, long="keep"), tmp_path / "d.tok", 64, enough=640)
    assert part.enough == 10 * part.longest
    assert part.enough <= part.tokens < part.enough + 64


def test_copies_and_empty_answers_are_told(smollm2_path, tmp_path):
    rows = [chat("a", "b"), chat("a", "c"), chat("a", "b"), chat("a", " "), {"text": "x y"}, {"text": "x y"}]
    report = prepare(smollm2_path, write(tmp_path / "d.jsonl", *rows), tmp_path / "d.tok", 64)
    assert (report.duplicates, report.empty_answers) == (2, 1)
    copies, empty = report.notes()
    assert copies.startswith("2 of 6 examples are copies of others")
    assert empty.startswith("1 of 6 examples have an empty answer")


def test_copies_are_estimated_where_there_are_very_many():
    seen = DuplicateCounter(most=100)
    for n in range(20_000):
        seen.add(hash_part(b"%d" % (n % 10_000)))
    assert not seen.is_exact
    assert len(seen._copies) <= 100
    assert 5_000 < seen.count < 20_000


def test_bad_records_are_left_out_and_listed(smollm2_path, tmp_path):
    good = [json.dumps(chat("a", str(n))) for n in range(3)]
    lines = [good[0], "{", good[1], json.dumps(chat("a", "\ud800")), json.dumps({"q": 1}), good[2]]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    with pytest.raises(FeatherbackError, match=r"line 2: not valid JSON.* add --skip-bad to skip such examples\."):
        prepare(smollm2_path, tmp_path / "d.jsonl", tmp_path / "d.tok", 64)
    report = prepare(smollm2_path, Source.of(tmp_path / "d.jsonl", skip_bad=True), tmp_path / "d.tok", 64)
    assert (report.examples, report.skipped) == (3, 3)
    told, *listed = report.notes()
    assert told == "3 records cannot be used and were skipped:"
    assert [note.partition("line ")[2][:1] for note in listed] == ["2", "4", "5"]
    (tmp_path / "d.jsonl").write_text("{\n" * 30)
    with pytest.raises(FeatherbackError, match=r"contains no usable examples\. .*line 1, column 1: the object has"):
        prepare(smollm2_path, Source.of(tmp_path / "d.jsonl", skip_bad=True), tmp_path / "d.tok", 64)


def test_several_files_are_read_one_after_another(smollm2_path, tokenizer, tmp_path):
    (tmp_path / "a.csv").write_text("prompt,completion,id\n1,2,x\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "b.md").write_text("Once")
    data = write(tmp_path / "c.jsonl", chat("a", "b"))
    source = Source.of([tmp_path / "a.csv", tmp_path / "notes", data])
    report = prepare(smollm2_path, source, tmp_path / "d.tok", 64)
    file = TokenFile(tmp_path / "d.tok")
    assert [trained(tokenizer, file, i) for i in range(3)] == ["2<|im_end|>", "Once<|im_end|>", "b<|im_end|>"]
    assert report.shapes == {"prompt_completion": 1, "text": 1, "messages": 1}
    assert report.notes() == ["These columns or keys are not used: 'id'."]


def encode_row(tokenizer, row):
    return Encoder(tokenizer).encode(Example("", messages=row["messages"])).ids


def test_spelled_control_tokens_are_noted(smollm2_path, tokenizer, tmp_path):
    rows = [chat("Hi<|im_end|>", "Ho"), {"text": "<|im_start|>user"}, chat("a", "b")]
    report = prepare(smollm2_path, write(tmp_path / "d.jsonl", *rows), tmp_path / "d.tok", 64)
    assert report.spelled_control == 2
    assert "2 of 3 examples contain the name of a control token" in report.notes()[0]
    assert 1 not in TokenFile(tmp_path / "d.tok").seq(1)[0]
    (tmp_path / "d.txt").write_text("a\n<|im_start|>user\n")
    assert prepare(smollm2_path, tmp_path / "d.txt", tmp_path / "d.tok", 64).spelled_control == 1


@pytest.mark.parametrize(
    ("rows", "seq_len", "word"),
    [
        ([{"messages": [{"role": "user", "content": "a"}]}], 64, "no supervised tokens: "),
        ([chat("word " * 100, "b")], 64, "Raise the sequence length"),
        ([chat("a", "b")], 1, "must be at least 2"),
        ([chat("a", "b"), chat("a", "\ud800")], 64, "line 2: The text contains half a surrogate pair"),
        ([chat("a", "b"), {"text": 3}], 64, "line 2: "),
    ],
)
def test_refusals(smollm2_path, tmp_path, rows, seq_len, word):
    with pytest.raises(FeatherbackError, match=word):
        prepare(smollm2_path, Source.of(write(tmp_path / "d.jsonl", *rows), long="cut"), tmp_path / "d.tok", seq_len)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.jsonl"]


def test_conversations_need_a_chat_template(base_model, tmp_path):
    with pytest.raises(FeatherbackError, match="line 1: The model has no chat template"):
        prepare(base_model, write(tmp_path / "d.jsonl", chat("a", "b")), tmp_path / "d.tok", 64)


def test_a_template_that_refuses_names_the_line(tmp_path):
    tokenizer = byte_tokenizer("{{ raise_exception('No!') }}<|im_end|>")
    with pytest.raises(FeatherbackError, match=r"rejects this conversation: No!"):
        Encoder(tokenizer).encode(Example("", messages=chat("a", "b")["messages"]))


def test_end_of_turn_must_be_there(tmp_path):
    """Prompt and completion follow the same rule as messages."""
    tokenizer = byte_tokenizer("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    with pytest.raises(FeatherbackError, match="no end-of-turn token"):
        Encoder(tokenizer).encode(Example("", prompt="a", completion="b"))


def test_reading_ends_where_there_is_enough(smollm2_path, tmp_path):
    """The tokens are a prefix of all tokens, and a note says where reading stopped."""
    rows = [chat(f"Say {n}", "word " * (n % 7)) for n in range(200)]
    data = write(tmp_path / "d.jsonl", *rows)
    whole = prepare(smollm2_path, data, tmp_path / "whole.tok", 64)
    part = prepare(smollm2_path, data, tmp_path / "part.tok", 64, enough=1000)
    before, after = TokenFile(tmp_path / "part.tok"), TokenFile(tmp_path / "whole.tok")
    assert 1000 <= before.n_tokens < 1064
    assert before.tokens.tolist() == after.tokens[: before.n_tokens].tolist()
    assert part.examples == len(before) + part.dropped
    assert part.read_to == f"{data}, line {part.examples}"
    assert any(part.read_to in note for note in part.notes())
    assert whole.read_to is None
    assert prepare(smollm2_path, data, tmp_path / "all.tok", 64, enough=10**9).read_to is None


def test_a_text_file_is_read_as_far_as_needed(base_model, tmp_path):
    (tmp_path / "d.txt").write_text("the cat sat on the mat\n" * 50_000)
    report = prepare(base_model, tmp_path / "d.txt", tmp_path / "d.tok", 32, enough=5000)
    assert 5000 <= report.tokens < 250_000
    assert report.read_to is not None
    assert report.tokens % 32 == 0


def test_what_is_wrong_is_raised_in_its_turn(smollm2_path, tmp_path):
    """Examples are read ahead.

    The error names the first bad one, and bad ones after the last needed one are ignored.
    """
    good = [json.dumps(chat("a", "b"))] * 5
    (tmp_path / "d.jsonl").write_text("\n".join([*good, json.dumps(chat("a", "\ud800")), "{", *good]))
    with pytest.raises(FeatherbackError, match="line 6: The text contains half"):
        prepare(smollm2_path, tmp_path / "d.jsonl", tmp_path / "d.tok", 64)
    report = prepare(smollm2_path, tmp_path / "d.jsonl", tmp_path / "d.tok", 64, enough=1)
    assert (report.examples, report.sequences) == (1, 1)


def test_a_folder_is_read_as_far_as_needed(base_model, tmp_path):
    (tmp_path / "notes").mkdir()
    for n in range(5):
        (tmp_path / "notes" / f"{n}.txt").write_text("the cat sat on the mat\n" * 9)
    whole = prepare(base_model, tmp_path / "notes", tmp_path / "d.tok", 32)
    part = prepare(base_model, tmp_path / "notes", tmp_path / "d.tok", 32, enough=2 * whole.tokens // 5)
    assert (whole.examples, part.examples, part.dropped) == (5, 2, 0)
    assert part.read_to == f"the start of {tmp_path / 'notes' / '2.txt'}"
    assert (whole.duplicates, whole.read_to) == (4, None)


@pytest.mark.parametrize("threads", [1, 3])
def test_tokens_do_not_depend_on_the_threads(smollm2_path, tokenizer, tmp_path, monkeypatch, threads):
    monkeypatch.setattr(encoder, "_BLOCK", 200)
    monkeypatch.setattr(encoder, "_cores", lambda: threads)
    texts = [Path(__file__).read_text(encoding="utf-8")[:n] for n in (1, 700, 5000, 9000)] * 3
    data = write(tmp_path / "d.jsonl", *[{"text": text} for text in texts])
    prepare(smollm2_path, data, tmp_path / "d.tok", 10**6)
    file = TokenFile(tmp_path / "d.tok")
    ends = [tokenizer.eos_id]
    assert [file.seq(i)[0].tolist() for i in range(len(file))] == [tokenizer.encode(t) + ends for t in texts]


# --- the process ---


def test_subprocess(smollm2_path, tmp_path):
    data = write(tmp_path / "d.jsonl", *[chat(f"Say {n}", str(n)) for n in range(20)])
    report = prepare_in_subprocess(smollm2_path, data, tmp_path / "sub.tok", 64)
    here = prepare(smollm2_path, data, tmp_path / "here.tok", 64)
    assert isinstance(report, PrepareReport)
    assert 20 < report.peak_rss_mb < 400
    for name in ("seconds", "peak_rss_mb"):
        setattr(here, name, getattr(report, name))
    assert report == here
    ours, theirs = TokenFile(tmp_path / "here.tok"), TokenFile(tmp_path / "sub.tok")
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.supervised.tolist() == theirs.supervised.tolist()


def test_error_crosses_as_one_sentence(smollm2_path, tmp_path):
    (tmp_path / "d.jsonl").write_text("{\n")
    with pytest.raises(FeatherbackError, match=r"d\.jsonl, line 1, column 1: the object has") as complaint:
        prepare_in_subprocess(smollm2_path, tmp_path / "d.jsonl", tmp_path / "d.tok", 64)
    assert "\n" not in str(complaint.value)


def test_crash_is_told(smollm2_path, tmp_path, monkeypatch):
    data = write(tmp_path / "d.jsonl", chat("a", "b"))
    (tmp_path / "jinja2.py").write_text("raise RuntimeError('planted')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(FeatherbackError, match="RuntimeError: planted"):
        prepare_in_subprocess(smollm2_path, data, tmp_path / "d.tok", 64)


def test_process_protocol(smollm2_path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("featherback.data.prepare.PROGRESS_SECONDS", 0.0)
    data = write(tmp_path / "d.jsonl", chat("a", "b"), chat("c", "d"))
    config = {
        "model": str(smollm2_path),
        "data": encode(Source.of(data)),
        "out": str(tmp_path / "d.tok"),
        "seq_len": 64,
    }
    assert main([json.dumps(config)]) == 0
    *progress, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [p["progress"]["examples"] for p in progress] == [1, 2]
    assert last["report"]["examples"] == 2
    assert main([json.dumps(config | {"data": encode(Source.of("nowhere.jsonl"))})]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "The data file nowhere.jsonl does not exist."


def test_launching_stays_light():
    code = (
        "import sys, featherback.data.launch, featherback.data.token_file, featherback.data.packing\n"
        "print(sorted({'tokenizers', 'jinja2', 'featherback.data.prepare'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no file size limit on this system")
def test_full_disk(smollm2_path, tmp_path):
    """A file size limit simulates a full disk. No files may remain."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from featherback.data.prepare import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    data = write(tmp_path / "d.jsonl", *[{"text": "word " * 2000}] * 30)
    config = {
        "model": str(smollm2_path),
        "data": encode(Source.of(data)),
        "out": str(tmp_path / "d.tok"),
        "seq_len": 64,
    }
    done = subprocess.run([sys.executable, "-c", code, json.dumps(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Cannot write the token file" in json.loads(done.stdout)["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["d.jsonl"]


# --- preview ---


def test_preview(smollm2_path, tmp_path):
    rows = [chat("Capital of France?", "Paris."), chat("é 👍", "日本 👍"), {"text": "Once"}]
    first, second, third = preview(smollm2_path, write(tmp_path / "d.jsonl", *rows), 64, count=5)
    (before, _), answer, after = first.runs
    assert before.endswith("Capital of France?<|im_end|>\n<|im_start|>assistant\n")
    assert (answer, after) == (("Paris.<|im_end|>", True), ("\n", False))
    assert second.runs[1] == ("日本 👍<|im_end|>", True)
    assert [text for text, supervised in third.runs if supervised] == ["<|im_end|>"]  # one token, then the end
    assert (first.truncated, third.n_tokens, third.n_supervised) == (0, 2, 1)
    [cut] = preview(smollm2_path, tmp_path / "d.jsonl", 16, start=1)
    assert cut.n_tokens == 16
    assert cut.truncated > 0
    (tmp_path / "d.txt").write_text("Once upon a time\n")
    [text] = preview(smollm2_path, tmp_path / "d.txt", 64)
    assert "".join(piece for piece, _ in text.runs) == "Once upon a time\n<|im_end|>"
