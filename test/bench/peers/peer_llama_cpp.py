"""llama.cpp as a peer, through the C functions that llama-cpp-python binds, with its defaults except for the number of
threads and that nothing is offloaded.
usage: peer_llama_cpp.py GGUF THREADS"""

import functools
import sys
import time

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as c

import protocol

# Tokens of one stream: a single one can be long, several are short.
CONTEXT, SHARED_CONTEXT = 2048, 512

threads = int(sys.argv[2])
c.llama_backend_init()
settings = c.llama_model_default_params()
settings.n_gpu_layers = 0
model = c.llama_model_load_from_file(sys.argv[1].encode(), settings)
if not model:
    sys.exit(f"llama.cpp does not load {sys.argv[1]}")
vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
batch = c.llama_batch_init(CONTEXT, 0, 1)


@functools.cache
def context_of(streams):
    settings = c.llama_context_default_params()
    settings.n_ctx = CONTEXT if streams == 1 else streams * SHARED_CONTEXT
    settings.n_batch = CONTEXT
    settings.n_seq_max = streams
    settings.n_threads = settings.n_threads_batch = threads
    context = c.llama_init_from_model(model, settings)
    if not context:
        sys.exit(f"llama.cpp makes no context for {streams} streams")
    return context


def step(context, rows, wanted):
    """Computes rows of (token, position, stream) and picks the next token of the last `wanted` ones."""
    for i, (token, position, stream) in enumerate(rows):
        batch.token[i], batch.pos[i] = token, position
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, stream
        batch.logits[i] = i >= len(rows) - wanted
    batch.n_tokens = len(rows)
    if c.llama_decode(context, batch) != 0:
        sys.exit(f"llama.cpp does not compute {len(rows)} tokens")
    last = range(len(rows) - wanted, len(rows))
    return [int(np.ctypeslib.as_array(c.llama_get_logits_ith(context, i), shape=(vocabulary,)).argmax()) for i in last]


def measure(streams, prompt, tokens):
    ids = protocol.prompt_of(prompt, vocabulary)
    context = context_of(streams)
    c.llama_memory_clear(c.llama_get_memory(context), True)
    began = time.perf_counter()
    following = [step(context, [(token, i, s) for i, token in enumerate(ids)], 1)[0] for s in range(streams)]
    times = [time.perf_counter()]
    prefill = (times[0] - began) / streams
    for position in range(prompt, prompt + tokens):
        following = step(context, [(token, position, s) for s, token in enumerate(following)], streams)
        times.append(time.perf_counter())
    return prefill, [after - before for before, after in zip(times, times[1:])]


protocol.serve(
    [
        {"name": "llama-cpp-python", "version": llama_cpp.__version__},
        {"name": "llama.cpp with", "version": c.llama_print_system_info().decode().strip(" |")},
    ],
    measure,
)
