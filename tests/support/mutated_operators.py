"""Operators whose attributes and constants are wrong: the models, and a process that loads and runs them.

`python mutated_operators.py COUNT SEED [PATTERN...]` prints a line of JSON for each operator that ends in
anything but a result or a typed error, or makes its process die; the last line says how many models there
were. Each operator has a forked process of its own, under limits.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import logging
import sys
import zlib
from collections.abc import Callable
from typing import Any

import hostile_server
import numpy as np
import onnx
from onnx import helper, numpy_helper

from orthrus.ops.schema import lookup
from orthrus.testing.samples import samples

HIGH = (1 << 63) - 1
INTS = (0, 1, 2, 3, 5, 7, 100, -1, -2, -3, -8, 1 << 20, 1 << 31, 1 << 40, 1 << 62, HIGH, -HIGH - 1)
FLOATS = (0.0, 1.0, 0.5, -1.0, 2.5, 1e30, -1e-30, float("inf"), float("-inf"), float("nan"))
TEXTS = (b"", b"x", b"linear", b"reflect", b"NOTSET", b"SAME_UPPER", b"VALID", b"max", b"sum", b"ij,jk->ik",
         b"...i->", b"\xff\xfe", b"(", b"float", b"a" * 300, b"NCHW")


def drawn(rng: np.random.Generator, kind: str) -> Any:
    """A value of an attribute of this kind, as often wrong as not."""
    many = int(rng.integers(0, 6))
    values: dict[str, Callable[[], Any]] = {
        "INT": lambda: INTS[rng.integers(len(INTS))],
        "INTS": lambda: [INTS[i] for i in rng.integers(len(INTS) if rng.random() < 0.5 else 6, size=many)],
        "FLOAT": lambda: FLOATS[rng.integers(len(FLOATS))],
        "FLOATS": lambda: [FLOATS[i] for i in rng.integers(len(FLOATS), size=many)],
        "STRING": lambda: TEXTS[rng.integers(len(TEXTS))],
        "STRINGS": lambda: [TEXTS[i] for i in rng.integers(len(TEXTS), size=many)],
        "TENSOR": lambda: array(rng)}
    return values[kind]() if kind in values else values[sorted(values)[rng.integers(len(values))]]()


def array(rng: np.random.Generator) -> onnx.TensorProto:
    shape = rng.integers(0, 4, size=rng.integers(0, 4))
    kind = (np.float32, np.int64, np.int32, np.bool_, np.uint8, np.float64)[rng.integers(6)]
    return numpy_helper.from_array(np.asarray(rng.integers(-2, 5, shape)).astype(kind))


def attribute(rng: np.random.Generator, name: str, kind: str) -> onnx.AttributeProto:
    value = drawn(rng, kind)
    made = onnx.AttributeProto(name=name)
    if kind in ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS", "TENSOR") and not isinstance(
            value, onnx.TensorProto):
        made.type = getattr(onnx.AttributeProto, kind)
        field = {"INT": "i", "FLOAT": "f", "STRING": "s"}.get(kind, kind.lower())
        if isinstance(value, list):
            getattr(made, field).extend(value)
        else:
            setattr(made, field, value)
        return made
    return helper.make_attribute(name, value if not isinstance(value, list) or value else [1])


def change_attribute(rng: np.random.Generator, model: onnx.ModelProto) -> None:
    """Give a node another value of an attribute that its schema has, or none."""
    opsets = {o.domain: o.version for o in model.opset_import}
    node = model.graph.node[rng.integers(len(model.graph.node))]
    schema: Any = lookup(node.domain, node.op_type, opsets.get(node.domain, 1))
    kinds = {name: kind for name, (kind, _) in getattr(schema, "attributes", {}).items() if kind != "GRAPH"}
    if not kinds:
        return
    set_already = [a.name for a in node.attribute if a.name in kinds]
    name = sorted(kinds)[rng.integers(len(kinds))]
    if set_already and rng.random() < 0.7:
        name = set_already[rng.integers(len(set_already))]
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if rng.random() < 0.9:
        kind = kinds[name] if rng.random() < 0.85 else ("INT", "INTS", "STRING", "FLOAT")[rng.integers(4)]
        node.attribute.append(attribute(rng, name, kind))


def changed(rng: np.random.Generator, given: np.ndarray) -> np.ndarray:
    """An array with another rank, other elements or of another type."""
    how = int(rng.integers(7))
    flat = np.asarray(given).reshape(-1)
    if rng.random() < 0.2 and given.dtype.kind in "iuf":
        flat = np.full_like(flat, rng.integers(2))
    if how == 0:
        empty = np.array("", object) if given.dtype.kind == "O" else np.zeros((), given.dtype)
        return flat[:1].reshape(()) if flat.size else empty
    if how == 1:
        return given[None]
    if how == 2:
        return flat[:0]
    if how == 3:
        return np.concatenate([flat, flat[:1]])
    if how == 4:
        return flat.reshape(given.shape)
    if how == 5 and given.dtype.kind in "iu":
        return np.array([INTS[i] for i in rng.integers(len(INTS), size=flat.size)],
                        np.int64).astype(given.dtype).reshape(given.shape)
    other = (np.float32, np.int64, np.int32, np.bool_)[rng.integers(4)]
    return np.asarray(np.zeros(given.shape, other) if given.dtype.kind in "OSUV" else given.astype(other))


def mutated(rng: np.random.Generator, made: onnx.ModelProto, feeds: dict[str, Any]
            ) -> tuple[bytes, dict[str, Any]]:
    """A model that is not what it should be, and a feed: some inputs are constants, some of them of another
    shape, type or value, or an attribute is another."""
    model, feeds = onnx.ModelProto.FromString(made.SerializeToString()), dict(feeds)
    arrays = {name: a for name, a in feeds.items() if isinstance(a, np.ndarray) and a.dtype.kind != "V"
              and (a.dtype.kind != "O" or all(isinstance(text, str) for text in a.flat))}
    many = rng.random() < 0.4
    wrong = bool(arrays) and rng.random() < 0.6
    for i, (name, array) in enumerate(arrays.items()):
        if rng.random() < (0.8 if many and i else 0.4):
            value = changed(rng, array) if wrong and rng.random() < 0.7 else array
            if rng.random() < 0.8:
                del feeds[name]
                model.graph.initializer.append(numpy_helper.from_array(value, name))
                kept = [v for v in model.graph.input if v.name != name]
                del model.graph.input[:]
                model.graph.input.extend(kept)
            else:
                feeds[name] = value
    if not wrong:
        change_attribute(rng, model)
    return model.SerializeToString(), feeds


def ends(model: bytes, feeds: dict[str, np.ndarray]) -> str:
    """"" where a model ends in a result or a typed error, else the error."""
    import orthrus as ort
    from orthrus.errors import ALL

    limits = ort.Limits(max_tensor_bytes=1 << 24, max_total_bytes=1 << 26, run_timeout=5.0)
    try:
        made = ort.InferenceSession(model, limits=limits, enable_fallback=0)
        made.run(None, feeds)
    except ALL as error:
        return f"foreseen by nobody: {error}" if "Exception during initialization" in str(error) and \
            error.__cause__ is not None and not isinstance(error.__cause__, ValueError) else ""
    except ValueError as error:
        return "" if "are missing from input feed" in str(error) else repr(error)
    return ""


Case = Callable[[], tuple[Any, dict[str, Any]]]


def check(kind: str, cases: list[Case], count: int, seed: int) -> None:
    """Raise RuntimeError where a mutation of these models and feeds ends badly."""
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode())])
    for _ in range(count):
        model, feeds = mutated(rng, *cases[rng.integers(len(cases))]())
        cause = None
        try:
            said = ends(model, feeds)
        except Exception as error:
            said, cause = f"{type(error).__name__}: {error}", error
        if said:
            shown = onnx.printer.to_text(onnx.load_from_string(model).graph)
            raise RuntimeError(f"{said[:1500]}\n{shown[:1500]}") from cause


def found(patterns: list[str]) -> dict[str, list[Case]]:
    """What gives models of single operators and feeds, by operator: the samples, and ONNX's own cases of
    those that have none."""
    from onnx.backend.test.loader import load_model_tests

    cases: dict[str, list[Case]] = {}
    for sample in samples():
        cases.setdefault(sample.kind, []).append(lambda sample=sample: (sample.model(), sample.feeds))
    sampled = set(cases)
    with np.errstate(all="ignore"):
        node_cases = load_model_tests(kind="node")
    for case in node_cases:
        if case.model is None or not case.data_sets:
            continue
        nodes = case.model.graph.node
        kind = f"{nodes[0].domain}::{nodes[0].op_type}" if nodes[0].domain else nodes[0].op_type
        if len(nodes) == 1 and kind not in sampled:
            names = [v.name for v in case.model.graph.input]
            feeds = dict(zip(names, case.data_sets[0][0], strict=False))
            cases.setdefault(kind, []).append(lambda model=case.model, feeds=feeds: (model, feeds))
    return {k: v for k, v in sorted(cases.items())
            if not patterns or any(fnmatch.fnmatchcase(k, p) for p in patterns)}


def main(count: int, seed: int, patterns: list[str]) -> None:
    logging.disable(logging.CRITICAL)
    hostile_server.bounded_defaults()
    cases = found(patterns)
    for kind, models in cases.items():
        said = hostile_server.outcome(functools.partial(check, kind, models, count, seed))
        if said != "ok":
            print(json.dumps([kind, said]), flush=True)
    print(json.dumps(["models", count * len(cases)]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
