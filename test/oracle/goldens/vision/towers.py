"""Records what transformers and mlx-vlm compute of images with tiny models: the tokens that
the vision tower makes, and logits after a prompt that contains them.

Weights and patches are random, and a function of names and specs alone, as those of
test/oracle/goldens/families are: package arch makes the same ones. A case that
has tensors keeps them.

usage: towers.py transformers|mlx-vlm FILE"""

import json
import os
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "families"))
import record

IMAGE, GREEDY = 90, 4
TEXT = {"hidden_size": 96, "intermediate_size": 160, "num_attention_heads": 3, "num_key_value_heads": 1, "vocab_size": 104, "max_position_embeddings": 512, "rms_norm_eps": 1e-6}
QWEN = {"depth": 3, "hidden_size": 48, "intermediate_size": 80, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2,
        "out_hidden_size": 96, "num_position_embeddings": 49, "in_channels": 3, "hidden_act": "gelu_pytorch_tanh"}
GEMMA = {**TEXT, "model_type": "gemma4_text", "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32, "tie_word_embeddings": True,
         "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"] * 3, "final_logit_softcapping": 30.0, "vocab_size_per_layer_input": 104, "pad_token_id": 3, "rope_parameters": {
             "full_attention": {"rope_theta": 1e6, "rope_type": "proportional", "partial_rotary_factor": 0.25}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}}
SIGHT = {"model_type": "gemma4_vision", "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 20, "num_hidden_layers": 3, "patch_size": 4,
         "pooling_kernel_size": 3, "position_embedding_size": 40, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}
