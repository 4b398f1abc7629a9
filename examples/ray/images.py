"""A folder of images through a model, on two nodes.

    python examples/ray/images.py IMAGES OUT.parquet [--kill]

`IMAGES` has PNG or JPEG files; without it, those of the demo are written there first. The model reads digits
of 8 x 8 pixels. `OUT.parquet` gets a row for each file: `path`, `label` and `probability`. `--kill` takes one
of the two nodes away in the middle.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import ray
from PIL import Image
from two_nodes import two_nodes, write

from orthrus.demo import MODEL, samples
from orthrus.distributed.ray import predict


def draw(folder: Path) -> None:
    """The demo's digits as PNG files, `NUMBER-LABEL.png`."""
    folder.mkdir(parents=True)
    for at, (image, label) in enumerate(zip(*samples(), strict=True)):
        Image.fromarray((image[0] * 15).astype(np.uint8)).save(folder / f"{at:03d}-{label}.png")


def prepare(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Pixels of 0 to 255, [N, 8, 8], as the model takes them: float32 of 0 to 16, [N, 1, 8, 8]."""
    return {"path": batch["path"], "image": batch["image"][:, None].astype(np.float32) / 15}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("out")
    parser.add_argument("--kill", action="store_true")
    asked = parser.parse_args()
    if not asked.images.exists():
        draw(asked.images)
    with two_nodes() as (cluster, second):
        images = ray.data.read_images(str(asked.images), size=(8, 8), mode="L", include_paths=True,
                                      override_num_blocks=12)
        found = predict(images.map_batches(prepare), MODEL, batch_size=16, concurrency=(1, 2))
        print(write(found, asked.out, cluster, second, asked.kill), "rows")


if __name__ == "__main__":
    main()
