"""Measures llguidance: reads {"tokens": [hex], "end": id, "schemas": [text], "answers": [[ids]]} and prints for each
answer the microseconds of each mask, in two passes."""
import json
import sys
import time

import llguidance
import llguidance.numpy as masks
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

job = json.load(sys.stdin)


class Words:
    def __init__(self):
        self.tokens = [bytes.fromhex(t) for t in job["tokens"]]
        self.eos_token_id = job["end"]
        self.bos_token_id = None
        self.special_token_ids = [job["end"]]
        self.ids = {t: i for i, t in reversed(list(enumerate(self.tokens)))}

    def __call__(self, text):
        raw = text if isinstance(text, bytes) else text.encode()
        return [self.ids[bytes([b])] for b in raw]


tokenizer = LLTokenizer(TokenizerWrapper(Words()))
bits = masks.allocate_token_bitmask(1, tokenizer.vocab_size)
passes = []
for _ in range(2):
    taken, compiled, refused = [], [], 0
    for schema, answer in zip(job["schemas"], job["answers"]):
        began = time.perf_counter()
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema))
        compiled.append((time.perf_counter() - began) * 1e6)
        if matcher.is_error():
            refused += 1
            continue
        for token in answer:
            began = time.perf_counter()
            masks.fill_next_token_bitmask(matcher, bits)
            taken.append((time.perf_counter() - began) * 1e6)
            if not matcher.consume_token(token):
                break  # it does not take what our blanks allow
    passes.append({"masks": taken, "compiled": compiled, "refused": refused})
print(json.dumps({"version": llguidance.__version__ if hasattr(llguidance, "__version__") else "", "passes": passes}))
