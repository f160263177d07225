"""Writes rows of logits, the log-probabilities of their 20 most likely tokens as
numpy computes them in float64, and what mlx-lm chooses greedily once its own
logits processors have added a bias and taken penalties off; with a repetition
penalty besides, the logits that they leave. mlx-lm's log-probabilities, in
float32, have to agree with numpy's. Logits are in base64, little-endian.

    record.py OUT.json
"""

import base64
import json
import sys

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import make_logits_processors

TOP = 20


def rows(random):
    yield "plain", random.standard_normal(311) * 4
    yield "flat", np.zeros(40)
    yield "ties", random.randint(0, 6, 250) / 2
    yield "far from zero", random.standard_normal(97) * 3 - 5000
    yield "one of them certain", np.where(np.arange(64) == 17, 200.0, random.standard_normal(64))
    masked = random.standard_normal(128) * 5
    masked[random.rand(128) < 0.9] = -np.inf
    yield "masked", masked
    yield "few", np.array([1.0, 3.0, 2.0])


def logprobs(logits):
    """Of a row in float64: logits less the logarithm of the sum of their exponentials."""
    wide = logits.astype(np.float64)
    return wide - (wide.max() + np.log(np.exp(wide - wide.max()).sum()))


def adjusted(logits, random):
    """What mlx-lm makes of a row with a bias, penalties, and tokens that came before."""
    ids = random.choice(len(logits), min(len(logits), 12), replace=False)
    bias = {int(i): float(np.float32(random.uniform(-9, 9))) for i in ids}
    came = [int(i) for i in random.choice(len(logits), 9)]
    presence, frequency = 0.75, 0.5
    row = mx.array(logits)[None]
    processors = make_logits_processors(bias, presence_penalty=presence, presence_context_size=64, frequency_penalty=frequency, frequency_context_size=64)
    for process in processors:
        row = process(mx.array(came), row)
    return {"bias": {str(k): v for k, v in sorted(bias.items())}, "came": came, "presence": presence, "frequency": frequency,
            "choice": int(mx.argmax(row, axis=-1).item())}


def repeated(logits, random):
    """The logits that mlx-lm leaves of a row with a bias, a repetition penalty and the other two."""
    ids = random.choice(len(logits), 3)
    bias = {int(i): float(np.float32(random.uniform(-9, 9))) for i in ids}
    came = [int(i) for i in random.choice(len(logits), 12)]
    repetition, presence, frequency = 1.3, 0.75, 0.5
    row = mx.array(logits)[None]
    for process in make_logits_processors(bias, repetition, 64, presence, 64, frequency, 64):
        row = process(mx.array(came), row)
    return {"bias": {str(k): v for k, v in sorted(bias.items())}, "came": came, "repetition": repetition, "presence": presence, "frequency": frequency,
            "logits": encoded(np.array(row[0]))}


def encoded(logits):
    return base64.b64encode(logits.astype("<f4").tobytes()).decode()


def main(out):
    random, later = np.random.RandomState(11), np.random.RandomState(12)
    record = []
    for name, values in rows(random):
        logits = values.astype(np.float32)
        want = logprobs(logits)
        theirs = np.array(mx.array(logits) - mx.logsumexp(mx.array(logits), keepdims=True))
        held = np.isfinite(want)
        assert np.allclose(theirs[held], want[held], rtol=1e-6, atol=1e-3 if np.abs(logits[held]).max() > 1000 else 1e-5), name
        order = np.argsort(-logits, kind="stable")[:TOP]
        record.append({
            "name": name, "logits": encoded(logits),
            "top": [int(i) for i in order],
            "logprobs": [float(want[i]) if np.isfinite(want[i]) else None for i in range(len(want))],
            "adjusted": adjusted(logits, random),
            "repeated": repeated(logits, later),
        })
    with open(out, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in record) + "\n]\n")


main(sys.argv[1])
