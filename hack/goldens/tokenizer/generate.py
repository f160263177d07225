"""Writes metal/tokenizer/testdata/small.json: a small vocabulary trained here,
and the ids that Hugging Face's tokenizers gives for some texts under each
pre-tokenizer.

    python3 -m venv V && V/bin/pip install tokenizers==0.23.3
    V/bin/python hack/goldens/tokenizer/generate.py metal/tokenizer/testdata/small.json
"""

import base64
import json
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import reference
import texts

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<empty_output>"]
USER = ["<think>", "    ", "<|im_", "日本"]


def train():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = reference.pre_tokenizer("llama-bpe")
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator([s for s in texts.SENTENCES for _ in range(3)], trainer)
    model = json.loads(t.to_str())["model"]
    return model["vocab"], [" ".join(m) for m in model["merges"]]


def main(path):
    vocab, merges = train()
    # Real vocabularies lack tokens for some bytes; such bytes are dropped.
    drop = {"Ħ", "ñ", "ò"}  # 0x04 as the alphabet writes it, 0xf1, 0xf2
    drop = {c for c in drop if not any(c in m for m in merges)}
    learned = [t for t, _ in sorted(vocab.items(), key=lambda kv: kv[1]) if t not in drop]
    tokens = CONTROL + learned + USER
    kinds = [3] * len(CONTROL) + [1] * len(learned) + [4] * len(USER)

    rows = []
    built = {n: reference.build(n, tokens, kinds, merges) for n in reference.PRE}
    few = [t for t in texts.make(160, seed=3) if len(t) <= 160]
    for raw in few + [b"\x04a\xf3\xb1\x80\x80b", "<think>日本    x    <|im_x".encode()]:
        text = raw.decode("utf-8", errors="replace")
        ids = {n: t.encode(text, add_special_tokens=False).ids for n, t in built.items()}
        for n, t in built.items():
            assert max(ids[n], default=0) < len(tokens), (n, text)
        rows.append({"text": base64.b64encode(raw).decode(), "ids": ids,
                     "decoded": built["gpt-2"].decode(ids["gpt-2"], skip_special_tokens=False)})
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"tokens":%s,\n"token_type":%s,\n"merges":%s,\n"cases":[\n' % tuple(
            json.dumps(v, ensure_ascii=False, separators=(",", ":")) for v in (tokens, kinds, merges)))
        f.write(",\n".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in rows))
        f.write("\n]}\n")


main(sys.argv[1])
