"""Writes what MLX makes of one row in every format of small floats, and a
digest of what it reads in rows that hold every element with every scale.

The row is that of record.py. Bytes are in base64, little-endian; values are
float32, of which the formats hold all.
"""

import base64
import hashlib
import json
import sys

import mlx.core as mx
import numpy as np

import record

MODES = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}


def text(array):
    return base64.b64encode(np.array(array).tobytes()).decode()


def values(words, scales, mode):
    return np.array(mx.dequantize(words, scales, mode=mode, dtype=mx.float32))


def every(mode):
    """Words and scales: of each scale that is a number, groups that hold each
    element that is one; the others are zeros."""
    bits, group = MODES[mode]
    elements = np.arange(256, dtype=np.uint8)
    if bits == 4:
        elements = np.array([i % 8 * 2 + (i % 8 * 2 + 1 << 4) for i in range(group // 2)], dtype=np.uint8)
    else:
        elements[[127, 255]] = 0
    scales = [s for s in range(256) if (s != 255 if mode[0] == "m" else s % 128 != 127)]
    words = np.tile(elements, len(scales)).view(np.uint32).reshape(1, -1)
    each = elements.size * 8 // bits // group
    return mx.array(words), mx.array(np.repeat(np.array(scales, dtype=np.uint8), each).reshape(1, -1))


def main(out):
    mx.set_default_device(mx.cpu)
    cases = []
    for mode in MODES:
        words, scales = mx.quantize(mx.array(record.source()), mode=mode)
        all = values(*every(mode), mode)
        cases.append({
            "mode": mode, "words": text(words), "scales": text(scales), "values": text(values(words, scales, mode)),
            "elements": all.size, "sha256": hashlib.sha256(all.astype("<f4").tobytes()).hexdigest(),
        })
    with open(out, "w", encoding="utf-8") as f:
        f.write('{"mlx": %s, "cases": [\n' % json.dumps(mx.__version__))
        f.write(",\n".join(json.dumps(case) for case in cases))
        f.write("\n]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
