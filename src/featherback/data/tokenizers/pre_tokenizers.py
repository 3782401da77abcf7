"""Pre-tokenizers of GGUF files by name, as llama.cpp defines them (src/llama-vocab.cpp).

Regular expressions cut a text one after another (csrc/text/expression.h). Where llama.cpp adapts an expression to its
own engine, the expression of the model's tokenizer.json is used, so that tokens are the same as in transformers.
"""

from __future__ import annotations

from dataclasses import dataclass

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
DIGIT, DIGITS = r"\p{N}", r"\p{N}+"
_TRIPLE = r"\p{N}{1,3}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD, _MARKS, _SPACES = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+|\s+(?!\S)|\s+"
_NOT_CONTRACTED = f"{_WORD}|{DIGIT}|{_MARKS}|{_SPACES}"
_QWEN2 = f"{_CONTRACTION}|{_NOT_CONTRACTED}"
_LLAMA3 = f"{_CONTRACTION}|{_WORD}|{_TRIPLE}|{_MARKS}|{_SPACES}"
_QWEN35 = (
    f"{_CONTRACTION}|[^\\r\\n\\p{{L}}\\p{{N}}]?[\\p{{L}}\\p{{M}}]+|{DIGIT}"
    f"| ?[^\\s\\p{{L}}\\p{{M}}\\p{{N}}]+[\\r\\n]*|{_SPACES}"
)
_HALVES = "|".join(f"\\s{{{count}}}(?!\\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
_JAIS2 = f"{_CONTRACTION}|{_WORD}|{_TRIPLE}|{_MARKS}|\\s*[\\r\\n]+|{_HALVES}|\\s{{1}}"
_MINICPM5 = f"{_CONTRACTION}|{_WORD}|{DIGITS}|{_MARKS}|{_SPACES}"
_SEED_CODER = f"{_CONTRACTION}|{_WORD}|{DIGIT}| ?[^\\s\\p{{L}}\\p{{N}}\\r\\n]+|{_SPACES}"
_BAILING = (
    f"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{{L}}\\p{{N}}]?+\\p{{L}}+|{DIGIT}| ?[^\\s\\p{{L}}\\p{{N}}]++[\\r\\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_EXAONE_MOE = (
    f"{_CONTRACTION}|[^\\r\\n\\p{{L}}\\p{{N}}]?(?:\\p{{L}}\\p{{M}}*(?: \\p{{L}}\\p{{M}}*)*)+|{DIGIT}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)


def _cased(after: str, numbers: str) -> str:
    """Return an expression that cuts words before upper-case letters. `after` may follow a word."""
    first, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = f"{first}{upper}*{lower}+{after}|{first}{upper}+{lower}*{after}"
    return f"{words}|{numbers}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n/]*|{_SPACES}"


_GPT4O, _TEKKEN = _cased(f"{_CONTRACTION}?", _TRIPLE), _cased("", DIGIT)
_PUNCTUATION, _ASCII_TRIPLE = r"[\p{P}\$\+<=>\^~\|]+", "[0-9][0-9][0-9]"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_CHINESE, _EAST_ASIAN = "[一-龥\u3040-ゟ゠-ヿ]+", "[一-龥\u0800-一가-\ud7ff]+"
_DEEPSEEK3_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
)
_DEEPSEEK3 = (_TRIPLE, _CHINESE, f"{_DEEPSEEK3_WORDS}[\\r\\n]*|{_SPACES}")
_YOUTU_SCRIPTS = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-\u303f︰-﹏]+|[ㄅ-ㄯ]+|" + _CHINESE
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ"
    "-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰"
    "-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK = (
    r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", _EAST_ASIAN, DIGITS
)  # fmt: skip
_CHAMELEON = (
    *("<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )"),
    *(DIGIT, r"[\p{P}!-/:-@\[-`{-~]", GPT2),
)


@dataclass(frozen=True)
class PreTokenizer:
    """How text is cut before anything is merged, and what llama.cpp decides by the same name."""

    cuts: tuple[str, ...]
    whole_words: bool = False
    """A word that is a token becomes it, regardless of the merges."""
    add_bos: bool = False
    """The default of tokenizer.ggml.add_bos_token."""
    composes: bool = False
    """The model's own tokenizer composes characters first (NFC); llama.cpp does not."""


_TABLE = {
    # for a file without a name, too
    "default": PreTokenizer((_PUNCTUATION, GPT2, DIGITS, _ASCII_TRIPLE)),
    "gpt-2 phi-2 olmo mpt jais trillion granite-docling gigachat a.x-4.0 mellum exaone4 modern-bert jina-es jina-de "
    "jina-v2-es jina-v2-de": PreTokenizer((GPT2,)),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": PreTokenizer((DIGIT, GPT2)),
    "llama-bpe llama3 llama-v3 lfm2 falcon3 falcon-h1 pixtral midm-2.0 jina-v5-nano": PreTokenizer(
        (_LLAMA3,), whole_words=True, add_bos=True
    ),
    "smaug-bpe dbrx chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4 glm5": PreTokenizer((_LLAMA3,), whole_words=True),
    "qwen2 deepseek-r1-qwen megrez kormo f2llmv2": PreTokenizer((_QWEN2,), composes=True),
    "stablelm2 hunyuan solar-open grok-2": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,), composes=True),
    "ufakzeka": PreTokenizer((_NOT_CONTRACTED,)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((_GPT4O,)),
    "granite-embed-multi-97m": PreTokenizer((_GPT4O,), whole_words=True),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    "youtu": PreTokenizer((_YOUTU_SCRIPTS, _cased(f"{_CONTRACTION}?", DIGIT)), whole_words=True),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(_DEEPSEEK3),
    "spark2_5": PreTokenizer((_TRIPLE, _CHINESE, _DEEPSEEK3_WORDS + r"|[\r\n]|\s+(?!\S)|\s+", DIGIT)),
    "deepseek-llm": PreTokenizer(_DEEPSEEK),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, DIGIT)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, _ASCII_TRIPLE)),
    "bloom gpt3-finnish poro-chat": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, DIGIT)),
    "superbpe": PreTokenizer((DIGITS, r"(?=(\d{3})+(?!\d))")),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer((_BAILING,)),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "minicpm5": PreTokenizer((_TRIPLE, _MINICPM5), whole_words=True),
    "jais-2": PreTokenizer((_JAIS2,)),
    "chameleon": PreTokenizer(_CHAMELEON, add_bos=True),
}
PRE_TOKENIZERS = {name: pre for names, pre in _TABLE.items() for name in names.split()}
