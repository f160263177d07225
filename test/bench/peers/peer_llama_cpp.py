"""llama.cpp as a peer, through the C functions that llama-cpp-python binds;
its defaults, but for the number of threads and that nothing is offloaded.
usage: peer_llama_cpp.py GGUF THREADS"""

import sys
import time

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as c

import spoken

CONTEXT = 2048

threads = int(sys.argv[2])
c.llama_backend_init()
settings = c.llama_model_default_params()
settings.n_gpu_layers = 0
model = c.llama_model_load_from_file(sys.argv[1].encode(), settings)
if not model:
    sys.exit(f"llama.cpp does not load {sys.argv[1]}")
vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
settings = c.llama_context_default_params()
settings.n_ctx = settings.n_batch = CONTEXT
settings.n_threads = settings.n_threads_batch = threads
context = c.llama_init_from_model(model, settings)
if not context:
    sys.exit("llama.cpp makes no context")


def step(tokens):
    """Computes tokens and picks the next."""
    ids = (c.llama_token * len(tokens))(*tokens)
    if c.llama_decode(context, c.llama_batch_get_one(ids, len(tokens))) != 0:
        sys.exit(f"llama.cpp does not compute {len(tokens)} tokens")
    logits = np.ctypeslib.as_array(c.llama_get_logits_ith(context, -1), shape=(vocabulary,))
    return int(logits.argmax())


def measure(prompt, tokens):
    ids = spoken.prompt_of(prompt, vocabulary)
    c.llama_memory_clear(c.llama_get_memory(context), True)
    times = [time.perf_counter()]
    token = step(ids)
    times.append(time.perf_counter())
    for _ in range(tokens):
        token = step([token])
        times.append(time.perf_counter())
    took = [after - before for before, after in zip(times, times[1:])]
    return took[0], took[1:]


spoken.serve(
    [("llama-cpp-python", llama_cpp.__version__), ("llama.cpp with", c.llama_print_system_info().decode().strip(" |"))],
    measure,
)
