"""Writes what the gguf package reads from blocks of the types that metal/weights
rewrites: random words under scales of either sign, then blocks with scales that
are zero, subnormal, or as large as they get. Bytes are in base64, little-endian.

    record.py OUT.json
"""

import base64
import json
import sys

import gguf
import numpy as np

# Where a block has its halves, how many bytes it has, and how many elements.
TYPES = {
    "Q5_0": ([0], 22, 32), "Q5_1": ([0, 2], 24, 32), "Q2_K": ([80, 82], 84, 256), "Q3_K": ([108], 110, 256),
    "Q4_K": ([0, 2], 144, 256), "Q5_K": ([0, 2], 176, 256), "Q6_K": ([208], 210, 256),
}


def blocks(random, halves, size, elements):
    n = 16 if elements == 32 else 6
    out = random.randint(0, 256, (n, size)).astype(np.uint8)
    values = (random.standard_normal((n, len(halves))) * 0.01).astype(np.float16)
    values[1] = 0
    values[2] = np.float16(6e-8)  # the least there is
    values[3] = np.float16(2047.0)  # and many bits
    for i, at in enumerate(halves):
        out[:, at:at + 2] = values[:, i:i + 1].view(np.uint8)
    scales = [i for i in range(size) if not any(at <= i < at + 2 for at in halves)]
    out[4, scales], out[5, scales] = 0, 255
    return out


def main(out):
    random = np.random.RandomState(7)
    record = []
    for name, (halves, size, elements) in TYPES.items():
        kind = gguf.GGMLQuantizationType[name]
        assert gguf.GGML_QUANT_SIZES[kind] == (elements, size), name
        raw = blocks(random, halves, size, elements)
        values = gguf.quants.dequantize(raw, kind).astype("<f4")
        assert values.size == len(raw) * elements and np.isfinite(values).all()
        record.append({"type": name, "raw": base64.b64encode(raw.tobytes()).decode(), "values": base64.b64encode(values.tobytes()).decode()})
    with open(out, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in record) + "\n]\n")


main(sys.argv[1])
