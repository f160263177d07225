"""Compares two records case by case: usage: check.py got.json want.json"""

import json
import sys

import numpy as np

TOLERANCE = 1e-5  # of the largest number
RECURRING = 2e-5  # where most layers are recurrent


def cases(path):
    with open(path) as f:
        return {c["name"]: c for c in json.load(f)["cases"]}


got, want = cases(sys.argv[1]), cases(sys.argv[2])
worst = 0.0
for name, w in want.items():
    g = got[name]
    for key in ("sha256", "prompts", "weights"):
        if g[key] != w[key]:
            sys.exit(f"{name}: {key} differs")
    tolerance = RECURRING if name.startswith(("qwen3_next/", "qwen3_5/")) else TOLERANCE
    for a, b in zip(g["logits"] + list(g["hidden"].values()), w["logits"] + list(w["hidden"].values())):
        worst = max(worst, float(np.abs(np.array(a) - np.array(b)).max() / np.abs(b).max()))
        if not (off := float(np.abs(np.array(a) - np.array(b)).max() / np.abs(b).max())) <= tolerance:
            sys.exit(f"{name}: numbers differ by {off} of the largest")
    for i, margin in enumerate(w["margins"]):
        if margin <= 1e-3:
            break
        if g["greedy"][i] != w["greedy"][i]:
            sys.exit(f"{name}: greedy tokens differ")
print(f"{len(want)} cases of {sys.argv[2]} equal {sys.argv[1]} within {TOLERANCE} of the largest number, hybrids {RECURRING} (worst {worst:.1e})")
