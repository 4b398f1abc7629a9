"""Handwritten digits classified in Python by ctypes alone: no Orthrus, no numpy.

    orthrus compile digits.onnx --emit library --dim N=1..32 --out digits
    python classify.py digits/lib/libdigits.so images.bin

images.bin: images of 8 x 8 floats, one behind the other. A line is printed for each. With numpy there is less
to write: `orthrus compile --emit python-free-wheel` makes a package with a class for it.
"""

import array
import ctypes
import sys

PIXELS, CLASSES = 64, 10


def main(library_path: str, images_path: str) -> None:
    digits = ctypes.CDLL(library_path)
    digits.digits_last_error.restype = ctypes.c_char_p
    pixels = array.array("f")
    with open(images_path, "rb") as file:
        pixels.frombytes(file.read())
    images = len(pixels) // PIXELS
    labels, scores = (ctypes.c_int64 * images)(), (ctypes.c_float * (images * CLASSES))()
    address, _ = pixels.buffer_info()
    if digits.digits_infer(ctypes.c_int64(images), ctypes.c_void_p(address), labels, scores):
        sys.exit(digits.digits_last_error().decode())
    for i, label in enumerate(labels):
        print(label, f"{scores[i * CLASSES + label]:.9g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
