"""Records the logits that mlx-vlm's draft head computes for each token of a prompt. The head
reads a token with the normed state before it, as mlx-lm computes that of the model; the
first token with zeros.

usage: record.py CASES OUT"""

import json
import os
import sys

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import load_model
from mlx_vlm.speculative.drafters.qwen3_5_mtp import ModelConfig, Qwen3_5MTPDraftModel
from pathlib import Path

mx.set_default_device(mx.cpu)
TOKENS, STRIDE = 24, 8


def head(path, config, model):
    """The draft head with the tensors of a folder."""
    text = config["text_config"]
    drafter = Qwen3_5MTPDraftModel(ModelConfig.from_dict({"text_config": {**text, "mtp_num_hidden_layers": 1}}))
    weights = mx.load(os.path.join(path, "model.safetensors"))
    own = {k.removeprefix("language_model."): v for k, v in weights.items() if "mtp." in k}
    quantized = any(k.endswith(".scales") for k in own)
    if quantized:  # norms are as they are, and names without the prefix
        own = {k.removeprefix("mtp."): v for k, v in own.items()}
    own = drafter.sanitize(own)
    if quantized:
        how = config["quantization"]
        nn.quantize(drafter, how["group_size"], how["bits"], class_predicate=lambda p, m: f"{p}.scales" in own)
    drafter.load_weights(list(own.items()), strict=True)
    drafter.reset(model)
    return drafter


def main():
    cases, out = sys.argv[1:]
    records = []
    for case in json.load(open(cases)):
        path = Path(case["path"])
        config = json.load(open(path / "config.json"))
        model, _ = load_model(path)
        ids = mx.array([case["prompts"][0][:TOKENS]])
        inner = model.language_model
        states = inner.model(ids).astype(mx.float32)
        drafter = head(path, config, inner)
        before = mx.concatenate([mx.zeros_like(states[:, :1]), states[:, :-1]], axis=1)
        logits = drafter._lm_head_fn(drafter._forward_tokens(ids, before, mx.int32))[0]
        assert logits.dtype == mx.float32 and len(logits) == TOKENS
        rows = [[float(f"{v:.7g}") for v in row[:: 1 if i == TOKENS - 1 else STRIDE].tolist()] for i, row in enumerate(logits)]
        records.append({"name": case["name"], "sha256": case["sha256"], "prompt": ids[0].tolist(), "logits": rows})
    with open(out, "w") as f:
        f.write('{"madeBy": "mlx-vlm 0.7.10, mlx-lm 0.32.2", "stride": %d, "cases": [\n' % STRIDE)
        f.write(",\n".join(json.dumps(r) for r in records) + "\n]}\n")


main()
