"""Unpacks MLX's CUDA wheel and blanks the machine code of all GPU generations but one.

usage: slim.py WHEEL CAPABILITY OUT

libmlx.so carries its kernels in a section of fat binaries (.nv_fatbin): each is a header of 16 bytes (magic, version,
length of the header, length of what follows) and images with headers of their own (kind, version, length of the header,
length of the image; the generation at byte 28). Images keep their place and length, so that no offset changes; zeros
then compress to nothing. OUT gets lib.tar.xz: libmlx.so, the libraries that it needs, and the headers that MLX's run-time
compiler reads.
"""
import io
import struct
import sys
import tarfile
import zipfile

FATBIN, ELF_IMAGE = 0xBA55ED50, 2
HEADERS = ("mlx/include/cccl/", "mlx/include/cutlass/", "mlx/include/cute/")


def section(elf, name):
    """Offset and length of a section of a little-endian ELF64 file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)

    def entry(i):
        at = table + i * size
        (text,) = struct.unpack_from("<I", elf, at)
        return text, *struct.unpack_from("<QQ", elf, at + 0x18)

    texts = entry(names)[1]
    for i in range(count):
        text, offset, length = entry(i)
        if elf[texts + text : elf.index(b"\0", texts + text)] == name:
            return offset, length
    raise SystemExit(f"slim: no section {name.decode()}: is this a CUDA build?")


def blank(elf, generation):
    """Zeros what other generations run; returns the bytes that are left."""
    at, length = section(elf, b".nv_fatbin")
    end, kept = at + length, 0
    while at + 16 <= end:
        magic, _, header, body = struct.unpack_from("<IHHQ", elf, at)
        if magic != FATBIN:
            at += 8
            continue
        image, stop = at + header, at + header + body
        while image < stop:
            kind, _, own, size = struct.unpack_from("<HHIQ", elf, image)
            (runs_on,) = struct.unpack_from("<I", elf, image + 28)
            if kind == ELF_IMAGE and runs_on == generation:
                kept += size
            else:
                elf[image + own : image + own + size] = bytes(size)
            image += own + size
        at = stop
    return kept


def main():
    wheel, generation, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with zipfile.ZipFile(wheel) as z:
        library = bytearray(z.read("mlx/lib/libmlx.so"))
        if blank(library, generation) == 0:
            raise SystemExit(f"slim: the wheel has no machine code for compute capability {generation}")
        with tarfile.open(out + ".tar.xz", "w:xz", preset=3) as tar:
            for name in z.namelist():
                wanted = name.startswith(HEADERS) or name.startswith("mlx_cuda_13.libs/") or name == "mlx/lib/libmlx.so"
                if not wanted or name.endswith("/"):
                    continue
                data = bytes(library) if name == "mlx/lib/libmlx.so" else z.read(name)
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


main()
