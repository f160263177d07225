"""Builds Hugging Face tokenizers that read text as the named pre-tokenizer of
GGUF does: the oracle for metal/tokenizer."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

PRE = ["gpt-2", "llama-bpe", "qwen2", "smollm"]


def pre_tokenizer(name):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name in ("gpt-2", "smollm"))
    if name == "gpt-2":
        return level
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    pattern = {"llama-bpe": LLAMA3, "qwen2": QWEN2}[name]
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), level])


def build(name, tokens, token_type, merges):
    """tokens, token_type and merges as GGUF holds them."""
    vocab = {t: i for i, t in reversed(list(enumerate(tokens)))}
    pairs = [tuple(m.split(" ")) for m in merges]
    t = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=name == "llama-bpe"))
    t.pre_tokenizer = pre_tokenizer(name)
    t.decoder = decoders.ByteLevel()
    if name == "qwen2":
        t.normalizer = normalizers.NFC()
    for text, kind in zip(tokens, token_type):
        added = AddedToken(text, normalized=False, special=kind == 3)
        if kind == 3:
            t.add_special_tokens([added])
        elif kind == 4:
            t.add_tokens([added])
    return t
