"""Checks with mlx-lm and tokenizers what `engine convert` wrote.

    check.py --texts OUT.json                    write some hundred texts
    check.py FOLDER smollm2.json                 check what main.go wrote

Of SmolLM2: the logits that mlx-lm computes from the folder are those that it
computed from the float32 values of the GGUF file (test/oracle/goldens/engine), and
tokenizer.json gives the ids of our own tokenizer, with every pre-tokenizer. Of tiny models of every
family: mlx-lm loads each folder, formats that were kept hold the values of
their source bit by bit, and quantised ones the words of MLX's own quantize. Of
hybrids and GPT-OSS under every kind of plan: mlx-lm loads them, computes the
logits that our engine computes, and those are as far from the source's as
families.go says; what was kept has the source's values, as test/oracle/goldens/tiny
reads both.
"""

import json
import pathlib
import random
import sys

import gguf
import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.utils import load_model
from tokenizers import Tokenizer
from transformers import AutoTokenizer

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / folder) for folder in ("tokenizer", "tiny")]
import models  # noqa: E402
import texts  # noqa: E402

TOLERANCE = 1e-3
TYPES = {"": None, "float16": mx.float16}
NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.switch_mlp.gate_proj", "ffn_up_exps": "mlp.switch_mlp.up_proj", "ffn_down_exps": "mlp.switch_mlp.down_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
GEMMA = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
ROUTER = (64, 8)  # group and bits


def write_texts(out):
    rng = random.Random(5)
    list_ = list(texts.SENTENCES)
    while len(list_) < 600:
        list_.append("".join(rng.choice(texts.SENTENCES)[rng.randrange(20):][: rng.randrange(1, 80)] for _ in range(rng.randrange(1, 6))))
    pathlib.Path(out).write_text(json.dumps(list_))


def check_smollm2(folder, golden):
    record = json.loads(pathlib.Path(golden).read_text())
    model, tokenizer = mlx_lm.load(str(folder / "smollm2"))
    worst = 0.0
    for case in record["cases"]:
        if "question" in case:
            ids = tokenizer.apply_chat_template([{"role": "user", "content": case["question"]}], add_generation_prompt=True)
        else:
            ids = tokenizer.encode(case["text"])
        assert list(ids) == case["tokens"], f"ids of {case['text'][:40]!r} are {ids}"
        logits = model(mx.array([case["tokens"]]))[0, -1]
        assert logits.dtype == mx.float32, logits.dtype
        for top in case["top"]:
            worst = max(worst, abs(float(logits[top["id"]]) - top["logit"]))
    assert worst <= TOLERANCE, f"a logit is off by {worst}"
    assert tokenizer.eos_token_ids == {2}, tokenizer.eos_token_ids
    print(f"smollm2: {len(record['cases'])} prompts, worst of the largest logits off by {worst:.6f} (tolerance {TOLERANCE})")

    ours = json.loads((folder / "ids.json").read_text())
    for pre, all_ in ours["ids"].items():
        path = folder / f"tokenizer-{pre}"
        plain, whole = Tokenizer.from_file(str(path / "tokenizer.json")), AutoTokenizer.from_pretrained(str(path))
        for text, want in zip(ours["texts"], all_, strict=True):
            for got in (plain.encode(text, add_special_tokens=False).ids, whole.encode(text, add_special_tokens=False)):
                assert got == want, f"{pre}, {text!r}: tokenizer.json gives {got}, our tokenizer {want}"
    print(f"ids of {len(ours['texts'])} texts equal with the pre-tokenizers {', '.join(ours['ids'])}")


# How far quantising moves the logits of SmolLM2 at most: the root mean square of
# the change relative to that of the source's logits, both around their means, and the
# divergence in nats. The source has 4 bits itself, and is small: what is rounded
# a second time, to as few, is far from it.
BOUNDS = {
    "8:64": (0.05, 0.01), "4:32": (0.25, 0.2), "4:64": (0.85, 3), "4:64 but 8:64": (0.8, 2.7),
    "mxfp8": (0.26, 0.28), "mxfp4": (1.1, 5.6), "nvfp4": (0.8, 2.4),
}
OURS = 1e-3  # of our engine on the same folder, relative to the largest logit


def log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def last(model, prompts):
    return [np.array(model(mx.array([p]))[0, -1].astype(mx.float32), dtype=np.float64) for p in prompts]


