"""The examples on two nodes, one of which goes in the middle: every row once, and right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from skips import lacking, needs

pytestmark = [needs("Ray"), pytest.mark.thorough]
if lacking("Ray") is None:
    import pyarrow.parquet as pq

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "ray"


def run(name: str, *arguments: object) -> str:
    done = subprocess.run([sys.executable, EXAMPLES / name, *map(str, arguments), "--kill"], timeout=400,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_images(tmp_path: Path) -> None:
    from orthrus.demo import samples

    assert "360 rows" in run("images.py", tmp_path / "images", tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet").sort_by("path")
    names = [Path(path).name for path in found["path"].to_pylist()]
    assert names == [f"{at:03d}-{label}.png" for at, label in enumerate(samples()[1])]
    said = found["label"].to_numpy()
    assert (said == samples()[1]).mean() > 0.95
    assert np.array_equal(np.argmax(found["probability"].to_pylist(), 1), said)


def test_texts(tmp_path: Path) -> None:
    assert "600 rows" in run("texts.py", tmp_path / "texts.parquet", tmp_path / "out.parquet")
    given = pq.read_table(tmp_path / "texts.parquet").to_pylist()
    found = pq.read_table(tmp_path / "out.parquet").sort_by("id").to_pylist()
    assert found == [{"id": row["id"], "words": len(row["text"].split()),
                      "praise": bool({"good", "great"} & set(row["text"].split()))} for row in given]
