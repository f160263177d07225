"""Tokenizers that show what a normalizer or pre-tokenizer does: each byte of a
text is a token of its own, and the first character of each piece has another
token than the rest. Their ids determine pieces and text to the last byte."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers as N, pre_tokenizers as P

import reference

END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
NAMES = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"

# How families split text, as their tokenizer.json have it.
SPLITS = {
    "llama-bpe": [reference.LLAMA3],
    "qwen2": [reference.QWEN2],
    "qwen35": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + END],
    "o200k": [f"{WORDS}{CONTRACTIONS}?|{NAMES}{CONTRACTIONS}?" + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + END],
    "tekken": [f"{WORDS}|{NAMES}" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + END],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
                    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"],
    "deepseek-llm": ["[\r\n]", r"\s?" + reference.DEEPSEEK_LETTERS + "+", r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$",
                     "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}+"],
    # Not written by hand, so these go through the fallback.
    "cl100k": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"],
    "bailing": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "bloom": [r" ?[^(\s|[.,!?…。，、।۔،])]+"],
    "kimi": [r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+" + CONTRACTIONS +
             r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + END],
    "exaone": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "thousands": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "groups": [r"\d{1,3}(?=(?:\d{3})*\b)", r"\w+|[^\w\s]+", r"^.|.$"],
    "halves": [r"\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}|(?<=[a-f])\w|(?<!\p{Lu}|x)[[:punct:]]+|\h{2}"],
}


def bytes_kit(pre, normalizer=None, added=()):
    """Byte-level BPE without merges."""
    alphabet = sorted(P.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    vocab.update({"##" + c: 256 + i for i, c in enumerate(alphabet)})
    t = Tokenizer(models.BPE(vocab=vocab, merges=[], continuing_subword_prefix="##"))
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.add_tokens(list(added))
    return t


def text_kit(normalizer=None, pre=None, decoder=None, added=()):
    """BPE over characters, all of which fall back to bytes."""
    vocab = {f"<0x{i:02X}>": i for i in range(256)}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, continuing_subword_prefix="\x01"))
    if normalizer is not None:
        t.normalizer = normalizer
    if pre is not None:
        t.pre_tokenizer = pre
    t.decoder = decoder or decoders.ByteFallback()
    t.add_tokens(list(added))
    return t


ADDED = [
    AddedToken("<mask>", special=True, lstrip=True, normalized=False),
    AddedToken("<s>", special=True, normalized=False),
    AddedToken("[gap]", rstrip=True, normalized=False),
    AddedToken("Day", single_word=True, normalized=True),
    AddedToken("the agent", normalized=True),
    AddedToken("<both>", lstrip=True, rstrip=True, normalized=True, special=True),
    AddedToken("é!", normalized=True),
    AddedToken("  ", normalized=False),
    AddedToken("one", single_word=True, normalized=False),
]


def splits():
    out = {}
    for name, patterns in SPLITS.items():
        steps = [P.Split(Regex(p), "isolated") for p in patterns]
        out["split " + name] = bytes_kit(P.Sequence(steps + [P.ByteLevel(add_prefix_space=False, use_regex=False)]))
    level = P.ByteLevel(add_prefix_space=False)
    out["split gpt-2"] = bytes_kit(level)
    out["split gpt-2 prefix"] = bytes_kit(P.ByteLevel(add_prefix_space=True), added=ADDED)
    out["split smollm"] = bytes_kit(P.Sequence([P.Digits(individual_digits=True), level]))
    out["split falcon"] = bytes_kit(P.Sequence([
        P.Punctuation("contiguous"), level, P.Digits(individual_digits=False), P.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))
    out["split old default"] = bytes_kit(P.Sequence(
        [P.Split(Regex(r"[\p{P}\$\+<=>\^~\|]+"), "isolated"), level, P.Split(Regex(r"\p{N}+"), "isolated"), P.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            out[f"split {behavior} {invert}"] = text_kit(pre=P.Split(Regex(r"\s*[a-e]+|\d?"), behavior, invert))
        out[f"punctuation {behavior}"] = text_kit(pre=P.Punctuation(behavior))
        out[f"string {behavior}"] = text_kit(pre=P.Split(" ", behavior))
    out["digits"] = text_kit(pre=P.Digits(False))
    out["each digit"] = text_kit(pre=P.Digits(True))
    out["whitespace"] = text_kit(pre=P.Whitespace())
    out["whitespace split"] = text_kit(pre=P.WhitespaceSplit())
    out["bert split"] = text_kit(pre=P.BertPreTokenizer())
    for scheme in ("always", "first", "never"):
        for split in (False, True):
            meta = P.Metaspace(prepend_scheme=scheme, split=split)
            out[f"metaspace {scheme} {split}"] = text_kit(
                pre=meta, decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)]), added=ADDED)
    out["metaspace in a sequence"] = text_kit(
        N.Sequence([N.Strip(left=True, right=False), N.NFKC()]), P.Sequence([P.Punctuation(), P.Metaspace(prepend_scheme="first")]), added=ADDED)
    return out


def normals(charsmap):
    out = {}
    bert = [(c, h, s, low) for c in (True, False) for h in (True, False) for s in (True, False, None) for low in (True, False)]
    for n, args in enumerate(bert):
        if n % 3 == 0 or all(a in (True, None) for a in args):
            out["bert normal %s %s %s %s" % args] = text_kit(N.BertNormalizer(*args))
    for name, n in {
        "NFC": N.NFC(), "NFD": N.NFD(), "NFKC": N.NFKC(), "NFKD": N.NFKD(), "lower": N.Lowercase(), "nmt": N.Nmt(),
        "accents": N.StripAccents(), "strip": N.Strip(), "strip left": N.Strip(right=False), "strip right": N.Strip(left=False),
        "prepend": N.Prepend("▁"), "replace": N.Replace("a", "éa"), "replace regex": N.Replace(Regex(r" {2,}|\p{Lu}?"), "▁"),
        "llama": N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]),
        "precompiled": N.Precompiled(charsmap),
        "t5": N.Sequence([N.Precompiled(charsmap), N.Strip(left=False, right=True), N.Replace(Regex(" {2,}"), "▁")]),
        "albert": N.Sequence([N.Replace("``", '"'), N.NFKD(), N.StripAccents(), N.Lowercase(), N.Precompiled(charsmap), N.Replace(Regex(" {2,}"), " ")]),
    }.items():
        out["normal " + name] = text_kit(n, added=ADDED if name in ("lower", "llama", "NFKC", "strip") else ())
    out["normal bytes"] = bytes_kit(P.Split(Regex("Ġ|Ċ"), "merged_with_next"), N.Sequence([N.NFC(), N.ByteLevel()]), added=ADDED[:2])
    return out


def decoding():
    """Decoders over tokens that hold what they look for."""
    words = ["▁", "▁a", "b▁", "##c", "d", "e</w>", " f ", "<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "<0x0A>", "<0x+4>", " .", " n't", " do not", "'", "▁▁", " ", "é", "Ã", "©", "Ġ", "<unk>"]
    vocab = {w: i for i, w in enumerate(words)}
    out = {}
    for name, d in {
        "none": None, "byte fallback": decoders.ByteFallback(), "metaspace": decoders.Metaspace(), "metaspace never": decoders.Metaspace(prepend_scheme="never"),
        "wordpiece": decoders.WordPiece(), "wordpiece raw": decoders.WordPiece(cleanup=False), "words": decoders.BPEDecoder(), "byte level": decoders.ByteLevel(),
        "replace": decoders.Replace("▁", " "), "strip": decoders.Strip("▁", 1, 0), "strips": decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
        "llama": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
        "gemma": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        "fused": decoders.Sequence([decoders.Fuse(), decoders.Replace("▁▁a", "-"), decoders.Metaspace()]),
        "bytes and more": decoders.Sequence([decoders.ByteLevel(), decoders.Replace("a b", "-"), decoders.BPEDecoder("d")]),
    }.items():
        t = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
        if d is not None:
            t.decoder = d
        t.add_tokens([AddedToken("<s>", special=True, normalized=False), AddedToken("▁x", normalized=False)])
        out["decoder " + name] = t
    return out
