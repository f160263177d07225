"""Fills the goldens of model families, metal/arch/testdata/families/*.json, in
place: a file has cases, each with the config.json of a tiny model, and this
writes what the model's tensors are called and what two references compute.

A case without "quantize" is a folder as Hugging Face stores it: its tensors are
those that transformers saves for a model of this configuration, or, where
transformers has no such model, those of mlx-lm. A case with "quantize" is a
folder as mlx-lm writes it. A case that lists its tensors keeps them. Values are random, and a function of a tensor's name
and spec alone, so that metal/arch makes the same ones. A reference that a case
lists under "without" is not asked: the text there explains why.

A case may have adapters, each with its adapter_config.json and tensors. mlx-lm loads
those in its own layout; those of peft are merged into a dense model before.

usage: record.py mlx-lm|transformers FILE..."""

import json
import os
import re
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tiny"))
STRIDE = 8  # of all numbers but the logits after the first prompt
PROMPTS, GREEDY = (40, 13, 5), 8


def prompts(vocabulary):
    return [[(i * 31 + i * i * 7 + 3 + n) % (vocabulary - 4) + 2 for i in range(n)] for n in PROMPTS]


def words(name, n):
    """The first n numbers of 64 bits of SplitMix64, whose seed is FNV-1a of the name."""
    seed = 0xCBF29CE484222325
    for b in name.encode():
        seed = (seed ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)


def values(name, spec):
    """The values of a tensor: words of 32 bits, or uniform numbers of float32 around mean."""
    kind, mean, spread, *shape = spec
    z = words(name, int(np.prod(shape)))
    if kind == "U32":
        return (z >> np.uint64(32)).astype(np.uint32).reshape(shape)
    if kind == "U8":  # scales of small floats
        return (mean + (z >> np.uint64(32)) % np.uint64(spread)).astype(np.uint8).reshape(shape)
    unit = (z >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)
    return (unit * np.float32(spread) + np.float32(mean)).reshape(shape)


def spec(name, shape, kind, bits, mode="affine"):
    """Type, mean, spread and shape of a tensor: random, and of use in a network."""
    last = name.rsplit(".", 1)[-1]
    if kind == "U32":
        return ["U32", 0, 0, *shape]
    if kind == "U8":  # powers of two, or floats of 8 bits in nvfp4, that fit the width
        group = {"mxfp4": 32, "mxfp8": 32, "nvfp4": 16}[mode]
        top = np.log2(1.2 / (shape[-1] * group) ** 0.5 / (100 if mode == "mxfp8" else 2.5))
        return ["U8", int(np.floor(top)) + 127 if mode != "nvfp4" else int((top + 7) * 8), 2 if mode != "nvfp4" else 6, *shape]
    mean, spread = 0, 0.25
    if last in ("scales", "biases"):
        step = 1.5 / (shape[-1] * 32) ** 0.5 / (1 << bits) * 3.4
        mean, spread = (step, step / 4) if last == "scales" else (-step * ((1 << bits) - 1) / 2, step / 4)
    elif last == "D" or "norm" in name and last == "weight" and len(shape) == 1:
        mean, spread = 1, 0.5
    elif last in ("layer_scalar", "per_expert_scale", "scale"):
        mean, spread = 1, 0.25
    elif last in ("input_min", "output_min", "input_max", "output_max", "std_scale"):
        mean, spread = -1.5 if "min" in last else 1.5, 0.5
    elif last in ("A_log", "dt_bias", "sinks"):
        spread = 1
    elif last in ("alpha_p", "alpha_n"):
        mean, spread = 0.8, 0.3
    elif last == "beta":
        mean, spread = 0.5, 0
    elif last == "eps":
        mean, spread = -1e-6, 0
    elif "conv" in name:
        spread = 0.6
    elif len(shape) > 1:
        gain = 2.5 if "embed" in name or "lm_head" in name or "output" in name else 1.5
        spread = gain * (3 / shape[-1]) ** 0.5
    return ["F32", float(f"{mean:.4g}"), float(f"{spread:.4g}"), *shape]


