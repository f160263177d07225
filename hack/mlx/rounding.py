"""The tiny models of half-precision folders in mlx-lm, left in their own types:
logits after the first prompt, every fourth of them. metal/mlx
must round where mlx-lm rounds. usage: rounding.py cases.json out.json"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

STRIDE = 4


def load(path):
    """The model, or None where mlx-lm computes something else or in float32."""
    if not Path(path).is_dir():
        return None
    config = json.loads((Path(path) / "config.json").read_text())
    if config["model_type"] == "mistral" or config["model_type"] in ("gemma3_text", "llama", "qwen2", "qwen3_moe") and "rope_parameters" in config:
        return None  # mlx-lm sees neither sliding_window nor rope_parameters in them
    if config["model_type"] == "gemma3" and "rope_parameters" in config["text_config"]:
        return None  # nor do the newer names of its tensors mean anything to it
    scaling = config.get("rope_scaling")
    if config["model_type"] == "gpt_oss" and (scaling is None or not scaling["truncate"]):
        return None  # mlx-lm sees neither rope_parameters nor that edges stay between pairs
    if config["model_type"] == "gemma3_text" and "float16" in (config.get("torch_dtype"), config.get("dtype")):
        return None  # computed in float32: float16 does not hold what a Gemma adds up
    if "num_experts" in config and "quantization" not in config:
        return None  # on a processor MLX has dense experts in float32 alone
    model, _ = load_model(Path(path))
    return model


def main(listed, out):
    cases = []
    for case in json.load(open(listed)):
        model = load(case["path"])
        if model is None:
            continue
        logits = model(mx.array([case["prompts"][0]]), cache=make_prompt_cache(model))[0, -1]
        if logits.dtype == mx.float32:
            continue
        values = np.array(logits.astype(mx.float32))[::STRIDE]
        cases.append({"name": case["name"], "sha256": case["sha256"], "type": str(logits.dtype).split(".")[-1], "logits": [float(f"{v:.6g}") for v in values]})
    with open(out, "w") as f:
        f.write('{"madeBy": "mlx-lm %s, mlx %s, on a processor", "stride": %d, "cases": [\n' % (mlx_lm.__version__, mx.__version__, STRIDE))
        f.write(",\n".join(json.dumps(c) for c in cases))
        f.write("\n]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
