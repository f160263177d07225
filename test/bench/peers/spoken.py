"""The lines that peers.go speaks: a request per line on standard input, an
answer per line on standard output. What a library prints appears on
standard error."""

import json
import os
import sys


def prompt_of(count, vocabulary):
    """The tokens that `engine bench` computes too."""
    return [(i * 7919 + 13) % vocabulary for i in range(count)]


def serve(versions, measure):
    """measure(streams, prompt, tokens) gives the seconds of one prefill and of each step."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(what):
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    measure(1, 32, 4)  # warm
    answer({"versions": [{"name": n, "version": v} for n, v in versions]})
    for line in sys.stdin:
        ask = json.loads(line)
        prefill, steps = measure(ask["streams"], ask["prompt"], ask["tokens"])
        answer({"prefillSeconds": prefill, "stepSeconds": steps})
