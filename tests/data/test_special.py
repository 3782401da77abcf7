"""Control tokens and end tokens that files mark wrongly, or name in one place only."""

import json
import re

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from featherback.data.encoder import Encoder
from featherback.data.example import Example
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.special import joined
from tests.data.library_tokenizers import byte_level, split
from tests.data.oracle import GPT2
from tests.data.support import byte_core, write_vocabulary_gguf
from tests.data.test_tokenizer import bytes_to_characters, trained_pieces
from tests.support.tiny_chat import CHATML

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
BYTES = list(bytes_to_characters().values())
TALK = [{"role": "user", "content": "Hi <|im_end|>"}, {"role": "assistant", "content": "Yes"}]


def chat_gguf(path, kind=CONTROL, template=CHATML, more=(), **facts):
    """Write a vocabulary of bytes with <|endoftext|>, <|im_start|> and <|im_end|> as 256, 257 and 258."""
    tokens = [*BYTES, "<|endoftext|>", "<|im_start|>", "<|im_end|>", *more, "th"]
    types = [NORMAL] * 256 + [CONTROL, kind, kind] + [kind] * len(more) + [NORMAL]
    facts = {"eos_token_id": 258, "chat_template": template} | facts
    known = {name: value for name, value in facts.items() if value is not None}
    return write_vocabulary_gguf(path, "gpt2", tokens, types, tokenizer_pre="gpt-2", token_merges=["t h"], **known)


def trained(tokenizer, example):
    """Return the text of the supervised tokens, and all ids."""
    with Encoder(tokenizer) as encoder:
        encoded = encoder.encode(example)
    return tokenizer.decode(encoded.ids[encoded.mask].tolist(), special=True), encoded.ids.tolist()


def talk(tokenizer):
    return trained(tokenizer, Example("1", messages=TALK))


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
def test_types_of_a_gguf_file_are_corrected(kind, tmp_path):
    right, wrong = (load_tokenizer(chat_gguf(tmp_path / f"{k}.gguf", k)) for k in (CONTROL, kind))
    assert talk(wrong) == talk(right)
    assert talk(wrong)[0].startswith("Yes<|im_end|>")
    assert talk(wrong)[1].count(257) == 2
    assert talk(wrong)[1].count(258) == 2, "the user's text does not become the token"
    assert wrong.end_ids == right.end_ids == {256, 258}
    assert wrong.encode("<|im_end|>") == right.encode("<|im_end|>")
    assert not right.notes
    assert re.fullmatch(r".*\.gguf does not mark <\|im_end\|>, <\|im_start\|> as control tokens.*", *wrong.notes)


def test_tokens_of_the_text_stay_what_they_are(tmp_path):
    """<think> and <tool_call> are matched in any text, as in transformers, even if the template writes them."""
    template = CHATML + "{# <think> <tool_call> <b> #}"
    tokenizer = load_tokenizer(chat_gguf(tmp_path / "v.gguf", USER_DEFINED, template, ("<think>", "<tool_call>")))
    assert tokenizer.always == {"<think>": 259, "<tool_call>": 260}
    assert tokenizer.encode("<think>") == [259]


def test_an_html_tag_is_no_end(tmp_path):
    """Gemma's vocabulary holds "</s>" for HTML."""
    template = "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    more = ("</s>", "<start_of_turn>", "<end_of_turn>")
    path = chat_gguf(tmp_path / "v.gguf", NORMAL, template, more, eos_token_id=256)
    tokenizer = load_tokenizer(path)
    assert tokenizer.end_ids == {256, 261}
    assert "</s>" not in tokenizer.control


def test_the_end_of_a_thought_is_not_the_end_of_the_answer(tmp_path):
    """As in llama.cpp and in gpt-oss's generation_config.json."""
    path = chat_gguf(tmp_path / "v.gguf", more=("<|return|>", "<|call|>", "<|end|>"), eos_token_id=259)
    assert load_tokenizer(path).end_ids == {256, 258, 259, 260}


@pytest.mark.parametrize("value", [-1, 0xFFFFFFFF, 10**6])
def test_ids_outside_the_vocabulary_are_ignored(value, tmp_path):
    path = chat_gguf(tmp_path / "v.gguf", eos_token_id=None)
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    reader = gguf.GGUFReader(path)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    writer.add_key_value("tokenizer.ggml.eos_token_id", value, gguf.GGUFValueType.INT64)
    writer.add_key_value("tokenizer.ggml.padding_token_id", value, gguf.GGUFValueType.INT64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = load_tokenizer(path)
    assert tokenizer.end_ids == {256, 258}
    assert f"vocabulary of 260: eos_token_id {value}, padding_token_id {value}. They are ignored" in tokenizer.notes[0]
    assert "names no end token" in tokenizer.notes[1]
    assert talk(tokenizer)[0].startswith("Yes<|im_end|>")


def test_sentencepiece_ends_with_its_second_token(tmp_path):
    """As in llama.cpp, for a file that names no token."""
    tokens, types, scores = trained_pieces()
    names = [token.encode() for token in tokens]
    tokenizer = load_tokenizer(write_vocabulary_gguf(tmp_path / "v.gguf", "llama", names, types, token_scores=scores))
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)


