"""The tiny models in mlx-lm, all arithmetic in float32: folders as mlx-lm loads
them, with scales, biases and norms widened; GGUF files through their dequantised
weights. usage: mlx_lm_reference.py cases.json out.json"""

import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import gemma3_text, gpt_oss, llama, qwen2, qwen3, qwen3_moe
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.utils import load_model

import models
import record


class DividedRope(nn.Module):
    """Rotary frequencies with a divisor for each pair."""

    def __init__(self, dims, base, factors):
        super().__init__()
        self.dims = dims
        self._freqs = base ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims) * mx.array(factors)

    def __call__(self, x, offset=0):
        return mx.fast.rope(x, self.dims, traditional=False, base=None, scale=1.0, offset=offset, freqs=self._freqs)


def load(path):
    config, weights, factors = models.read(path)
    scaling = config.get("rope_scaling")
    if config["model_type"] == "gpt_oss" and (scaling is None or not scaling["truncate"]):
        return None  # mlx-lm sees neither rope_parameters nor that edges stay between pairs
    if config["model_type"] == "mistral" and "sliding_window" in config or config["model_type"] in ("gemma3_text", "llama", "mistral", "qwen2", "qwen3_moe", "qwen3_next") and "rope_parameters" in config:
        return None  # mlx-lm sees neither sliding_window nor rope_parameters in them
    if path.endswith(".gguf"):
        family = {"gemma3_text": gemma3_text, "gpt_oss": gpt_oss, "llama": llama, "qwen2": qwen2, "qwen3": qwen3, "qwen3_moe": qwen3_moe}[config["model_type"]]
        model = family.Model(family.ModelArgs.from_dict(config))
        weights = {k: mx.array(v) for k, v in models.as_folder(path, config, weights).items()}
        if hasattr(model, "sanitize"):
            weights = model.sanitize(weights)
        model.load_weights(list(weights.items()), strict=True)
        model.eval()
    else:
        model, _ = load_model(Path(path))
        model.set_dtype(mx.float32)
        meant = as_meant(config, weights)
        if meant is not weights:  # mlx-lm has added one in the type of the file
            prefix = "language_model." if config["model_type"].startswith("qwen3_5") else ""
            model.load_weights([(prefix + k, mx.array(w)) for k, w in meant.items() if models.less_one(k)], strict=False)
        same_weights(model, meant)
    if factors is not None:
        for layer in model.layers:
            layer.self_attn.rope = DividedRope(config["head_dim"], config["rope_theta"], factors)
    for name, value in tree_flatten(model.parameters()):
        assert value.dtype in (mx.float32, mx.uint32, mx.uint8), (name, value.dtype)
    return model


def as_meant(config, weights):
    """The norms of a hybrid are less one where its convolutions lie as Hugging
    Face stores them."""
    if not models.hybrid(config) or not any("conv1d" in k and w.shape[-1] != 1 for k, w in weights.items()):
        return weights
    return {k: w + 1 if models.less_one(k) else w for k, w in weights.items()}


def same_weights(model, weights):
    """What mlx-lm loaded is what models.py read."""
    weights = models.apart(weights)
    for path, m in model.named_modules():
        path = path.removeprefix("language_model.")
        if "sinks" in m:
            assert np.array_equal(np.array(m.sinks), weights[path + ".sinks"]), path
        if isinstance(m, (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear)):
            got = np.array(mx.dequantize(m.weight, m.scales, m.get("biases"), m.group_size, m.bits, mode=m.mode, dtype=mx.float32))
        elif isinstance(m, (nn.Linear, nn.Embedding, nn.RMSNorm, gemma3_text.RMSNorm, SwitchLinear)):
            got = np.array(m.weight)
        else:
            continue
        if "bias" in m:
            assert np.array_equal(np.array(m.bias), weights[path + ".bias"]), path
        path = path.removeprefix("language_model.")
        want = weights[path + ".weight"]
        top = np.abs(want).max()
        assert got.shape == want.shape and np.abs(got - want).max() <= 2e-7 * top, path


def reference(path):
    model = load(path)
    if model is None:
        return None

    def step(tokens, cache):
        cache = cache or make_prompt_cache(model)
        logits = model(mx.array([tokens]), cache=cache)[0, -1]
        return np.array(logits), cache

    decoder = getattr(model, "language_model", model).model
    return step, lambda tokens: np.array(decoder(mx.array([tokens]))[0])


record.write(f"mlx-lm {mlx_lm.__version__}, mlx {mx.__version__}, float32", sys.argv[1], sys.argv[2], reference)