IDS = {"image_token_id": IMAGE, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93, "tie_word_embeddings": False}
CASES = {
    "qwen3_vl": {"grids": [[6, 10], [8, 4]], "config": {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", **IDS,
        "text_config": {**TEXT, "model_type": "qwen3_vl_text", "num_hidden_layers": 4, "head_dim": 32, "rope_theta": 10000.0,
                        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"}},
        "vision_config": {**QWEN, "model_type": "qwen3_vl", "deepstack_visual_indexes": [0, 2]}}},
    "qwen3_5": {"grids": [[4, 6], [2, 2]], "config": {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", **IDS,
        "text_config": {**TEXT, "model_type": "qwen3_5_text", "num_hidden_layers": 4, "head_dim": 32, "full_attention_interval": 2,
                        "layer_types": ["linear_attention", "full_attention"] * 2, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
                        "linear_num_value_heads": 4, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_interleaved": True, "mrope_section": [4, 2, 2]}},
        "vision_config": {**QWEN, "model_type": "qwen3_5", "deepstack_visual_indexes": []}}},
    "gemma3": {"grids": [[6, 6], [6, 6]], "without": {"mlx-vlm": "it computes another GELU, norms with another epsilon, and lets text see what follows it"}, "config": {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "image_token_index": IMAGE, "boi_token_index": 92, "eoi_token_index": 93, "mm_tokens_per_image": 9,
        "text_config": {**TEXT, "model_type": "gemma3_text", "hidden_size": 144, "num_hidden_layers": 3, "head_dim": 32, "sliding_window": 7, "query_pre_attn_scalar": 24, "rope_theta": 1e6,
                        "rope_local_base_freq": 10000.0, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 60, "intermediate_size": 72, "num_attention_heads": 3, "num_hidden_layers": 2, "image_size": 24, "patch_size": 4,
                          "layer_norm_eps": 1e-6, "vision_use_head": False}}},
    "gemma4": {"grids": [[6, 15], [9, 6]], "config": {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "image_token_id": IMAGE, "boi_token_id": 92, "eoi_token_id": 93, "tie_word_embeddings": True,
        "text_config": {**GEMMA, "use_bidirectional_attention": "vision", "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0},
        "vision_config": {**SIGHT, "standardize": True}}},
    "gemma4 small": {"grids": [[6, 15], [9, 6]], "config": {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "image_token_id": IMAGE, "boi_token_id": 92, "eoi_token_id": 93, "tie_word_embeddings": True,
        "text_config": {**GEMMA, "attention_k_eq_v": False, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "use_double_wide_mlp": True},
        "vision_config": {**SIGHT, "use_clipped_linears": True}}},
}
CASES["qwen3_vl, few layers"] = {**json.loads(json.dumps(CASES["qwen3_vl"]).replace('layers": 4, "head_dim": 32', 'layers": 2, "head_dim": 28').replace('"mrope_section": [6, 5, 5], ', "").replace("[0, 2]", "[2, 1, 0]")), "without": {"mlx-vlm": "it refuses a rotation without mrope_section"}}


def geometry(config):
    """Side of a patch, frames, and side of a block."""
    v = config["vision_config"]
    if "spatial_merge_size" in v:
        return v["patch_size"], v["temporal_patch_size"], v["spatial_merge_size"]
    if "pooling_kernel_size" in v:
        return v["patch_size"], 1, v["pooling_kernel_size"]
    side = v["image_size"] // v["patch_size"]
    return v["patch_size"], 1, side // int(config["mm_tokens_per_image"] ** 0.5)


def patches(case):
    """Patches of all images, in blocks."""
    patch, frames, _ = geometry(case["config"])
    return [record.values(f"patches {i}", ["F32", 0, 1, h * w, 3 * frames * patch * patch]) for i, (h, w) in enumerate(case["grids"])]


def picture(a, grid, patch, merge):
    """The pixels [3, height, width] of patches of one frame."""
    h, w = grid
    return a.reshape(h // merge, w // merge, merge, merge, 3, patch, patch).transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, h * patch, w * patch)


def padded(case):
    """Patches of all images as Gemma 4's processor pads them, and their columns and rows."""
    most, (_, _, merge) = max(h * w for h, w in case["grids"]) + 9, geometry(case["config"])
    fill = lambda a, value: np.pad(a, ((0, most - len(a)), (0, 0)), constant_values=value)
    places = [[(x + j, y + i) for y in range(0, h, merge) for x in range(0, w, merge) for i in range(merge) for j in range(merge)] for h, w in case["grids"]]
    return np.stack([fill(a, 0) for a in patches(case)]), np.stack([fill(np.array(p), -1) for p in places])


def prompt(case):
    """Text, an image, text, an image, text."""
    _, _, merge = geometry(case["config"])
    ids = [5, 17, 33]
    for i, (h, w) in enumerate(case["grids"]):
        ids += [92] + [IMAGE] * (h * w // merge**2) + [93, 40 + i, 7, 61]
    return ids


def short(a):
    return [float(f"{x:.7g}") for x in np.asarray(a, dtype=np.float64).ravel()]


def by_transformers(case, folder):
    import torch
    import transformers
    from safetensors.numpy import load_file

    torch.set_grad_enabled(False)
    kind = getattr(transformers, case["config"]["architectures"][0])
    if not case.get("tensors"):
        with tempfile.TemporaryDirectory() as bare:
            with open(os.path.join(bare, "config.json"), "w") as f:
                json.dump(case["config"], f)
            kind(transformers.AutoConfig.from_pretrained(bare)).float().save_pretrained(bare)
            saved = load_file(os.path.join(bare, "model.safetensors"))
        case["tensors"] = record.collapsed({n: record.spec(n, list(t.shape), "F32", 0) for n, t in sorted(saved.items())})
    record.write(folder, case)
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    patch, _, merge = geometry(case["config"])
    ids, grids, a = prompt(case), case["grids"], patches(case)
    inputs, deep = {"mm_token_type_ids": torch.tensor([[int(i == IMAGE) for i in ids]])}, []
    if "spatial_merge_size" in case["config"]["vision_config"]:
        inputs |= {"pixel_values": torch.tensor(np.concatenate(a)), "image_grid_thw": torch.tensor([[1, h, w] for h, w in grids])}
        out = model.model.visual(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
        seen, deep = out.pooler_output, getattr(out, "deepstack_features", None) or []
    elif "pooling_kernel_size" in case["config"]["vision_config"]:
        inputs |= dict(zip(("pixel_values", "image_position_ids"), map(torch.tensor, padded(case))))
        seen = model.model.get_image_features(inputs["pixel_values"], inputs["image_position_ids"]).pooler_output
    else:
        inputs = {"token_type_ids": inputs["mm_token_type_ids"], "pixel_values": torch.tensor(np.stack([picture(x, g, patch, merge) for x, g in zip(a, grids)]))}
        seen = model.model.get_image_features(inputs["pixel_values"])
        seen = getattr(seen, "pooler_output", seen)
    flat = lambda x: (torch.cat(list(x)) if isinstance(x, (list, tuple)) else x).reshape(-1, case["config"]["text_config"]["hidden_size"]).numpy()
    logits, greedy = [], []
    out = model(torch.tensor([ids]), use_cache=True, **inputs)
    text = list(ids)
    for _ in range(GREEDY):
        logits.append(short(out.logits[0, -1]))
        greedy.append(int(out.logits[0, -1].argmax()))
        text.append(greedy[-1])
        kinds = {k: torch.nn.functional.pad(v, (0, len(text) - v.shape[1])) if k.endswith("type_ids") else v for k, v in inputs.items()}
        out = model(torch.tensor([text]), use_cache=False, **kinds)  # without a cache: positions cannot be wrong
    return {"seen": short(flat(seen)[:: record.STRIDE]), "deep": [short(flat(x)[:: record.STRIDE]) for x in deep], "logits": logits, "greedy": greedy}


def by_mlx_vlm(case, folder):
    from pathlib import Path

    import mlx.core as mx
    from mlx_vlm.utils import load_model

    record.write(folder, case)
    model = load_model(Path(folder), lazy=True)
    model.set_dtype(mx.float32)
    patch, _, merge = geometry(case["config"])
    a = patches(case)
    if "spatial_merge_size" in case["config"]["vision_config"]:
        seen = model.vision_tower(mx.array(np.concatenate(a)), mx.array([[1, h, w] for h, w in case["grids"]]))
        seen, deep = seen if isinstance(seen, tuple) else (seen, [])
    elif "pooling_kernel_size" in case["config"]["vision_config"]:
        seen, deep = model.encode_image(*map(mx.array, padded(case))), []
    else:
        pixels = mx.array(np.stack([picture(x, g, patch, merge) for x, g in zip(a, case["grids"])]))
        seen, deep = model.multi_modal_projector(model.vision_tower(pixels.transpose(0, 2, 3, 1), output_hidden_states=True)[0]), []
    flat = lambda x: np.array(x).reshape(-1, case["config"]["text_config"]["hidden_size"])
    return {"seen": short(flat(seen)[:: record.STRIDE]), "deep": [short(flat(x)[:: record.STRIDE]) for x in deep]}


def main():
    who, path = sys.argv[1:]
    out = {"cases": []}
    if os.path.exists(path):
        with open(path) as f:
            out = json.load(f)
    known = {c["name"]: c for c in out["cases"]}
    out["cases"] = [{"name": n, **{k: v for k, v in known.get(n, {}).items() if k in ("tensors", "records")}, **c} for n, c in CASES.items()]
    for case in out["cases"]:
        if who in case.get("without", {}):
            continue
        with tempfile.TemporaryDirectory() as folder:
            case.setdefault("records", {})[who] = (by_transformers if who == "transformers" else by_mlx_vlm)(case, os.path.join(folder, "model"))
        r = case["records"]
        if len(r) > 1:
            x, y = (np.array(v["seen"]) for v in r.values())
            print(f"{case['name']}: the references are {np.abs(x - y).max() / np.abs(x).max():.1e} apart")
    out.setdefault("madeBy", {})[who] = f"{who} {__import__(who.replace('-', '_')).__version__}, float32"
    with open(path, "w") as f:
        f.write(record.shown(out) + "\n")


main()
