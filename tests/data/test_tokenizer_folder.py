"""Tokenizers of Hugging Face folders give the same ids as the library."""

import json

import pytest
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Core

from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.special import joined
from featherback.errors import FeatherbackError
from tests.data.support import STRINGS
from tests.data.test_tokenizer import trained_bpe, trained_pieces

CONTROL = ["<s>", "</s>", "[INST]", "[/INST]"]
TEXTS = [*STRINGS, "a <s> b[INST] hi [/INST]  yo</s> [INST]x[/INST]\n y", "[INST]  z", " [/INST]", "<s> <s>"]


def sentencepiece_core():
    tokens, _, _ = trained_pieces()
    core = Core(models.BPE({t: i for i, t in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True))
    return core


def with_prepend():
    core = sentencepiece_core()
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return core


def with_metaspace(scheme):
    core = sentencepiece_core()
    core.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    return core


def byte_level(prefix):
    tokens, merges = trained_bpe()
    pairs = [tuple(merge.split(" ")) for merge in merges]
    core = Core(models.BPE({t: i for i, t in enumerate(tokens)}, pairs))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=prefix)]
    )
    return core


VARIANTS = {
    "prepend": with_prepend,
    "metaspace first": lambda: with_metaspace("first"),
    "metaspace always": lambda: with_metaspace("always"),
    "metaspace never": lambda: with_metaspace("never"),
    "byte-level": lambda: byte_level(False),
}


def save(core, folder, config=None, bos=True, wide=()):
    core.add_special_tokens([AddedToken(name, special=True, normalized=False, rstrip=name in wide) for name in CONTROL])
    if bos:
        start = ("<s>", core.token_to_id("<s>"))
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[start])
    folder.mkdir(exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    default = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "T"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config or default))
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("wide", [(), ("[/INST]",)])
def test_same_ids_as_the_library(variant, wide, tmp_path):
    folder = save(VARIANTS[variant](), tmp_path, wide=wide)
    reference = Core.from_file(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    for special in (True, False):
        reference.encode_special_tokens = not special
        for text in TEXTS:
            expected = reference.encode(text, add_special_tokens=False).ids
            assert tokenizer.encode(text, special=special) == expected, text
    reference.encode_special_tokens = True
    assert tokenizer.encode("cat", bos=True) == reference.encode("cat").ids


def test_facts(tmp_path):
    tokenizer = load_tokenizer(save(with_prepend(), tmp_path))
    start, end = (tokenizer.control[name] for name in ("<s>", "</s>"))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (start, end, True)
    assert tokenizer.end_ids == {end}
    assert tokenizer.chat_template == "T"
    assert tokenizer.special_names == {"bos_token": "<s>", "eos_token": "</s>"}


def test_facts_from_other_files(tmp_path):
    named = [{"name": "tool", "template": "X"}, {"name": "default", "template": "D"}]
    folder = save(with_prepend(), tmp_path, {"chat_template": named, "eos_token": "</s>"}, bos=False)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    tokenizer = load_tokenizer(folder)
    assert tokenizer.chat_template == "D"
    assert not tokenizer.add_bos
    assert tokenizer.end_ids == {7, 9, tokenizer.eos_id}
    (folder / "chat_template.jinja").write_text("from the file")
    assert load_tokenizer(folder).chat_template == "from the file"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert load_tokenizer(folder).chat_template == joined({"default": "from the file", "tool_use": "with tools"})


def test_bad_folders(tmp_path):
    with pytest.raises(FeatherbackError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FeatherbackError, match="not a readable tokenizer"):
        load_tokenizer(tmp_path)
    save(with_prepend(), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(FeatherbackError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "a\ud800"}}))
    with pytest.raises(FeatherbackError, match=r"tokenizer_config\.json has half a surrogate pair in its eos_token"):
        load_tokenizer(tmp_path)
