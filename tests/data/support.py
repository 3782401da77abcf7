"""A tiny byte-level tokenizer with the control tokens of several model families."""

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Core

from featherback._native import PLAIN
from featherback.data.tokenizers.library import LibraryCore
from featherback.data.tokenizers.special import END_TOKENS
from featherback.data.tokenizers.tokenizer import Tokenizer

CONTROL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|eot_id|>"),
)


def encode_plain(core, text):
    """Ids and character ranges of a whole text, as lists."""
    ids, offsets = core.encode(text, [(PLAIN, 0, len(text))], True)
    return ids.tolist(), offsets.tolist()


JOINED = [("Ċ", "Ċ"), *(((a, b)) for a in "Ċ>]:" for b in "ĊĠ" if a != b), *(("Ġ", b) for b in "HPSNO")]
"""Pairs of characters across which real tokenizers have tokens: line breaks, and a space with a letter."""


def byte_core(control=CONTROL, merges=()):
    """The library's tokenizer with one token per byte, then those of `merges`, then the control tokens."""
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    core = Core(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=list(merges)))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in control])
    return core


def byte_tokenizer(template=None, bos=None, eos="<|im_end|>", add_bos=False, control=CONTROL, merges=(), **names):
    """One token per byte and per pair of `merges`, then the control tokens. `names`: variables of the template."""
    core = byte_core(control, merges)
    control = {name: core.token_to_id(name) for name in control}
    names |= {"bos_token": bos, "eos_token": eos}
    return Tokenizer(
        core=LibraryCore(core, "the tests"),
        control=control,
        add_bos=add_bos,
        bos_id=control[bos] if bos else None,
        eos_id=control[eos] if eos else None,
        end_ids=frozenset(i for name, i in control.items() if name in END_TOKENS),
        chat_template=template,
        special_names={key: name for key, name in names.items() if name},
    )


def write_vocabulary_gguf(path, model, tokens, types, **facts):
    """A GGUF file with a tokenizer and no tensors, written by the `gguf` package."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name, value in facts.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


STRINGS = [
    *("", "a", " ", "  ", "\n", "\n\n", " \n ", "\t", "Hello world", " hello", "  hello", "hello  ", "\x00\x7f"),
    *("I'm you're they'LL He'S don't 'tis 's 'S", "'re' 'll've", "I\u2019m \u2026\u2014"),
    *("1234567890 12 345 6789", "३४५ ½ ² Ⅷ 12½", "x²+y²=z²", "Pi is 3.14159, e is 2.71828"),
    *("naïve café Ångström", "日本語のテキスト。", "한국어 문장", "Привет, мир!", "العربية עברית", "ไทย हिन्दी"),
    *("👍🏽 👨\u200d👩\u200d👧 🇩🇪 ❤️", "a\u00a0b\u2003c\u200bd\u3000e\u2028f\u0085g", "\ufeffbom", "ﬁ ﬂ ﷺ"),
    "def f(x):\n    return x**2  # square\n\n\tif x:\n\t\tpass\r\n\r\nend",
    *("http://example.com/?q=1&b=%20", "C:\\Users\\x", "$$$ ### --- ___ ...", "foo_bar fooBar FOO-BAR"),
    *("<|im_end|>", "<|im_start|>user\nhi<|im_end|>\n", "<s>[INST] hi [/INST] yo</s>", "<unk> <0x0A> <0xFF>"),
    *(" a b  c   d    e     f", "\n\n\n   \n\t\n x", "a" * 99, "ab " * 33, " " * 50, "▁▁ literal ▁", "word\n word"),
]
