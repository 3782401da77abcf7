"""Small tokenizers of the `tokenizers` library in the forms found in models' files."""

import functools
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.data.oracle import GPT2, GPT4O, LLAMA3, QWEN2, QWEN35
from tests.data.support import STRINGS
from tests.data.torture import TORTURE

CONTROL = ["<|bos|>", "<|eos|>", "[INST]"]
ALWAYS = ["<tool>", "\n\n\n", "  \t"]


@functools.lru_cache
def trained(metaspace):
    """Train a byte-pair encoding on the torture text and return its tokens and merges."""
    core = Tokenizer(models.BPE())
    if metaspace:
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    else:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = [] if metaspace else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False, limit_alphabet=400)
    core.train_from_iterator([*TORTURE, *STRINGS] * 2, trainer)
    model = json.loads(core.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]


def byte_level(*steps, normalizer=None, **options):
    tokens, merges = trained(False)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    core = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, pairs, **options))
    core.pre_tokenizer = pre_tokenizers.Sequence(list(steps)) if len(steps) > 1 else steps[0]
    core.decoder = decoders.ByteLevel()
    if normalizer is not None:
        core.normalizer = normalizer
    return core


def split(expression):
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Split(Regex(expression), "isolated"), letters


def pieces(strip, with_bytes=True):
    tokens, merges = trained(True)
    names = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)] * with_bytes, *tokens]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    core = Tokenizer(
        models.BPE(
            {t: i for i, t in enumerate(names)}, pairs, unk_token="<unk>", byte_fallback=with_bytes, fuse_unk=True
        )
    )
    last = [decoders.Strip(" ", 1, 0)] * strip
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    return core


def llama2():
    core = pieces(True)
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return core


def metaspace(scheme):
    core = pieces(True)
    core.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split=False)
    return core


def gemma(with_bytes=True):
    core = pieces(False, with_bytes)
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return core


FAMILIES = {
    "gpt-2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": lambda: byte_level(pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "qwen35": lambda: byte_level(*split(QWEN35), normalizer=normalizers.NFC()),
    "qwen2": lambda: byte_level(*split(QWEN2), normalizer=normalizers.NFC()),
    "llama3": lambda: byte_level(*split(LLAMA3), ignore_merges=True),
    "gpt-oss": lambda: byte_level(*split(GPT4O)),
    "one expression": lambda: byte_level(*split(GPT2)),
    "spaced bytes": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "llama2": llama2,
    "metaspace first": lambda: metaspace("first"),
    "metaspace always": lambda: metaspace("always"),
    "metaspace never": lambda: metaspace("never"),
    "gemma": gemma,
    "without bytes": lambda: gemma(with_bytes=False),
}


def save(core, folder, always=(), **added):
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in CONTROL])
    core.add_tokens([AddedToken(name, normalized=False, **added) for name in always])
    core.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", core.token_to_id("<|bos|>"))]
    )
    folder.mkdir(exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<|bos|>", "eos_token": "<|eos|>"}')
    return folder