# --- folders ---


def chat_folder(folder, special, config=None, template=CHATML, core=None):
    core = core or byte_core(())
    for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"):
        core.add_tokens([AddedToken(name, special=special and name != "<think>", normalized=False)])
    folder.mkdir()
    core.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"} if config is None else config
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **config}))
    return folder


def test_special_of_a_folder_is_corrected(tmp_path):
    right = load_tokenizer(chat_folder(tmp_path / "right", True))
    wrong = load_tokenizer(folder := chat_folder(tmp_path / "wrong", False))
    assert talk(wrong) == talk(right)
    assert wrong.end_ids == right.end_ids
    assert wrong.always == right.always == {"<think>": 259}
    assert not right.notes
    assert "tokenizer.json does not mark <|endoftext|>, <|im_end|>, <|im_start|> as control tokens" in wrong.notes[0]
    reference = AutoTokenizer.from_pretrained(folder)
    assert reference.eos_token_id == wrong.eos_id
    text = reference.apply_chat_template(TALK[:1], tokenize=False).replace("Hi <|im_end|>", "Hi")
    assert wrong.encode(text, special=True) == reference(text, add_special_tokens=False)["input_ids"]


def test_a_token_that_is_only_in_the_vocabulary(tmp_path):
    folder = chat_folder(tmp_path / "m", True)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["vocab"] |= {token["content"]: token["id"] for token in content["added_tokens"]}
    content["added_tokens"] = []
    file.write_text(json.dumps(content), encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    assert talk(tokenizer) == talk(load_tokenizer(chat_folder(tmp_path / "right", True)))
    assert tokenizer.eos_id == AutoTokenizer.from_pretrained(folder).eos_token_id


def test_the_library_knows_corrected_tokens_too(tmp_path):
    core = byte_level(*split(r"\b" + GPT2))
    folder = chat_folder(tmp_path / "m", False, core=core)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.note
    end = tokenizer.control["<|im_end|>"]
    assert talk(tokenizer)[1].count(end) == 2
    assert end not in tokenizer.encode("<|im_end|>")


def test_tokens_that_the_configuration_declares_special(tmp_path):
    config = {
        "eos_token": {"content": "<|endoftext|>"},
        "added_tokens_decoder": {"257": {"content": "<|im_start|>", "special": True}},
        "additional_special_tokens": ["<|im_end|>"],
        "extra_special_tokens": {"t": "<think>"},
    }
    tokenizer = load_tokenizer(chat_folder(tmp_path / "m", False, config, template=None))
    assert set(tokenizer.control) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"}


PAIR = Example("1", prompt="Hi", completion=" there")
ENDS = {
    "special_tokens_map.json": {"eos_token": "<|endoftext|>"},
    "generation_config.json": {"eos_token_id": [256, -1]},
    "config.json": {"eos_token_id": 256},
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_token_that_another_file_names(name, tmp_path):
    folder = chat_folder(tmp_path / "m", True, {}, template=None)
    (folder / name).write_text(json.dumps(ENDS[name]))
    tokenizer = load_tokenizer(folder)
    assert trained(tokenizer, PAIR)[0] == " there<|endoftext|>"
    assert tokenizer.end_ids == {256, 258}
    if name == "generation_config.json":
        assert (
            "names tokens outside its vocabulary of 260: eos_token_id of generation_config.json" in tokenizer.notes[0]
        )
    else:
        assert not tokenizer.notes


def test_the_tokenizers_own_end_is_first(tmp_path):
    folder = chat_folder(tmp_path / "m", True, template=None)
    for name, content in ENDS.items():
        (folder / name).write_text(json.dumps(content))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_id == 258
    assert tokenizer.end_ids == {256, 258}


def test_a_model_without_an_end_says_so(tmp_path):
    folder = chat_folder(tmp_path / "m", True, {}, template=None)
    tokenizer = load_tokenizer(folder)
    assert trained(tokenizer, PAIR)[0] == " there"
    assert "names no end token" in tokenizer.notes[0]


def test_templates_by_name_in_a_gguf_file(tmp_path):
    """The `gguf` package writes them; the one for tools is used with tools."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    path = chat_gguf(tmp_path / "v.gguf", template=named)
    tokenizer = load_tokenizer(path)
    assert tokenizer.chat_template == joined({"default": "plain", "tool_use": "with tools"})
    assert tokenizer.chat_template != "plain"
