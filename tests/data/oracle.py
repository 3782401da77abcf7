"""Build a tokenizer of the `tokenizers` library from a GGUF file, as the reference for the native encoder."""

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from featherback.data.tokenizers.gguf import BYTE, NORMAL, UNKNOWN
from featherback.data.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from featherback.engine.formats.gguf import GGUFFile

# The expressions as the models' makers published them.
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
QWEN2 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
QWEN35 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
GPT4O = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
    r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"""
    r"""|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)


def oracle(path):
    """Return the library's tokenizer for plain text, without special tokens or a leading space."""
    file = GGUFFile(path)
    tokens = [str(token) for token in file.array("tokenizer.ggml.tokens")]
    if file.metadata["tokenizer.ggml.model"] == "gpt2":
        merges = file.array("tokenizer.ggml.merges")
        return byte_level(tokens, merges, str(file.metadata.get("tokenizer.ggml.pre", "default")))
    types = file.array("tokenizer.ggml.token_type").tolist()
    return sentencepiece(tokens, types, file.array("tokenizer.ggml.scores").tolist())


def byte_level(tokens, merges, pre):
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    known = PRE_TOKENIZERS[pre]
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=known.whole_words))
    if known.composes:
        core.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in known.cuts]
    byte_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_letters])
    core.decoder = decoders.ByteLevel()
    return core


def sentencepiece(tokens, types, scores):
    """Every way to write a piece as two normal pieces is a merge, ranked by the piece's score. (Where one piece can be
    made in two overlapping ways, SentencePiece takes the leftmost; the library has no option for that.)"""
    place = {token: i for i, (token, t) in enumerate(zip(tokens, types, strict=True)) if t == NORMAL}
    rules = []
    for piece, i in place.items():
        halves = [(piece[:k], piece[k:]) for k in range(1, len(piece))]
        known = sorted((place[a], place[b], a, b) for a, b in halves if a in place and b in place)
        rules.extend((-scores[i], a, b) for _, _, a, b in known)
    rules.sort(key=lambda rule: rule[0])
    core = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[(a, b) for _, a, b in rules],
            unk_token=next((token for token, t in zip(tokens, types, strict=True) if t == UNKNOWN), None),
            fuse_unk=True,
            byte_fallback=BYTE in types,
        )
    )
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return core