def collapsed(tensors):
    """Names that differ in numbers alone, and mean tensors of one spec, as one."""
    out, groups = {}, {}
    for name, s in tensors.items():
        numbers = tuple(int(n) for n in re.findall(r"\.(\d+)\.", name))
        groups.setdefault((re.sub(r"\.\d+\.", ".#.", name), json.dumps(s)), []).append(numbers)
    for (pattern, s), found in groups.items():
        sets = [sorted({f[i] for f in found}) for i in range(len(found[0]))]
        if len(found) != np.prod([len(x) for x in sets], dtype=int):
            for numbers in found:
                name = pattern
                for n in numbers:
                    name = name.replace("#", str(n), 1)
                out[name] = json.loads(s)
            continue
        for x in sets:
            pattern = pattern.replace("#", "[" + ",".join(map(str, x)) + "]", 1)
        out[pattern] = json.loads(s)
    return out


def expanded(tensors):
    out = {}
    for pattern, s in tensors.items():
        names = [pattern]
        while "[" in names[0]:
            names = [n[: n.index("[")] + x + n[n.index("]") + 1 :] for n in names for x in n[n.index("[") + 1 : n.index("]")].split(",")]
        out |= {n: s for n in names}
    return out


def write(folder, case, adapter=None):
    from safetensors.numpy import save_file

    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(case["config"], f)
    tensors = {n: values(n, s) for n, s in expanded(case["tensors"]).items()}
    if adapter and "peft_type" in adapter["config"]:
        merge(tensors, adapter)
    elif adapter:
        with open(os.path.join(folder, "adapter_config.json"), "w") as f:
            json.dump(adapter["config"], f)
        save_file({n: values(n, s) for n, s in expanded(adapter["tensors"]).items()}, os.path.join(folder, "adapters.safetensors"))
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})


def merge(tensors, adapter):
    """Adds B A times alpha by the rank, or by its root, to each matrix."""
    config, factors = adapter["config"], {n: values(n, s) for n, s in expanded(adapter["tensors"]).items()}
    for name, a in factors.items():
        if ".lora_A" in name:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            matched = lambda pattern, otherwise: next((v for k, v in config.get(pattern, {}).items() if re.match(rf"(.*\.)?({k})$", module)), otherwise)
            rank = matched("rank_pattern", config["r"])
            scale = matched("alpha_pattern", config["lora_alpha"]) / (rank**0.5 if config.get("use_rslora") else rank)
            delta = factors[name.replace("lora_A", "lora_B")].astype(np.float64) @ a.astype(np.float64)
            tensors[module + ".weight"] = (tensors[module + ".weight"] + scale * delta).astype(np.float32)


def run(step, hidden, vocabulary):
    """What a reference computes. step(tokens, cache) gives the last logits and a cache."""
    short = lambda a: [float(f"{x:.7g}") for x in np.asarray(a, dtype=np.float64).ravel()]
    out = {"logits": [], "greedy": [], "margins": []}
    all_prompts = prompts(vocabulary)
    for i, p in enumerate(all_prompts):
        logits, cache = step(p, None)
        out["logits"].append(short(logits if i == 0 else logits[::STRIDE]))
        if i > 0:
            continue
        for _ in range(GREEDY):
            best, second = np.argsort(-logits)[:2]
            out["greedy"].append(int(best))
            out["margins"].append(float(f"{logits[best] - logits[second]:.3g}"))
            logits, cache = step([int(best)], cache)
    states = hidden(all_prompts[1])
    out["hidden"] = {"first": short(states[0][::STRIDE]), "last": short(states[-1][::STRIDE]), "mean": short(states.mean(0)[::STRIDE])}
    return out


def by_transformers(case, folder, adapter=None):
    import torch
    from safetensors.numpy import load_file
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    kind = getattr(transformers, case["config"]["architectures"][0], None)  # some have no entry in AutoModelForCausalLM
    if not case.get("tensors"):
        with tempfile.TemporaryDirectory() as bare:
            with open(os.path.join(bare, "config.json"), "w") as f:
                json.dump(case["config"], f)
            config = AutoConfig.from_pretrained(bare)
            model = (kind(config) if kind else AutoModelForCausalLM.from_config(config)).float()
            model.save_pretrained(bare)
            saved = load_file(os.path.join(bare, "model.safetensors"))
        case["tensors"] = collapsed({n: spec(n, list(t.shape), "F32", 0) for n, t in sorted(saved.items())})
    write(folder, case)
    model, info = (kind or AutoModelForCausalLM).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v and k in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")}
    if wrong:
        raise ValueError(wrong)
    model.eval()

    def step(tokens, cache):
        with torch.no_grad():
            out = model(torch.tensor([tokens]), past_key_values=cache, use_cache=True)
        return out.logits[0, -1].float().numpy(), out.past_key_values

    def hidden(tokens):
        with torch.no_grad():
            return getattr(d := model.get_decoder(), "model", d)(torch.tensor([tokens])).last_hidden_state[0].float().numpy()

    return run(step, hidden, case["config"].get("text_config", case["config"])["vocab_size"])


