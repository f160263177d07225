"""mlx-lm's own figures for a model folder, as JSON: its model code, its generate_step, on the default device.

usage: peer.py MODEL TOKENS [PROMPT ...]

For each prompt length: seconds to the first token (median of RUNS after a warm-up), then seconds a token over TOKENS
greedy ones. For 1, 8 and 16 rows of 128 tokens: seconds a step of the model alone, each built on the tokens of the one
before. The bandwidth is what adding 1 to 2 GB of numbers moves, bytes read and written.
"""
import json
import sys
import time

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import generate_step
from mlx_lm.models import cache
from mlx_lm.utils import load_model
from pathlib import Path

RUNS = 5


def median(values):
    return sorted(values)[len(values) // 2]


def prompt_of(length, vocabulary):
    return mx.array([(i * 7919 + 13) % vocabulary for i in range(length)])


def generate(model, prompt, tokens):
    """Seconds to the first token, and between the others."""
    began = time.perf_counter()
    times = []
    for token, _ in generate_step(prompt, model, max_tokens=tokens + 1):
        assert isinstance(token, int)
        times.append(time.perf_counter())
    return times[0] - began, [b - a for a, b in zip(times, times[1:])]


def rows(model, vocabulary, count, tokens):
    """Seconds a step of count rows at once, built ahead as generate_step builds them."""
    state = cache.make_prompt_cache(model)
    mx.eval(model(mx.broadcast_to(prompt_of(128, vocabulary)[None], (count, 128)), cache=state))
    step = lambda y: mx.argmax(model(y[:, None], cache=state)[:, -1], axis=-1)
    y = step(mx.zeros((count,), mx.int32))
    mx.async_eval(y)
    took = []
    for _ in range(tokens):
        began = time.perf_counter()
        following = step(y)
        mx.async_eval(following)
        y.tolist()
        y = following
        took.append(time.perf_counter() - began)
    mx.eval(y)
    return median(took[3:])


def bandwidth():
    a = mx.zeros((1 << 30,), mx.bfloat16)
    took = []
    for _ in range(6):
        mx.eval(a)
        mx.synchronize()
        began = time.perf_counter()
        b = a + 1
        mx.eval(b)
        mx.synchronize()
        took.append(time.perf_counter() - began)
        del b
    return 2 * a.nbytes / median(took[1:])


def main():
    path, tokens, lengths = Path(sys.argv[1]), int(sys.argv[2]), [int(v) for v in sys.argv[3:]]
    model, config = load_model(path)
    vocabulary = config["vocab_size"]
    out = {"mlxLM": mlx_lm.__version__, "mlx": mx.__version__, "device": str(mx.default_device()), "prefill": {}, "rows": {}}
    for length in lengths:
        prompt = prompt_of(length, vocabulary)
        generate(model, prompt, 4)
        out["prefill"][length] = median([generate(model, prompt, 1)[0] for _ in range(RUNS)])
    steps = generate(model, prompt_of(128, vocabulary), tokens + 3)[1]
    out["step"] = median(steps[3:])
    for count in (1, 8, 16):
        out["rows"][count] = rows(model, vocabulary, count, tokens)
    del model
    mx.clear_cache()
    out["bandwidth"] = bandwidth()
    json.dump(out, sys.stdout)


main()
