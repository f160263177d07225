"""Reads the tiny models: configuration in Hugging Face's words, and every weight
as float32 in Hugging Face's layout. It shares nothing with the readers of the
engine: GGUF is read by the gguf package, safetensors and MLX's packed words by
the few lines below."""

import glob
import hashlib
import json
import os
import struct

import numpy as np

NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.switch_mlp.gate_proj", "ffn_up_exps": "mlp.switch_mlp.up_proj", "ffn_down_exps": "mlp.switch_mlp.down_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
GEMMA = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
GPT_OSS = {
    "post_attention_norm": "post_attention_layernorm", "attn_sinks": "self_attn.sinks", "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj", "ffn_down_exps": "mlp.experts.down_proj",
}
GLOBAL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def read(path):
    """Returns (config, weights, rope factors or None)."""
    return read_gguf(path) if path.endswith(".gguf") else read_folder(path)


def digest(weights):
    """SHA-256 of all values, tensor by tensor in the order of their names."""
    out = hashlib.sha256()
    for name in sorted(weights):
        out.update(name.encode() + b"\n")
        out.update(np.ascontiguousarray(weights[name], dtype="<f4").tobytes())
    return out.hexdigest()


def unpermute(w, heads):
    """Rows (head, pair, side) of GGUF's llama back to (head, side, pair)."""
    rows, cols = w.shape
    return w.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def two_zeros(blocks, w):
    """ggml has one zero, floats of 4 bits have two: the other's sign is put back."""
    words = blocks.reshape(-1, 17)[:, 1:]
    out = w.reshape(-1, 32).copy()
    out[np.concatenate([words & 15, words >> 4], axis=1) == 8] = -0.0
    return out.reshape(w.shape)


