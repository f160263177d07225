"""Writes what MLX makes of one row in every affine format.

The row is the same for all formats of a type: eight groups of 32 that are
normal, hold an outlier, lie on one side of zero, are constant, zero, tiny or
large. Bytes are in base64, little-endian.
"""

import base64
import json
import sys

import mlx.core as mx
import numpy as np

TYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


def source():
    random = np.random.RandomState(20)
    rows = random.standard_normal((8, 32)).astype(np.float32) * 0.05
    rows[1, 7] = 3.0
    rows[2] = np.abs(rows[2]) + 0.01
    rows[3] = -np.abs(rows[3])
    rows[4] = 0.0
    rows[5] = 0.25
    rows[6] *= 1e-6
    rows[7] *= 1e4
    rows[0, 0] = 0.0
    return rows.reshape(1, -1)


def raw(array):
    mx.eval(array)
    view = {mx.float32: mx.uint32, mx.uint32: mx.uint32}.get(array.dtype, mx.uint16)
    return base64.b64encode(np.array(array.view(view)).tobytes()).decode()


def main(out):
    mx.set_default_device(mx.cpu)
    record = {"mlx": mx.__version__, "cases": []}
    for name, dtype in TYPES.items():
        row = mx.array(source()).astype(dtype)
        for bits in (2, 3, 4, 5, 6, 8):
            for group in (32, 64, 128):
                words, scales, biases = mx.quantize(row, group_size=group, bits=bits)
                values = mx.dequantize(words, scales, biases, group_size=group, bits=bits)
                assert scales.dtype == dtype and values.dtype == dtype
                record["cases"].append({
                    "type": name, "bits": bits, "group": group, "source": raw(row), "words": raw(words),
                    "scales": raw(scales), "biases": raw(biases), "values": raw(values),
                })
                if len(record["cases"]) % 18 != 1:
                    del record["cases"][-1]["source"]
    with open(out, "w", encoding="utf-8") as f:
        f.write('{"mlx": %s, "cases": [\n' % json.dumps(record["mlx"]))
        f.write(",\n".join(json.dumps(case) for case in record["cases"]))
        f.write("\n]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
