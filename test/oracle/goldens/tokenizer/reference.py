"""Builds Hugging Face tokenizers that read text as the named pre-tokenizer of
GGUF does: the oracle for metal/tokenizer."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import ggufmeta

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# The letters that DeepSeek's first models list.
DEEPSEEK_LETTERS = (
    "[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f"
    "\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-"
    "\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b"
    "\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-"
    "\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183"
    "\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]")

PRE = ["gpt-2", "llama-bpe", "qwen2", "smollm"]

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN35 = CONTRACTIONS + (r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
                         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
# Steps before the bytes of text are taken, for each name in GGUF.
SPLITS = {
    "llama-bpe": [LLAMA3], "qwen2": [QWEN2], "qwen35": [QWEN35],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", "each digit"],
    "deepseek-llm": ["[\r\n]", r"\s?" + DEEPSEEK_LETTERS + "+", r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", "[一-龥ࠀ-一가-\ud7ff]+", "each digit"],
}
DIGITS = ("smollm", "starcoder", "refact", "command-r")
COMPOSED = ("qwen2", "mpt", "command-r")


def pre_tokenizer(name):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name not in SPLITS)
    digits = pre_tokenizers.Digits(individual_digits=True)
    if name in ("gpt-2", "mpt"):
        return level
    if name in DIGITS:
        return pre_tokenizers.Sequence([digits, level])
    if name == "falcon":
        return pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), level, pre_tokenizers.Digits(individual_digits=False),
                                        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")])
    steps = [digits if p == "each digit" else pre_tokenizers.Split(Regex(p), "isolated") for p in SPLITS[name]]
    return pre_tokenizers.Sequence(steps + [level])


def without_special(t, ids):
    """Ids without special tokens. The library's own skip_special_tokens keeps
    those that its normalizer rewrites, which shows the end of a text to users;
    metal/tokenizer leaves out all."""
    special = {i for i, token in t.get_added_tokens_decoder().items() if token.special}
    return [[i for i in few if i not in special] for few in ids]


def add(t, tokens, token_type):
    for text, kind in zip(tokens, token_type):
        if kind in (2, 3):
            t.add_special_tokens([AddedToken(text, normalized=False, special=True)])
        elif kind == 4:
            t.add_tokens([AddedToken(text, normalized=False)])
    return t


def numbered(tokens):
    """Of tokens with the same text the first one counts."""
    return {t: i for i, t in reversed(list(enumerate(tokens)))}


def build(name, tokens, token_type, merges):
    """Byte-level BPE; tokens, token_type and merges as GGUF holds them."""
    t = Tokenizer(models.BPE(vocab=numbered(tokens), merges=[tuple(m.split(" ")) for m in merges], ignore_merges=name == "llama-bpe"))
    t.pre_tokenizer = pre_tokenizer(name)
    t.decoder = decoders.ByteLevel()
    if name in COMPOSED:
        t.normalizer = normalizers.NFC()
    return add(t, tokens, token_type)


def merges_of(tokens, scores):
    """All pairs of tokens that make a token, best score first; of equal scores
    the token with the lower id."""
    vocab = numbered(tokens)
    out = []
    for i, token in enumerate(tokens):
        if vocab[token] == i:
            out += [(-scores[i], i, token[:n], token[n:]) for n in range(1, len(token)) if token[:n] in vocab and token[n:] in vocab]
    return [(a, b) for _, _, a, b in sorted(out, key=lambda m: m[:2])]


def spaced(model, prefix):
    """Text with its spaces as marks, as SentencePiece writes it."""
    t = Tokenizer(model)
    replace = normalizers.Replace(" ", "▁")
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    t.decoder = decoders.Sequence(back + [decoders.Strip(" ", 1, 0)] if prefix else back)
    return t


def from_gguf(path):
    """The tokenizer of a GGUF file."""
    fields = ggufmeta.read(path)
    get = lambda key, default=None: fields.get("tokenizer.ggml." + key, default)
    kind, tokens, token_type = get("model"), get("tokens"), get("token_type")
    unknown = get("unknown_token_id", 0)
    if kind == "gpt2":
        return build(get("pre"), tokens, token_type, get("merges"))
    if kind == "llama":
        t = spaced(models.BPE(vocab=numbered(tokens), merges=merges_of(tokens, get("scores")), unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True),
                   get("add_space_prefix", True))
    elif kind == "gemma4":
        pairs = [tuple(m.split(" ")) for m in get("merges")]
        t = spaced(models.BPE(vocab=numbered(tokens), merges=pairs, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True), False)
    elif kind == "bert":
        return bert(tokens, token_type, unknown, get("cls_token_id"), get("seperator_token_id"))
    elif kind == "t5":
        t = unigram(tokens, get("scores"), unknown, bytes(get("precompiled_charsmap")))
    return add(t, tokens, token_type)


def bert(tokens, token_type, unknown, cls, sep):
    """GGUF marks the starts of words where BERT marks what continues them."""
    text = [t if k == 3 else t[1:] if t.startswith("▁") else "##" + t for t, k in zip(tokens, token_type)]
    t = Tokenizer(models.WordPiece(vocab=numbered(text), unk_token=text[unknown]))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.post_processor = processors.BertProcessing((text[sep], sep), (text[cls], cls))
    return add(t, text, token_type)


def unigram(tokens, scores, unknown, charsmap):
    t = Tokenizer(models.Unigram(list(zip(tokens, map(float, scores))), unknown, byte_fallback=False))
    t.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")])
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    return t
