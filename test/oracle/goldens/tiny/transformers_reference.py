"""The tiny models in transformers, float32: Hugging Face's folders as
transformers loads them, everything else through its dequantised weights.
usage: transformers_reference.py cases.json out.json"""

import sys

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

import models
import record

torch.set_grad_enabled(False)
torch.set_num_threads(1)


def load(path):
    config, weights, factors = models.read(path)
    if "/hf " in names[path] and "that sees" not in names[path] and config["model_type"] != "gpt_oss" and not config["model_type"].startswith("qwen3_5"):  # which come with eyes
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    else:
        made = AutoConfig.for_model(config.pop("model_type"), **config)
        model = AutoModelForCausalLM.from_config(made, dtype=torch.float32, attn_implementation="eager")
    kind = {"model_type": model.config.model_type}
    weights = fused(models.as_hugging_face(kind, models.as_folder(path, kind, weights), "mlx" if "/mlx " in names[path] else "hf"))
    if model.config.model_type == "gemma3_text":
        # in bfloat16, as the model was trained; in float32 transformers leaves it
        model.model.embed_tokens.embed_scale = torch.tensor(config["hidden_size"] ** 0.5).bfloat16()
    loaded = model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()}, strict=False)
    assert not loaded.unexpected_keys and set(loaded.missing_keys) <= {"lm_head.weight"}, loaded
    model.tie_weights()
    model.eval()
    if factors is not None:
        model.model.rotary_emb.inv_freq /= torch.from_numpy(factors.copy())
    return model


def fused(weights):
    """The experts of a layer as transformers holds them."""
    out = {}
    for name, w in models.apart(weights).items():
        if ".mlp.experts." in name:
            if ".up_proj." in name:
                continue
            if ".gate_proj." in name:
                up = models.apart(weights)[name.replace("gate_proj", "up_proj")]
                w, name = np.stack([w, up], axis=2).reshape(w.shape[0], -1, *w.shape[2:]), name.replace("gate_proj", "gate_up_proj")
            out[name.replace(".weight", "").replace(".bias", "_bias")] = w.swapaxes(1, 2) if w.ndim == 3 else w
        elif ".switch_mlp.gate_proj" in name:
            up = weights[name.replace("gate_proj", "up_proj")]
            out[name.replace("switch_mlp.gate_proj.weight", "experts.gate_up_proj")] = np.concatenate([w, up], axis=1)
        elif ".switch_mlp.down_proj" in name:
            out[name.replace("switch_mlp.down_proj.weight", "experts.down_proj")] = w
        elif ".switch_mlp." not in name:
            out[name] = w
    return out


def reference(path):
    model = load(path)

    def step(tokens, cache):
        out = model(torch.tensor([tokens]), past_key_values=cache, use_cache=True)
        return out.logits[0, -1].numpy(), out.past_key_values

    return step, lambda tokens: model.model(torch.tensor([tokens])).last_hidden_state[0].numpy()


names = record.names(sys.argv[1])
record.write(f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32", sys.argv[1], sys.argv[2], reference)
