"""Writes metal/tokenizer/testdata/golden.json: small tokenizers of every kind,
some trained here, and checksums of what Hugging Face's tokenizers makes of some
texts. compare.py does the same with real vocabularies and many texts.

    python3 -m venv V && V/bin/pip install tokenizers==0.23.3
    V/bin/python test/oracle/goldens/tokenizer/generate.py metal/tokenizer/testdata/golden.json [--train]

Training gives other vocabularies each time, so those of the file are kept
unless --train is given.
"""

import array
import base64
import functools
import json
import pathlib
import random
import struct
import sys
import zlib

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import pieces
import reference
import texts

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<empty_output>"]
USER = ["<think>", "    ", "<|im_", "日本"]
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def charsmap(pairs):
    """A double array trie, each node where it first fits."""
    trie, texts_of = {}, bytearray()
    for key, text in pairs:
        node = trie
        for b in key.encode():
            node = node.setdefault(b, {})
        node[None] = len(texts_of)
        texts_of += text.encode() + b"\0"
    units, bases = {0: 0}, set()

    def place(node, pos, label):
        kids = {b or 0: kid for b, kid in node.items()}
        base = next(n for n in range(1, 1 << 20) if n not in bases and not any(n ^ b in units for b in kids))
        bases.add(base)
        units[pos] = (pos ^ base) << 10 | label | ((1 << 8) if None in node else 0)
        units.update({base ^ b: 0 for b in kids})
        for b, kid in node.items():
            if b is None:
                units[base] = 1 << 31 | kid
            else:
                place(kid, base ^ b, b)

    place(trie, 0, 0)
    raw = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(max(units) // 256 * 256 + 256))
    return struct.pack("<I", len(raw)) + raw + bytes(texts_of)


CHARSMAP = [("ﬁ", "fi"), ("①", "1"), ("\r", " "), ("A", "a"), ("\u200b", ""), ("é", "e\u0301"), ("e\u0301", "é"), ("½", "1⁄2"), ("™", "TM")]


def kept(name, *keys):
    """A vocabulary that is in the file already."""
    if "--train" in sys.argv or not pathlib.Path(sys.argv[1]).exists():
        return None
    with open(sys.argv[1], encoding="utf-8") as f:
        known = json.load(f)["lists"][name]
    return tuple(known[k] for k in keys)


def train(model, trainer, pre=None, normalizer=None, sentences=texts.SENTENCES):
    t = Tokenizer(model)
    if pre:
        t.pre_tokenizer = pre
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator([s for s in sentences for _ in range(3)], trainer)
    return json.loads(t.to_str())["model"]


def in_order(vocab):
    return [t for t, _ in sorted(vocab.items(), key=lambda kv: kv[1])]


@functools.cache
def byte_level():
    if known := kept("bpe", "tokens", "token_type", "merges"):
        return known
    model = train(models.BPE(), trainers.BpeTrainer(vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
                  pre=reference.pre_tokenizer("llama-bpe"))
    merges = [" ".join(m) for m in model["merges"]]
    # Real vocabularies lack tokens for some bytes; such bytes are dropped.
    drop = {c for c in ("Ħ", "ñ", "ò") if not any(c in m for m in merges)}
    tokens = CONTROL + [t for t in in_order(model["vocab"]) if t not in drop] + USER
    return tokens, [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL) - len(USER)) + [4] * len(USER), merges


@functools.cache
def sentence_piece():
    """Tokens with scores, as a GGUF file of Llama 2 has them."""
    if known := kept("spm", "tokens", "token_type", "scores"):
        return known
    model = train(models.BPE(unk_token="<unk>"), trainers.BpeTrainer(vocab_size=420, show_progress=False, limit_alphabet=120, special_tokens=["<unk>"]),
                  normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))
    control = ["<unk>", "<s>", "</s>"]
    learned = [t for t in in_order(model["vocab"]) if t not in control]
    tokens = control + BYTES + learned + ["<mask>"]
    return tokens, [2, 3, 3] + [6] * 256 + [1] * len(learned) + [4], [0.0] * 3 + [-1e6] * 256 + [-float(i) for i in range(len(learned))] + [0.0]


