"""mlx-lm's own figures for a model folder: its model code, its generate_step, on the default device.

usage: peer.py MODEL

First a line of JSON with the versions, the device and the bandwidth: what adding 1 to 2 GB of numbers moves, bytes read
and written, in bytes a second. Then, for each line "ROWS PROMPT TOKENS" of standard input, a line of JSON with the
seconds to the first token of a prompt (ROWS is 1) and the seconds of the median step: of generate_step for 1 row, of
the model alone for more, each step built on the tokens of the one before.
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

WARM = 3  # steps before time counts


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


def rows(model, vocabulary, count, length, tokens):
    """Seconds a step of count rows at once, built ahead as generate_step builds them."""
    state = cache.make_prompt_cache(model)
    mx.eval(model(mx.broadcast_to(prompt_of(length, vocabulary)[None], (count, length)), cache=state))
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
    return median(took[WARM:])


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
    moved = bandwidth()
    mx.clear_cache()
    model, config = load_model(Path(sys.argv[1]))
    vocabulary = config.get("text_config", config)["vocab_size"]
    say = lambda what: print(json.dumps(what), flush=True)
    say({"mlxLM": mlx_lm.__version__, "mlx": mx.__version__, "device": str(mx.default_device()), "bandwidth": moved})
    for line in sys.stdin:
        count, length, tokens = (int(v) for v in line.split())
        if count > 1:
            say({"step": rows(model, vocabulary, count, length, tokens + WARM)})
            continue
        first, steps = generate(model, prompt_of(length, vocabulary), tokens + WARM)
        say({"prefill": first, "step": median(steps[WARM:])})


main()
