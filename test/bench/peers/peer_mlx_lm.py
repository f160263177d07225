"""mlx-lm as a peer: its own generate_step, greedy, on a folder as it loads it.
usage: peer_mlx_lm.py FOLDER THREADS   (MLX takes no number of threads)"""

import sys
import time
from pathlib import Path

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

import spoken

model, config = load_model(Path(sys.argv[1]))


def measure(streams, prompt, tokens):
    if streams != 1:
        sys.exit(f"mlx-lm is measured with 1 stream, not with {streams}")
    ids = mx.array(spoken.prompt_of(prompt, config["vocab_size"]))
    times = [time.perf_counter()]
    for _ in generate_step(ids, model, max_tokens=tokens + 1):
        times.append(time.perf_counter())
    mx.synchronize()
    took = [after - before for before, after in zip(times, times[1:])]
    return took[0], took[1:]


device = str(mx.default_device())
spoken.serve([("mlx-lm", mlx_lm.__version__), ("mlx", f"{mx.__version__} on {device}")], measure)