@functools.cache
def word_piece():
    if known := kept("bert", "tokens", "token_type"):
        return known
    model = train(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=500, show_progress=False, limit_alphabet=150),
                  pre=pre_tokenizers.BertPreTokenizer(), normalizer=normalizers.BertNormalizer())
    control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    learned = [t for t in in_order(model["vocab"]) if t not in control]
    marked = [t[2:] if t.startswith("##") else "▁" + t for t in learned]
    return control + marked, [3] * 5 + [1] * len(learned)


@functools.cache
def unigram():
    if known := kept("t5", "tokens", "token_type", "scores"):
        return known
    model = train(models.Unigram(), trainers.UnigramTrainer(vocab_size=300, show_progress=False, unk_token="<unk>", special_tokens=["<s>", "<pad>", "</s>", "<unk>"]),
                  pre=pre_tokenizers.Metaspace(), sentences=texts.SENTENCES[:9])
    tokens = [t for t, _ in model["vocab"]]
    return tokens, [3, 3, 3, 2] + [1] * (len(tokens) - 4), [round(s, 3) for _, s in model["vocab"]]


def trained():
    """Tokenizers as GGUF has them, with what the same is in Hugging Face's form."""
    tokens, kinds, merges = byte_level()
    for name in reference.PRE + ["command-r", "deepseek-coder", "deepseek-llm", "falcon", "mpt", "qwen35", "refact", "starcoder"]:
        yield name, reference.build(name, tokens, kinds, merges), {"model": "gpt2", "pre": name, "tokens": "bpe", "token_type": "bpe", "merges": "bpe"}
    tokens, kinds, scores = sentence_piece()
    spm = models.BPE(vocab=reference.numbered(tokens), merges=reference.merges_of(tokens, scores), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    for prefix in (True, False):
        yield f"llama {prefix}", reference.add(reference.spaced(spm, prefix), tokens, kinds), {
            "model": "llama", "add_space_prefix": prefix, "tokens": "spm", "token_type": "spm", "scores": "spm"}
    tokens, kinds = word_piece()
    yield "bert", reference.bert(tokens, kinds, 1, 2, 3), {
        "model": "bert", "tokens": "bert", "token_type": "bert", "unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3}
    tokens, kinds, scores = unigram()
    yield "t5", reference.add(reference.unigram(tokens, scores, 3, charsmap(CHARSMAP)), tokens, kinds), {
        "model": "t5", "tokens": "t5", "token_type": "t5", "scores": "t5", "precompiled_charsmap": "t5", "unknown_token_id": 3}
    fallback = Tokenizer(models.Unigram([("<unk>", 0.0)] + [(b, -9.0) for b in BYTES] + [("▁a", -1.0), ("a", -2.0), ("▁", -1.5)], 0, byte_fallback=True))
    fallback.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    fallback.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    fallback.post_processor = processors.TemplateProcessing(single="<unk> $A", pair="<unk> $A $B:1 <unk>:1", special_tokens=[("<unk>", 0)])
    yield "unigram with bytes", fallback, None
    yield "ends of words", words(), None


def words():
    """What CLIP has: ends of words are marked, all else is cut away."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet + [c + "</w>" for c in alphabet] + ["th", "the</w>", "an</w>", "<|end|>"])}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e</w>"), ("a", "n</w>")], end_of_word_suffix="</w>", unk_token="<|end|>"))
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.post_processor = processors.RobertaProcessing(("<|end|>", vocab["<|end|>"]), ("th", vocab["th"]), trim_offsets=False, add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    return t


def sums(t, ids, around):
    out = bytearray()
    for a, b, shown in zip(ids, around, reference.without_special(t, ids)):
        crc = zlib.crc32(array.array("i", b).tobytes(), zlib.crc32(array.array("i", a).tobytes()))
        for some in (a, shown):
            crc = zlib.crc32(t.decode(some, skip_special_tokens=False).encode() + b"\0", crc)
        out += struct.pack("<I", crc)
    return base64.b64encode(out).decode()


def main(path):
    few = [s.encode() for s in texts.SENTENCES[::4]] + [t for t in texts.make(190, seed=3)[len(texts.SENTENCES):] if len(t) <= 90]
    few += [b"\x04a\xf3\xb1\x80\x80b", "<think>日本    x    <|im_x".encode(), b"the an agent " * 20]
    out = {"texts": [base64.b64encode(t).decode() for t in few], "models": {}, "lists": {}, "kits": [], "gguf": []}
    decoded = [t.decode("utf-8", errors="replace") for t in few]
    lists(out["lists"])

    def add(name, t, ids=None):
        whole = json.loads(t.to_str())
        model = json.dumps(shorten(whole.pop("model"), out["lists"]), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        known = {text: n for n, text in out["models"].items()}
        if model not in known:
            known[model] = f"model {len(out['models'])}"
            out["models"][known[model]] = model
        kit = {"name": name, "model": known[model], "rest": {k: v for k, v in whole.items() if v}}
        if ids:
            kit["ids"] = ids
            kit["sums"] = sums(t, ids, ids)
        else:
            kit["sums"] = sums(t, [t.encode(s, add_special_tokens=False).ids for s in decoded], [t.encode(s).ids for s in decoded])
        a, b = decoded[0], decoded[1]
        pair = t.encode(a, b)
        kit["pair"] = zlib.crc32(array.array("i", pair.ids + pair.type_ids).tobytes())
        out["kits"].append(kit)

    for name, t, gguf in trained():
        add(name, t)
        if gguf:
            out["gguf"].append({"like": name, "metadata": gguf})
    small = charsmap(CHARSMAP)
    for name, t in {**pieces.splits(), **pieces.normals(small)}.items():
        add(name, t)
    rng = random.Random(5)
    for name, t in pieces.decoding().items():
        add(name, t, [[rng.randrange(t.get_vocab_size()) for _ in range(rng.randint(1, 9))] for _ in range(60)])
    write(path, out)


def shorten(model, lists):
    """Names a vocabulary and merges that are among the lists."""
    for name, l in lists.items():
        vocab = model["vocab"]
        if vocab == reference.numbered(l["tokens"]) or vocab == [[t, s] for t, s in zip(l["tokens"], l.get("scores", []))]:
            model["vocab"] = name
        if "merges" in l and [" ".join(m) for m in model.get("merges", [])] == l["merges"]:
            model["merges"] = name
    return model


def lists(out):
    tokens, kinds, merges = byte_level()
    out["bpe"] = {"tokens": tokens, "token_type": kinds, "merges": merges}
    tokens, kinds, scores = sentence_piece()
    out["spm"] = {"tokens": tokens, "token_type": kinds, "scores": scores}
    tokens, kinds = word_piece()
    out["bert"] = {"tokens": tokens, "token_type": kinds}
    tokens, kinds, scores = unigram()
    out["t5"] = {"tokens": tokens, "token_type": kinds, "scores": scores, "precompiled_charsmap": base64.b64encode(charsmap(CHARSMAP)).decode()}


def write(path, out):
    text = lambda v: json.dumps(v, ensure_ascii=False, separators=(",", ":"))
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"texts":[\n' + ",\n".join(map(text, out["texts"])) + "],\n")
        for name in ("lists",):
            f.write(f'"{name}":{{\n' + ",\n".join(f"{text(k)}:{text(v)}" for k, v in out[name].items()) + "},\n")
        f.write('"models":{\n' + ",\n".join(f"{text(k)}:{v}" for k, v in out["models"].items()) + "},\n")
        f.write('"kits":[\n' + ",\n".join(map(text, out["kits"])) + "],\n")
        f.write('"gguf":[\n' + ",\n".join(map(text, out["gguf"])) + "]}\n")


main(sys.argv[1])
