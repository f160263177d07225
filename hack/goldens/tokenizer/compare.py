"""Writes many texts with the ids that Hugging Face's tokenizers gives for the
vocabulary of a GGUF file, one JSON object a line; main.go compares.

    python3 -m venv V && V/bin/pip install tokenizers==0.23.3 gguf==0.19.0
    V/bin/python hack/goldens/tokenizer/compare.py MODEL.gguf 50000 > texts.jsonl
    go run ./hack/goldens/tokenizer MODEL.gguf texts.jsonl
"""

import base64
import json
import sys

from gguf import GGUFReader

import reference
import texts


def main(path, count, seed=11):
    fields = GGUFReader(path).fields
    tokens, kinds, merges = (fields["tokenizer.ggml." + k].contents() for k in ("tokens", "token_type", "merges"))
    built = {n: reference.build(n, tokens, kinds, merges) for n in reference.PRE}
    for raw in texts.make(count, seed):
        text = raw.decode("utf-8", errors="replace")
        ids = {n: t.encode(text, add_special_tokens=False).ids for n, t in built.items()}
        decoded = built["gpt-2"].decode(ids["gpt-2"], skip_special_tokens=False)
        print(json.dumps({"text": base64.b64encode(raw).decode(), "ids": ids, "decoded": decoded}))


main(sys.argv[1], int(sys.argv[2]))
