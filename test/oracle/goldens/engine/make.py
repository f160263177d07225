"""Writes token ids, their log-probabilities within the prompt, the largest logits
after it and a greedy continuation of some prompts, computed by mlx-lm's own Llama
in float32 on the weights of a GGUF file, dequantised to float32 by the gguf package.

    make.py MODEL.gguf OUT.json               the committed record: testdata/smollm2.json
    make.py MODEL.gguf OUT.json --varied      the prompts of prompts.py
    make.py MODEL.gguf OUT.json -- PROMPT...  any others

compare.sh does the last two and compares. MLX's CPU back end uses one
thread; it takes some minutes.
"""

import json
import sys

import gguf
import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache

import prompts

GREEDY = 24
TOP = 5

QUESTIONS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "What is 12 plus 30?",
    "Name three colours.",
]
TEXTS = [
    "The quick brown fox",
    "def fibonacci(n):\n    ",
    "Once upon a time there was a small engine that kept every model where its memory fits. " * 20,
    "1, 2, 3, 4, 5, 6, 7,",
]
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def text_of(field):
    return bytes(field.parts[-1]).decode()


def number(fields, key):
    return fields[key].parts[-1][0]


def unpermute(w, heads):
    """Rows (head, pair, side) of GGUF back to (head, side, pair)."""
    rows, cols = w.shape
    return w.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def load(path):
    reader = gguf.GGUFReader(path)
    f = reader.fields
    heads, kv_heads = int(number(f, "llama.attention.head_count")), int(number(f, "llama.attention.head_count_kv"))
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=int(number(f, "llama.embedding_length")),
        num_hidden_layers=int(number(f, "llama.block_count")),
        intermediate_size=int(number(f, "llama.feed_forward_length")),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=float(number(f, "llama.attention.layer_norm_rms_epsilon")),
        vocab_size=int(number(f, "llama.vocab_size")),
        rope_theta=float(number(f, "llama.rope.freq_base")),
        tie_word_embeddings=True,
    )
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }
    weights = {}
    for t in reader.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        w = w.reshape([int(d) for d in reversed(t.shape)])
        parts = t.name.split(".")
        if parts[0] == "blk":
            if parts[2] == "attn_q":
                w = unpermute(w, heads)
            if parts[2] == "attn_k":
                w = unpermute(w, kv_heads)
            name = f"model.layers.{parts[1]}.{names[parts[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[parts[0]] + ".weight"
        weights[name] = mx.array(w)
    model = llama.Model(args)
    model.load_weights(list(weights.items()), strict=True)
    model.eval()
    return reader, model


def tokenizer(reader):
    """The reference tokenizer, built from the vocabulary in the file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    f = reader.fields
    tokens = [bytes(f["tokenizer.ggml.tokens"].parts[i]).decode() for i in f["tokenizer.ggml.tokens"].data]
    merges = [tuple(bytes(f["tokenizer.ggml.merges"].parts[i]).decode().split(" ")) for i in f["tokenizer.ggml.merges"].data]
    kinds = [int(f["tokenizer.ggml.token_type"].parts[i][0]) for i in f["tokenizer.ggml.token_type"].data]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == 3])
    return tok


def recorded():
    cases = []
    for question in QUESTIONS:
        text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        cases.append({"question": question, "text": text})
    return cases + [{"text": t} for t in TEXTS]


def main(path, out, *texts):
    reader, model = load(path)
    tok = tokenizer(reader)
    cases = recorded()
    if texts:
        cases = [{"text": t} for t in (prompts.VARIED if texts[0] == "--varied" else texts[1:])]
    for case in cases:
        ids = tok.encode(case["text"], add_special_tokens=False).ids
        cache = make_prompt_cache(model)
        logits = model(mx.array([ids]), cache=cache)[0]
        assert logits.dtype == mx.float32
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        case["logprobs"] = [round(float(logprobs[i, ids[i + 1]].item()), 4) for i in range(len(ids) - 1)]
        values = np.array(logits[-1])
        order = np.argsort(-values, kind="stable")[:TOP]
        case["tokens"] = ids
        case["top"] = [{"id": int(i), "logit": round(float(values[i]), 5)} for i in order]
        case["greedy"], case["margins"] = [], []
        for _ in range(GREEDY):
            two = np.sort(values)[-2:]
            best = int(np.argmax(values))
            case["greedy"].append(best)
            case["margins"].append(round(float(two[1] - two[0]), 4))
            if best == 2:
                break
            values = np.array(model(mx.array([[best]]), cache=cache)[0, -1])
        print(repr(tok.decode(case["greedy"])), file=sys.stderr)
    made_by = f"mlx-lm {mlx_lm.__version__}, mlx {mx.__version__}, gguf, float32"
    with open(out, "w") as f:
        f.write('{"madeBy": %s, "cases": [\n' % json.dumps(made_by))
        f.write(",\n".join(json.dumps(c) for c in cases))
        f.write("\n]}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
