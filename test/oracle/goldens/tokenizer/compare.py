"""Writes many texts, and what Hugging Face's tokenizers makes of them: for
each tokenizer its tokenizer.json, and for each text checksums of ids and of
decoded text. main.go makes the same and compares; --explain shows what was
wanted.

    compare.py OUT COUNT SMOLLM2.gguf VOCABULARIES_FOLDER NAME=tokenizer.json...
    compare.py --explain OUT NAME NUMBER
"""

import array
import base64
import json
import pathlib
import random
import struct
import sys
import zlib

from tokenizers import Tokenizer

import ggufmeta
import pieces
import reference
import texts

SEED = 11
BATCH = 2000
AROUND = 2000  # texts that are read with special tokens around, too
DECODED = 2000  # texts that are decoded where only pieces are looked at


class Kit:
    def __init__(self, name, tokenizer, count, gguf=None, pre=None, special=False, lossless=False, ids=False, plain=False):
        self.name, self.tokenizer, self.count, self.gguf, self.pre = name, tokenizer, count, gguf, pre
        self.special, self.lossless, self.ids, self.plain = special, lossless, ids, plain
        self.decoded = DECODED if name.startswith("split ") else count

    def folder(self, out):
        return out / "".join(c if c.isalnum() else "-" for c in self.name)


def kits(count, smollm2, vocabularies, files):
    few = count // 20
    fields = ggufmeta.read(smollm2)
    lists = [fields["tokenizer.ggml." + k] for k in ("tokens", "token_type", "merges")]
    for name in reference.PRE:
        yield Kit("smollm2 " + name, reference.build(name, *lists), count if name == "smollm" else few, smollm2, name)
    plain = reference.build("smollm", *lists)
    plain.encode_special_tokens = True
    yield Kit("smollm2 plain", plain, few, smollm2, "smollm", plain=True)
    many = ("llama-spm", "nomic-bert-moe")
    for path in sorted(pathlib.Path(vocabularies).glob("ggml-vocab-*.gguf")):
        name = path.stem.removeprefix("ggml-vocab-")
        if name not in ("aquila", "gpt-neox"):  # these do not name their pre-tokenizer
            yield Kit("gguf " + name, reference.from_gguf(path), count if name in many else few, str(path), lossless=name in ("gpt-2", "llama-bpe"))
        if name == "nomic-bert-moe":
            charsmap = bytes(ggufmeta.read(path)["tokenizer.ggml.precompiled_charsmap"])
    for item in files:
        name, path = item.split("=", 1)
        t = Tokenizer.from_file(path)
        t.no_truncation()
        t.no_padding()
        yield Kit("file " + name, t, count, special=True)
    for name, t in pieces.splits().items():
        yield Kit(name, t, count if name.removeprefix("split ") in list(pieces.SPLITS)[:8] + ["gpt-2", "smollm", "falcon"] else few)
    for name in ("split gpt-2 prefix", "metaspace first True"):
        t = pieces.splits()[name]
        t.encode_special_tokens = True
        yield Kit("plain " + name, t, few, plain=True)
    for name, t in pieces.normals(charsmap).items():
        yield Kit(name, t, few)
    for name, t in pieces.decoding().items():
        yield Kit(name, t, few, ids=True)


def checksum(t, batch, special, decoded):
    """Eight bytes a text: crc of ids and of ids with special tokens around, crc
    of both decoded texts."""
    encoded = t.encode_batch_fast(batch, add_special_tokens=False)
    ids = [e.ids for e in encoded]
    around = t.encode_batch_fast(batch, add_special_tokens=True) if special else encoded
    return pack(t, ids, [e.ids for e in around], decoded)


def pack(t, ids, around, decoded=True):
    if not decoded:
        return b"".join(struct.pack("<II", zlib.crc32(array.array("i", b).tobytes(), zlib.crc32(array.array("i", a).tobytes())), 0) for a, b in zip(ids, around))
    out = bytearray()
    for a, b, whole, skipped in zip(ids, around, t.decode_batch(ids, skip_special_tokens=False), t.decode_batch(reference.without_special(t, ids), skip_special_tokens=False)):
        crc = zlib.crc32(array.array("i", b).tobytes(), zlib.crc32(array.array("i", a).tobytes()))
        out += struct.pack("<II", crc, zlib.crc32(skipped.encode(), zlib.crc32(whole.encode() + b"\0")))
    return bytes(out)


def random_ids(t, count):
    rng = random.Random(SEED)
    size = t.get_vocab_size()
    return [[rng.randrange(size) for _ in range(rng.randint(1, 12))] for _ in range(count)]


def write(out, count, *sources):
    out.mkdir(parents=True, exist_ok=True)
    raw = texts.make(count, SEED)
    (out / "texts.json").write_text(json.dumps([base64.b64encode(r).decode() for r in raw]))
    decoded = [r.decode("utf-8", errors="replace") for r in raw]
    index = []
    for kit in kits(count, *sources):
        folder = kit.folder(out)
        folder.mkdir(exist_ok=True)
        kit.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        entry = {"name": kit.name, "folder": folder.name, "count": kit.count, "gguf": kit.gguf, "pre": kit.pre, "lossless": kit.lossless, "around": AROUND if kit.special else 0,
                 "decoded": kit.decoded, "plain": kit.plain}
        with open(folder / "sums", "wb") as f:
            if kit.ids:
                entry["ids"] = ids = random_ids(kit.tokenizer, kit.count)
                f.write(pack(kit.tokenizer, ids, ids))
            else:
                mine = decoded[:kit.count]
                for at in range(0, len(mine), BATCH):
                    f.write(checksum(kit.tokenizer, mine[at:at + BATCH], kit.special and at < AROUND, at < kit.decoded))
        index.append(entry)
    (out / "index.json").write_text(json.dumps(index))


def explain(out, name, number):
    index = {e["name"]: e for e in json.loads((out / "index.json").read_text())}
    entry = index[name]
    t = Tokenizer.from_file(str(out / entry["folder"] / "tokenizer.json"))
    if "ids" in entry:
        ids = entry["ids"][number]
    else:
        text = base64.b64decode(json.loads((out / "texts.json").read_text())[number]).decode("utf-8", errors="replace")
        ids = t.encode(text, add_special_tokens=False).ids
        print("text ", ascii(text))
        print("whole", t.encode(text).ids)
    print("want ", ids)
    print("tokens", ascii([t.id_to_token(i) for i in ids]))
    print("text ", ascii(t.decode(ids, skip_special_tokens=False)))
    print("skip ", ascii(t.decode(ids, skip_special_tokens=True)))


if sys.argv[1] == "--explain":
    explain(pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
else:
    write(pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
