"""The protocol of peers.go: a line "STREAMS PROMPT TOKENS" on standard input, a line of JSON on standard output.
Output of libraries is redirected to standard error."""

import json
import os
import sys

WARM = 3  # steps that do not count; `engine bench` leaves out as many


def prompt_of(count, vocabulary):
    """The tokens that `engine bench` computes, too."""
    return [(i * 7919 + 13) % vocabulary for i in range(count)]


def median(values):
    return sorted(values)[len(values) // 2]


def serve(versions, measure):
    """measure(streams, prompt, tokens) returns the seconds of the prefill and of each step."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(what):
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    measure(1, 32, 4)  # warm
    answer({"versions": versions})
    for line in sys.stdin:
        streams, prompt, tokens = (int(v) for v in line.split())
        prefill, steps = measure(streams, prompt, tokens + WARM if tokens else 0)
        if len(steps) != (tokens + WARM if tokens else 0):
            sys.exit(f"{len(steps)} steps for {tokens} tokens")
        answer({"prefillSeconds": prefill, "stepSeconds": median(steps[WARM:]) if tokens else 0})
