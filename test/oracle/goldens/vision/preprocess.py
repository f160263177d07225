"""Draws small images, and records how Pillow decodes them and what the image
processors of transformers and mlx-vlm make of them.

usage: preprocess.py FOLDER"""

import hashlib
import io
import json
import os
import sys

import numpy as np
import PIL
import transformers
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

HALF = [0.5, 0.5, 0.5]

# Configurations as model folders have them, and awkward ones. patch and merge are the
# tower's.
PROCESSORS = {
    "qwen3_vl": {"patch": 16, "merge": 2, "config": {
        "image_processor_type": "Qwen2VLImageProcessorFast", "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": HALF, "image_std": HALF}},
    "qwen2_vl, at most 5000 pixels": {"patch": 14, "merge": 2, "config": {
        "image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 5000, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}},
    "gemma3": {"patch": 14, "merge": 4, "config": {
        "image_processor_type": "Gemma3ImageProcessor", "do_convert_rgb": None, "do_pan_and_scan": None, "do_normalize": True,
        "image_mean": HALF, "image_std": HALF, "resample": 2, "rescale_factor": 1 / 255, "size": {"height": 896, "width": 896}}},
    "gemma3, small": {"patch": 7, "merge": 3, "config": {
        "image_processor_type": "Gemma3ImageProcessorFast", "image_mean": [0.1, 0.2, 0.3], "image_std": [0.3, 0.5, 0.7],
        "resample": 3, "size": {"height": 42, "width": 63}}},
    "gemma4": {"patch": 16, "merge": 3, "config": {
        "image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 280, "patch_size": 16, "pooling_kernel_size": 3, "do_normalize": False, "resample": 3}},
    "gemma4, 70 tokens": {"patch": 16, "merge": 3, "config": {
        "image_processor_type": "Gemma4ImageProcessorFast", "max_soft_tokens": 70, "patch_size": 16, "pooling_kernel_size": 3, "do_normalize": False}},
}


def drawing(width, height, channels=3):
    """Smooth gradients, hard edges and texture."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(x / 5 + c) * np.cos(y / 7 - c) * 60 + (x * (c + 1) * 3 + y * (5 - c) * 2) % 256 * 0.6 for c in range(channels)]
    a = np.stack(waves, -1) + 60
    a[(x // 11 + y // 13) % 4 == 0] = [250, 20, 60, 90][:channels]
    a[((x - width / 2) ** 2 + (y - height / 2) ** 2) < (height / 5) ** 2] = [10, 200, 120, 255][:channels]
    return np.clip(a, 0, 255).astype(np.uint8)


def images():
    """Encoded images by file name."""
    def encoded(image, kind, **options):
        out = io.BytesIO()
        image.save(out, kind, **options)
        return out.getvalue()

    color, odd = Image.fromarray(drawing(96, 64)), Image.fromarray(drawing(61, 43))
    clear = Image.fromarray(drawing(50, 38, 4))
    palette = odd.quantize(16)
    turned = Image.Exif()
    out = {
        "color.png": encoded(color, "PNG"), "alpha.png": encoded(clear, "PNG"), "gray.png": encoded(odd.convert("L"), "PNG"),
        "gray-alpha.png": encoded(clear.convert("LA"), "PNG"), "palette.png": encoded(palette, "PNG"),
        "palette-clear.png": encoded(palette, "PNG", transparency=3), "key-clear.png": encoded(odd, "PNG", transparency=(250, 20, 60)),
        "bits.png": encoded(odd.convert("1"), "PNG"), "narrow.png": encoded(Image.fromarray(drawing(7, 150)), "PNG"),
        "wide.png": encoded(Image.fromarray(drawing(300, 9)), "PNG"),
        "444.jpg": encoded(odd, "JPEG", quality=90, subsampling=0), "422.jpg": encoded(odd, "JPEG", quality=85, subsampling=1),
        "420.jpg": encoded(odd, "JPEG", quality=80, subsampling=2), "even-420.jpg": encoded(color, "JPEG", quality=70, subsampling=2),
        "progressive.jpg": encoded(color, "JPEG", quality=75, progressive=True), "gray.jpg": encoded(odd.convert("L"), "JPEG"),
        "cmyk.jpg": encoded(odd.convert("CMYK"), "JPEG", quality=90),
        "lossy.webp": encoded(odd, "WEBP", quality=80), "even.webp": encoded(color, "WEBP", quality=60),
        "lossless.webp": encoded(odd, "WEBP", lossless=True), "alpha.webp": encoded(clear, "WEBP", quality=80),
        "still.gif": encoded(odd, "GIF"), "clear.gif": encoded(palette, "GIF", transparency=3),
        "frames.gif": encoded(odd, "GIF", save_all=True, append_images=[Image.fromarray(drawing(61, 43)[::-1].copy())], duration=100, loop=0),
    }
    for o in range(2, 9):
        turned[0x112] = o
        out[f"turned-{o}.jpg"] = encoded(Image.fromarray(drawing(24, 16)), "JPEG", quality=90, subsampling=0, exif=turned)
    turned[0x112] = 6
    out["turned.png"], out["turned.webp"] = encoded(odd, "PNG", exif=turned), encoded(odd, "WEBP", lossless=True, exif=turned)
    return out


def decoded(data):
    image = Image.open(io.BytesIO(data))
    image.seek(0)
    return convert_to_rgb(ImageOps.exif_transpose(image), return_numpy=True)


def digest(a):
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()


def blocks(grid, patches, merge):
    """Reorders rows of patches, in rows of the image, into blocks."""
    rows, columns = grid
    a = patches.reshape(rows // merge, merge, columns // merge, merge, -1)
    return a.transpose(0, 2, 1, 3, 4).reshape(rows * columns, -1)


def prepared(case, pixels):
    """Grid and patches, in blocks, as the reference computes them."""
    config, patch, merge = dict(case["config"]), case["patch"], case["merge"]
    kind = config.pop("image_processor_type").removesuffix("Fast")
    config = {k: v for k, v in config.items() if v is not None}
    image = Image.fromarray(pixels)
    if kind == "Qwen2VLImageProcessor":
        out = Qwen2VLImageProcessorPil(**config)(image, return_tensors="np")
        return [int(n) for n in out["image_grid_thw"][0][1:]], out["pixel_values"]
    if kind == "Gemma3ImageProcessor":
        a = np.asarray(Gemma3ImageProcessorPil(**config)(image, return_tensors="np")["pixel_values"][0])
        rows, columns = a.shape[1] // patch, a.shape[2] // patch
        a = a.reshape(3, rows, patch, columns, patch).transpose(1, 3, 0, 2, 4).reshape(rows * columns, -1)
        return [rows, columns], blocks([rows, columns], a, merge)
    out = Gemma4ImageProcessorPil(**config)(image, return_tensors="np")
    places = np.asarray(out["image_position_ids"][0])
    real = places[:, 0] >= 0
    columns, rows = (int(n) + 1 for n in places.max(0))
    return [rows, columns], blocks([rows, columns], np.asarray(out["pixel_values"][0])[real], merge)


def by_mlx_vlm(case, pixels, patches):
    """Checks that mlx-vlm prepares the same image alike. It does not read the size of newer
    configurations, so it gets that under the older names."""
    from mlx_vlm.models.qwen3_vl.processing_qwen3_vl import Qwen3VLImageProcessor

    config = dict(case["config"])
    config.pop("image_processor_type")
    size = config.pop("size")
    config |= {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    out = Qwen3VLImageProcessor(**config)(Image.fromarray(pixels))
    assert np.abs(np.asarray(out["pixel_values"]) - patches).max() <= 1e-6


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    record = {"madeBy": f"transformers {transformers.__version__}, Pillow {PIL.__version__}", "images": {}, "processors": []}
    all_images = images()
    for name, data in all_images.items():
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
        pixels = decoded(data)
        record["images"][name] = {"width": pixels.shape[1], "height": pixels.shape[0], "sha256": digest(pixels)}
        if name.endswith(".jpg"):  # decoders of JPEG may round differently
            Image.fromarray(pixels).save(os.path.join(folder, name + ".png"), optimize=True)
    for name, case in PROCESSORS.items():
        results = {}
        for file in ("color.png", "gray.png", "lossy.webp", "alpha.png", "narrow.png", "wide.png"):
            pixels = decoded(all_images[file])
            try:
                grid, patches = prepared(case, pixels)
            except ValueError as e:
                results[file] = {"error": str(e)}
                continue
            if name == "qwen3_vl":
                by_mlx_vlm(case, pixels, patches)
            patches = np.asarray(patches, dtype=np.float32)
            results[file] = {"grid": grid, "width": int(patches.shape[1]), "sha256": digest(patches), "sample": [float(f"{v:.9g}") for v in patches.ravel()[:: patches.size // 7][:7]]}
        record["processors"].append({"name": name, **case, "results": results})
    with open(os.path.join(folder, "record.json"), "w") as f:
        head = {k: v for k, v in record.items() if k != "processors"}
        f.write(json.dumps(head, indent=1)[:-2] + ',\n "processors": [\n')
        f.write(",\n".join(json.dumps(p) for p in record["processors"]) + "\n]}\n")


main()