def by_mlx_lm(case, folder, adapter=None):
    from pathlib import Path

    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.tuner.utils import load_adapters
    from mlx_lm.utils import _get_classes, load_model, quantize_model

    if not case.get("tensors"):
        kind, args = _get_classes(case["config"])
        model = kind(args.from_dict(case["config"]))
        model.set_dtype(mx.float32)
        bits = 0
        if q := case.get("quantize"):
            bits = q["bits"]
            model, config = quantize_model(model, case["config"], q["group_size"], bits, mode=q.get("mode", "affine"))
            case["config"] = json.loads(json.dumps(config))
        kinds = {mx.uint32: "U32", mx.uint8: "U8"}
        found = {n: (kinds.get(a.dtype, "F32"), list(a.shape)) for n, a in tree_flatten(model.parameters())}
        mode = case.get("quantize", {}).get("mode", "affine")
        case["tensors"] = collapsed({n: spec(n, s, k, bits, mode) for n, (k, s) in sorted(found.items())})
    write(folder, case, adapter)
    model, _ = load_model(Path(folder))
    model.set_dtype(mx.float32)
    if adapter and "peft_type" not in adapter["config"]:
        model = load_adapters(model, folder)
        model.eval()

    def step(tokens, cache):
        cache = cache or make_prompt_cache(model)
        return np.array(model(mx.array([tokens]), cache=cache)[0, -1].astype(mx.float32)), cache

    decoder = getattr(model, "language_model", model)
    decoder = getattr(decoder, "model", None) or decoder.backbone

    def hidden(tokens):
        if inner := getattr(decoder, "language_model", None):  # that of Gemma 3n includes its head
            inner.final_logit_softcapping, inner.embed_tokens.as_linear = None, lambda x: x
        return np.array(decoder(mx.array([tokens]), cache=make_prompt_cache(model))[0])

    return run(step, hidden, case["config"].get("text_config", case["config"])["vocab_size"])


def shown(v, depth=0):
    """JSON with a line for each key down to the records, and one for each record."""
    if depth < 4 and isinstance(v, dict) and v:
        inner = ",\n".join("  " * (depth + 1) + json.dumps(k) + ": " + shown(x, depth + 1) for k, x in v.items())
        return "{\n" + inner + "\n" + "  " * depth + "}"
    if depth < 2 and isinstance(v, list):
        return "[" + ", ".join(shown(x, depth) for x in v) + "]"
    return json.dumps(v, separators=(",", ":"))


def main():
    who, make = sys.argv[1], {"mlx-lm": by_mlx_lm, "transformers": by_transformers}[sys.argv[1]]
    made_by = f"{who} {__import__(who.replace('-', '_')).__version__}, float32"
    failed = []
    for path in sys.argv[2:]:
        with open(path) as f:
            record = json.load(f)
        for case in record["cases"]:
            if who in case.get("without", {}) or who == "transformers" and "quantize" in case:
                case.get("records", {}).pop(who, None)
                continue
            if who in case.get("records", {}) and not os.environ.get("AGAIN"):
                continue
            try:
                for adapter in [None, *case.get("adapters", [])]:
                    with tempfile.TemporaryDirectory() as folder:
                        (adapter or case).setdefault("records", {})[who] = make(case, os.path.join(folder, "model"), adapter)
                print(case["name"], who, flush=True)
            except Exception as e:  # the others are of use all the same
                failed.append(case["name"])
                print(f"{case['name']}: {who}: {type(e).__name__}: {e}", flush=True)
        for case in record["cases"]:
            compare(case)
        record.setdefault("madeBy", {})[who] = made_by
        with open(path, "w") as f:
            f.write(shown(record) + "\n")
    if failed:
        sys.exit(f"{len(failed)} cases failed: {failed}")


def compare(case):
    """Prints how far the two references are from one another."""
    r = case.get("records", {})
    if len(r) < 2:
        return
    a, b = (np.array(sum(x["logits"], [])) for x in r.values())
    print(f"  {case['name']}: the references are {np.abs(a - b).max() / np.abs(a).max():.1e} apart")


if __name__ == "__main__":
    main()
