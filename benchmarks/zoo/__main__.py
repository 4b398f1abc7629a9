"""The zoo on the command line: list it, write its models and feeds."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx

from . import __doc__ as about
from . import build, cases, feeds

parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
verbs = parser.add_subparsers(dest="verb", required=True)
verbs.add_parser("list")
models = verbs.add_parser("models")
models.add_argument("names", nargs="+")
models.add_argument("--out", type=Path, required=True)
fed = verbs.add_parser("feeds")
fed.add_argument("name")
fed.add_argument("--out", type=Path, required=True)
fed.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
if args.verb == "list":
    for name, case in cases().items():
        print(f"{name:18}{case['about']}")
elif args.verb == "models":
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        onnx.save(build(name), args.out / f"{name}.onnx")
        print(args.out / f"{name}.onnx")
else:
    np.savez(args.out, **feeds(args.name, args.seed))
    print(args.out)