def read_gguf(path):
    import gguf

    reader = gguf.GGUFReader(path)

    def field(key, default=None):
        f = reader.fields.get(key)
        if f is None:
            return default
        return bytes(f.parts[-1]).decode() if f.types[0] == gguf.GGUFValueType.STRING else f.parts[-1][0].item()

    family = field("general.architecture")
    config = {
        "model_type": family,
        "hidden_size": field(family + ".embedding_length"),
        "intermediate_size": field(family + ".feed_forward_length"),
        "num_hidden_layers": field(family + ".block_count"),
        "num_attention_heads": field(family + ".attention.head_count"),
        "num_key_value_heads": field(family + ".attention.head_count_kv"),
        "head_dim": field(family + ".attention.key_length"),
        "vocab_size": field(family + ".vocab_size"),
        "max_position_embeddings": field(family + ".context_length"),
        "rms_norm_eps": round(field(family + ".attention.layer_norm_rms_epsilon"), 12),  # stored as float32
        "rope_theta": field(family + ".rope.freq_base"),
        "rope_scaling": None,
        "tie_word_embeddings": True,
    }
    if field(family + ".rope.scaling.type"):
        config["rope_scaling"] = {"rope_type": field(family + ".rope.scaling.type"), "factor": field(family + ".rope.scaling.factor")}
    weights, factors = {}, None
    for t in reader.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        if t.tensor_type == gguf.GGMLQuantizationType.MXFP4:
            w = two_zeros(t.data, w)
        w = w.reshape([int(d) for d in reversed(t.shape)])
        parts = t.name.split(".")
        if t.name == "rope_freqs.weight":
            factors = w
            continue
        if parts[0] != "blk":
            weights[GLOBAL[parts[0]] + ".weight"] = w
            continue
        if family == "llama" and parts[2] == "attn_q":
            w = unpermute(w, config["num_attention_heads"])
        if family == "llama" and parts[2] == "attn_k":
            w = unpermute(w, config["num_key_value_heads"])
        names = NAMES | {"gemma3": GEMMA, "gpt-oss": GPT_OSS}.get(family, {})
        name = f"model.layers.{parts[1]}.{names[parts[2]]}.{parts[3]}"
        weights[name.replace(".sinks.weight", ".sinks")] = w
    config["tie_word_embeddings"] = "lm_head.weight" not in weights
    if family == "gemma3":
        config |= {
            "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": config["head_dim"],
            "sliding_window": field("gemma3.attention.sliding_window"), "sliding_window_pattern": field("gemma3.attention.sliding_window_pattern"),
            "rope_local_base_freq": field("gemma3.rope.freq_base_swa"),
        }
    if family == "gpt-oss":
        config |= {
            "model_type": "gpt_oss", "num_local_experts": field("gpt-oss.expert_count"), "num_experts_per_tok": field("gpt-oss.expert_used_count"),
            "sliding_window": field("gpt-oss.attention.sliding_window"), "attention_bias": True,
            "layer_types": ["sliding_attention", "full_attention"] * (config["num_hidden_layers"] // 2),
        }
        config["rope_scaling"] |= {
            "original_max_position_embeddings": field("gpt-oss.rope.scaling.original_context_length"), "truncate": True,  # as llama.cpp does
            "beta_fast": field("gpt-oss.rope.scaling.yarn_beta_fast"), "beta_slow": field("gpt-oss.rope.scaling.yarn_beta_slow"),
        }
    if family == "qwen3moe":
        config |= {
            "model_type": "qwen3_moe", "num_experts": field("qwen3moe.expert_count"), "num_experts_per_tok": field("qwen3moe.expert_used_count"),
            "moe_intermediate_size": field("qwen3moe.expert_feed_forward_length"), "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        }
    return config, weights, factors


def hybrid(config):
    return config["model_type"] == "qwen3_next" or config["model_type"].startswith("qwen3_5")


def less_one(name):
    """Says of a norm whether Hugging Face's hybrids hold it less one."""
    return name.endswith("norm.weight") and ".linear_attn." not in name


def as_hugging_face(config, weights, kernels):
    """The weights of a hybrid as transformers holds them. kernels is the
    layout of its convolutions: as mlx-lm stores them, with norms as they are used."""
    if not hybrid(config):
        return weights
    out = {}
    for name, w in weights.items():
        if "conv1d" in name:
            w = w.reshape(w.shape[0], 1, -1)
        elif kernels == "mlx" and less_one(name):
            w = w - 1
        out[name] = w
    return out


def as_folder(path, config, weights):
    """The weights as a folder holds them: the norms of a Gemma less one."""
    if not path.endswith(".gguf") or config["model_type"] != "gemma3_text":
        return weights
    return {k: v - 1 if "norm" in k else v for k, v in weights.items()}


def safetensors(path):
    """Every tensor of a file: floats as float32, words as bytes."""
    out = {}
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    for name, t in header.items():
        if name == "__metadata__":
            continue
        raw = data[t["data_offsets"][0]:t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            v = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        elif t["dtype"] in ("U32", "U8"):
            out[name] = np.frombuffer(raw, np.uint8).reshape(*t["shape"][:-1], -1)
            continue
        else:
            v = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[t["dtype"]]).astype(np.float32)
        out[name] = v.reshape(t["shape"])
    return out


def affine(words, scales, biases, bits):
    """Elements lie in consecutive bits, low ones first; each group of a row has
    a scale and a bias."""
    if scales.ndim == 3:
        return np.stack([affine(*one, bits) for one in zip(words, scales, biases)])
    rows, groups = scales.shape
    q = np.unpackbits(words, axis=1, bitorder="little").reshape(rows, -1, bits)
    q = (q * (1 << np.arange(bits))).sum(axis=2).astype(np.float32).reshape(rows, groups, -1)
    return (q * scales[..., None] + biases[..., None]).astype(np.float32).reshape(rows, -1)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


def e4m3(b):
    sizes = [(m + 8 * (e > 0)) * 2.0 ** (max(e, 1) - 10) for e in range(16) for m in range(8)]
    sizes[127] = np.nan
    return np.array(sizes + [-v for v in sizes], dtype=np.float32)[b]


def small_floats(words, scales, mode):
    """Floats of 4 or 8 bits; each group of a row has a scale of a byte."""
    if mode == "mxfp8":
        values = e4m3(words)
    else:
        values = E2M1[np.stack([words & 15, words >> 4], axis=-1)].reshape(*words.shape[:-1], -1)
    powers = e4m3(scales) if mode == "nvfp4" else np.exp2(scales.astype(np.float32) - 127)
    groups = values.reshape(*scales.shape, -1)
    assert groups.shape[-1] == (16 if mode == "nvfp4" else 32)
    return (groups * powers[..., None]).astype(np.float32).reshape(values.shape)


EYES = ("vision_tower.", "multi_modal_projector.")


def plain(name):
    """The name of a decoder's tensor as if there were no vision encoder."""
    name = name.replace("model.language_model.", "language_model.model.", 1) if name.startswith("model.language_model.") else name
    return name.removeprefix("language_model.")


def read_folder(path):
    with open(os.path.join(path, "config.json")) as f:
        config = json.load(f)
    raw = {}
    for name in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        raw.update(safetensors(name))
    quantization = config.pop("quantization", None)
    if config.pop("quantization_config", {}).get("quant_method") == "mxfp4":
        raw, quantization = published(raw), {"mode": "mxfp4"}
    if "text_config" in config and not hybrid(config):
        config = config["text_config"]
        raw = {plain(name): w for name, w in raw.items() if not name.startswith(EYES)}
        quantization = quantization and {plain(k): v for k, v in quantization.items()}
    weights = {}
    for name, w in raw.items():
        layer = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if layer + ".scales" in raw:
            how = quantization.get(layer, quantization)
            if how.get("mode", "affine") == "affine":
                w = affine(w, raw[layer + ".scales"], raw[layer + ".biases"], how["bits"])
            else:
                w = small_floats(w, raw[layer + ".scales"], how["mode"])
        weights[name] = w
    if hybrid(config):
        config, weights = text_alone(config, weights)
    return config, stacked(weights), None


def text_alone(config, weights):
    """The text of a model that also has eyes, in the names of one that has not,
    and the experts of a Qwen3.5 one by one."""
    config = config | config.pop("text_config", {})
    out = {}
    for name, w in weights.items():
        if name.startswith(("model.visual.", "vision_tower.", "mtp.")):
            continue
        name = name.replace("model.language_model.", "model.").removeprefix("language_model.")
        if name.endswith(".experts.gate_up_proj"):
            for i, both in enumerate(w):
                gate, up = np.split(both, 2)
                out[name.replace("gate_up_proj", f"{i}.gate_proj.weight")] = gate
                out[name.replace("gate_up_proj", f"{i}.up_proj.weight")] = up
        elif name.endswith(".experts.down_proj"):
            for i, down in enumerate(w):
                out[name.replace("down_proj", f"{i}.down_proj.weight")] = down
        else:
            out[name] = w
    return config, out


def published(raw):
    """The tensors of a GPT-OSS with its blocks as words, in the words of mlx-lm."""
    out = {}
    for name, w in raw.items():
        if name.endswith("_blocks"):
            name, w = name.removesuffix("_blocks") + ".weight", w.reshape(*w.shape[:-2], -1)
        elif ".mlp.experts." in name:
            for kind in ("scales", "bias"):
                name = name.replace("_" + kind, "." + kind)
        out[name] = w
    return out


def apart(weights):
    """Gate and up of the experts as two tensors, whose rows, or numbers, took
    turns in one."""
    out = {}
    for name, w in weights.items():
        if ".gate_up_proj." in name:
            out[name.replace("gate_up", "gate")], out[name.replace("gate_up", "up")] = w[:, 0::2], w[:, 1::2]
        else:
            out[name] = w
    return out


def stacked(weights):
    """The experts of a layer as one tensor, as mlx-lm has them."""
    out, experts = {}, {}
    for name, w in weights.items():
        if ".mlp.experts." not in name or not name.split(".mlp.experts.")[1][0].isdigit():
            out[name] = w
            continue
        layer, expert = name.split(".mlp.experts.")
        number, matrix = expert.split(".", 1)
        experts.setdefault(f"{layer}.mlp.switch_mlp.{matrix}", {})[int(number)] = w
    for name, all in experts.items():
        out[name] = np.stack([all[i] for i in range(len(all))])
    return out
