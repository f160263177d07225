"""What a reference records of a case, and how it is written. A reference is a
function that opens a case and returns (step, hidden): step(tokens, cache) gives
the float32 logits after the last token and the new cache (None begins one),
hidden(tokens) the normed states that the head reads."""

import json
import sys

import numpy as np

import models

GREEDY = 16  # tokens after the first prompt
STRIDE = 8  # of the logits after the other prompts that are kept


def number(v):
    return float(f"{v:.7g}")


def case_of(case, step, hidden):
    out = {"name": case["name"], "sha256": case["sha256"], "prompts": case["prompts"]}
    out["weights"] = models.digest(models.read(case["path"])[1])
    out["logits"] = []
    for i, prompt in enumerate(case["prompts"]):
        values, cache = step(prompt, None)
        assert values.dtype == np.float32 and np.isfinite(values).all()
        out["logits"].append([number(v) for v in values[:: 1 if i == 0 else STRIDE]])
        if i == 0:
            out["greedy"], out["margins"] = greedy(step, values, cache)
    states = hidden(case["prompts"][1])
    assert states.dtype == np.float32
    out["hidden"] = {"first": [number(v) for v in states[0][::STRIDE]], "last": [number(v) for v in states[-1][::STRIDE]],
                     "mean": [number(v) for v in states.astype(np.float64).mean(axis=0)[::STRIDE]]}
    return out


def greedy(step, values, cache):
    tokens, margins = [], []
    for _ in range(GREEDY):
        two = np.sort(values)[-2:]
        tokens.append(int(np.argmax(values)))
        margins.append(number(two[1] - two[0]))
        values, cache = step([tokens[-1]], cache)
    return tokens, margins


def names(list_path):
    """The names of the cases by their paths."""
    with open(list_path) as f:
        return {case["path"]: case["name"] for case in json.load(f)}


def write(made_by, list_path, out_path, reference):
    with open(list_path) as f:
        cases = json.load(f)
    lines = []
    for case in cases:
        opened = reference(case["path"])
        if opened is None:
            continue
        lines.append(json.dumps(case_of(case, *opened), separators=(",", ":")))
        print(case["name"], file=sys.stderr)
    with open(out_path, "w") as f:
        f.write('{"madeBy": %s, "stride": %d, "cases": [\n' % (json.dumps(made_by), STRIDE))
        f.write(",\n".join(lines))
        f.write("\n]}\n")