def check_quantised(folder):
    record = json.loads((folder / "quantised.json").read_text())
    source = last(load_model(folder / "smollm2")[0], record["prompts"])
    assert {c["name"] for c in record["cases"]} == set(BOUNDS), "plans differ from BOUNDS"
    for c in record["cases"]:
        model, config = load_model(pathlib.Path(c["out"]))
        assert config["quantization"]["bits"], config
        got = last(model, record["prompts"])
        moved = divergence = ours = 0.0
        for want, theirs, mine in zip(source, got, c["logits"], strict=True):
            moved = max(moved, np.std(theirs - want) / np.std(want))
            p, q = log_softmax(want), log_softmax(theirs)
            divergence = max(divergence, float((np.exp(p) * (p - q)).sum()))
            ours = max(ours, np.abs(np.array(mine) - theirs).max() / np.abs(theirs).max())
        print(f"smollm2 as {c['name']}: {c['bitsPerWeight']:.2f} bits a weight; logits move by {moved:.4f} of their size, {divergence:.4f} nats at most; our engine is off by {ours:.1e}")
        assert moved <= BOUNDS[c["name"]][0] and divergence <= BOUNDS[c["name"]][1] and ours <= OURS, f"{c['name']}: too far, want {BOUNDS[c['name']]} and {OURS}"


FAMILY = 5e-5  # of our engine on the same folder, relative to the largest logit: a hybrid's state keeps what is rounded


def wide(path, prompt):
    """mlx-lm's logits after a prompt, in float32."""
    model, _ = load_model(path)
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([prompt]))[0, -1], dtype=np.float64)


def meant(path, norms):
    """The values of a folder by their names in mlx-lm: experts gate by gate, and
    the norms of a hybrid as they are meant, in the type that they are written in,
    as mlx-lm adds one."""
    config, weights, _ = models.read(str(path))
    raw = models.hybrid(config) and any("conv1d" in k and w.shape[-1] != 1 for k, w in weights.items())
    out = {}
    for k, w in models.apart(weights).items():
        if raw and models.less_one(k):
            w = np.array((mx.array(w).astype(norms) + 1).astype(mx.float32))
        if "conv1d" in k:
            w = w.reshape(w.shape[0], -1)
        out[k] = w
    return out


def check_family(c, sources):
    out, source = pathlib.Path(c["out"]), pathlib.Path(c["source"])
    got = wide(out, c["prompt"])
    ours = np.abs(np.array(c["logits"]) - got).max() / np.abs(got).max()
    assert ours <= FAMILY, f"our engine is off by {ours}"
    want = sources.get(source)
    if want is None and c["as"] == "keep":
        want = sources[source] = got
    moved = np.std(got - want) / np.std(want)
    print(f"{c['name']}: logits move by {moved:.4f}; our engine is off by {ours:.1e}")
    assert moved <= c.get("bound", 0) and (moved > 0) == (c["as"] != "keep"), f"logits move by {moved}, want up to {c.get('bound', 0)}"
    if c["as"] == "keep":
        norms = next(w.dtype for f in sorted(out.glob("*.safetensors")) for k, w in mx.load(str(f)).items() if k.endswith("layernorm.weight"))
        a, b = meant(out, norms), meant(source, norms)
        assert set(a) == set(b), set(a) ^ set(b)
        for k in a:
            equal(k, a[k], b[k])
        return
    config = json.loads((out / "config.json").read_text())
    assert config["quantization"], config


