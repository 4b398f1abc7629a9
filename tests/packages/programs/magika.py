# /// script
# dependencies = ["magika"]
# ///
"""The kind of 40 contents, by the model in the wheel."""

import json
import random
from pathlib import Path

from magika import Magika

draw = random.Random(0)
here = Path(json.__file__).parent
contents = [path.read_bytes() for path in sorted(here.glob("*.py"))]
contents += [draw.randbytes(size) for size in (0, 1, 7, 100, 5000)]
contents += [b"<html><body>" + b"<p>a</p>" * 100, b'{"a": [1, 2]}' * 40]
contents += [b"#!/bin/sh\necho a\n" * 20, b"%PDF-1.4\n" * 60]
magika = Magika()
found = [magika.identify_bytes(content) for content in contents]
results = {"label": [str(each.output.label) for each in found],
           "score": [float(each.score) for each in found]}
