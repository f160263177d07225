"""mlx-lm as a peer: its model code and its generate_step, greedy, on the default device.
usage: peer_mlx_lm.py FOLDER   (MLX takes no number of threads)

Several streams are decoded by the model alone; each step is built from the tokens of the one before while that still
computes, as generate_step does."""

import sys
import time
from pathlib import Path

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import generate_step
from mlx_lm.models import cache
from mlx_lm.utils import load_model

import protocol


versions = [
    {"name": "mlx-lm", "version": mlx_lm.__version__},
    {"name": "mlx", "version": f"{mx.__version__} on {mx.default_device()}"},
]
model, config = load_model(Path(sys.argv[1]))
vocabulary = config.get("text_config", config)["vocab_size"]


def one(prompt, tokens):
    times = [time.perf_counter()]
    for _ in generate_step(prompt, model, max_tokens=tokens + 1):
        times.append(time.perf_counter())
    mx.synchronize()
    took = [after - before for before, after in zip(times, times[1:])]
    return took[0], took[1:]


def rows(prompt, count, tokens):
    """Steps of count rows at once, which begin with the tokens that `engine bench` has them begin with; there is no prefill to compare."""
    state = cache.make_prompt_cache(model)
    mx.eval(model(mx.broadcast_to(prompt[None], (count, prompt.size)), cache=state))
    step = lambda y: mx.argmax(model(y[:, None], cache=state)[:, -1], axis=-1)
    y = step(mx.take(prompt, mx.arange(count) % prompt.size))
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
    return 0, took


def measure(streams, prompt, tokens):
    ids = mx.array(protocol.prompt_of(prompt, vocabulary))
    return one(ids, tokens) if streams == 1 else rows(ids, streams, tokens)


protocol.serve(versions, measure)