def unpermute(w, heads):
    """Rows (head, pair, side) of GGUF back to (head, side, pair)."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def values_of_gguf(path):
    reader = gguf.GGUFReader(path)
    family = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    number = lambda key: int(reader.fields[f"{family}.attention.{key}"].parts[-1][0])
    out = {}
    for t in reader.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(d) for d in reversed(t.shape)])
        parts = t.name.split(".")
        if parts[0] != "blk":
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[parts[0]]
            out[name] = w - 1 if family == "gemma3" and "norm" in name else w
            continue
        if family == "llama" and parts[2] in ("attn_q", "attn_k"):
            w = unpermute(w, number("head_count" if parts[2] == "attn_q" else "head_count_kv"))
        name = (NAMES | GEMMA if family == "gemma3" else NAMES)[parts[2]]
        name += ".bias" if parts[3] == "bias" else ""
        out[f"model.layers.{parts[1]}.{name}"] = w - 1 if family == "gemma3" and "norm" in name else w
    return out


def values_of_folder(path):
    out, experts = {}, {}
    for f in sorted(path.glob("*.safetensors")):
        for k, w in mx.load(str(f)).items():
            if k.startswith(("vision_tower.", "multi_modal_projector.")):
                continue  # only the decoder is converted
            k = k.removeprefix("language_model.").removesuffix(".weight")
            if ".mlp.experts." in k:
                layer, expert = k.split(".mlp.experts.")
                number, name = expert.split(".")
                experts.setdefault(f"{layer}.mlp.switch_mlp.{name}", {})[int(number)] = w
            else:
                out[k] = w
    return out | {k: mx.stack([all_[i] for i in range(len(all_))]) for k, all_ in experts.items()}


def equal(name, got, want):
    got, want = np.array(got.astype(mx.float32)) if isinstance(got, mx.array) and got.dtype != mx.uint32 else np.array(got), want
    want = np.array(want.astype(mx.float32)) if isinstance(want, mx.array) and want.dtype != mx.uint32 else np.array(want)
    assert got.shape == want.shape and (got == want).all(), f"{name}: values differ, {np.abs(got.astype(np.float64) - want).max()} at most"


def check_tiny(c):
    out, source = pathlib.Path(c["out"]), pathlib.Path(c["source"])
    model, config = load_model(out)
    if "num_experts" not in config or config.get("quantization") or config["torch_dtype"] == "float32":  # MLX has no others on a processor
        logits = model(mx.array([[1, 2, 3]]))
        assert mx.all(mx.isfinite(logits)).item(), "logits are not finite"
    got = {}
    for f in sorted(out.glob("*.safetensors")):
        got |= mx.load(str(f))
    want = values_of_gguf(source) if source.suffix == ".gguf" else values_of_folder(source)
    dtype = TYPES[c["type"]]
    quantization = config.get("quantization", {})
    for path, w in want.items():
        if not isinstance(w, mx.array):
            w = mx.array(w)
        if dtype is not None:
            w = w.astype(dtype)
        words = got[path] if path.endswith(".bias") else got[path + ".weight"]
        if path + ".scales" not in got:
            assert not c["bits"] or w.ndim == 1 or w.shape[-1] % c["group"], f"{path} is not quantised"
            assert dtype is None or words.dtype == dtype, words.dtype
            equal(path, words, w)
            continue
        scales, biases = got[path + ".scales"], got[path + ".biases"]
        if not c["bits"]:
            g = quantization.get(path, quantization)
            equal(path, mx.dequantize(words, scales, biases, g["group_size"], g["bits"]), w)
            continue
        group, bits = ROUTER if path.endswith(".mlp.gate") else (c["group"], c["bits"])
        for part, a, b in zip(("words", "scales", "biases"), (words, scales, biases), mx.quantize(w, group, bits), strict=True):
            assert a.dtype == b.dtype, f"{path}: {part} are {a.dtype}, MLX has {b.dtype}"
            equal(f"{path}, {part}", a, b)


def main(folder, golden):
    mx.set_default_device(mx.cpu)
    folder = pathlib.Path(folder)
    check_smollm2(folder, golden)
    check_quantised(folder)
    all_ = [c for c in json.loads((folder / "list.json").read_text()) if c["name"] != "smollm2"]
    sources = {}
    for c in sorted(all_, key=lambda c: c.get("as", "") != "keep"):  # the kept ones define how the source computes
        try:
            if c.get("as"):
                check_family(c, sources)
            else:
                check_tiny(c)
        except Exception as e:
            sys.exit(f"convert: {c['name']}: {e}")
    planned = {c["source"].rsplit("/", 1)[1].split("-", 1)[0] for c in all_ if c.get("as")}
    assert planned == {"qwen3_next", "qwen3_5", "gpt_oss"}, planned
    print(f"tiny models: {len(all_)} conversions load in mlx-lm {mlx_lm.__version__}; values kept bit by bit, or quantised as MLX {mx.__version__} does")


if __name__ == "__main__":
    if sys.argv[1] == "--texts":
        write_texts(sys.argv[2])
    else:
        main(sys.argv[1], sys.argv[2])
