"""Single convolutions of ResNet-50 and MobileNetV2 on one thread: this package's kernels beside
onnxruntime's.

    taskset -c 0 python benchmarks/convolution.py [direct|winograd|depthwise] [FIRST LAST]

Per layer: the kernel's time (its smallest of many calls, weights in turn so that they do not all stay near),
GFLOP/s and the share of the machine's multiply-add peak measured beside it, onnxruntime's time for the same
node (Conv + Relu, from its profile, on its own blocked layout) and the ratio. """

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import helper, numpy_helper

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "support")]

import native  # noqa: E402
from orthrus.codegen.kernels.conv import depthwise, winograd  # noqa: E402
from orthrus.codegen.kernels.conv import direct as planning  # noqa: E402
from orthrus.codegen.kernels.conv.copies import pad_rows  # noqa: E402
from orthrus.codegen.kernels.conv.geometry import Geometry, preferred_pitch  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.write.expr import Expr  # noqa: E402
from orthrus.codegen.write.tile import Operand  # noqa: E402
from orthrus.profiling.peak import multiply_add_loop  # noqa: E402

RESNET = [(3, 224, 64, 7, 2), (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1),
          (256, 56, 64, 1, 1),
          (256, 56, 128, 1, 1), (128, 56, 128, 3, 2), (256, 56, 512, 1, 2), (128, 28, 128, 3, 1),
          (128, 28, 512, 1, 1), (512, 28, 128, 1, 1), (256, 28, 256, 3, 2), (512, 28, 1024, 1, 2),
          (256, 14, 256, 3, 1), (256, 14, 1024, 1, 1), (1024, 14, 256, 1, 1), (512, 14, 512, 3, 2),
          (1024, 14, 2048, 1, 2), (512, 7, 512, 3, 1), (512, 7, 2048, 1, 1), (2048, 7, 512, 1, 1)]
"""Channels in, height, channels out, kernel, stride."""

MOBILENET = [(32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 3, 2), (192, 28, 3, 1),
             (192, 28, 3, 2),
             (384, 14, 3, 1), (576, 14, 3, 1), (576, 14, 3, 2), (960, 7, 3, 1), (240, 28, 5, 1),
             (240, 28, 5, 2),
             (672, 14, 5, 1)]
"""Channels, height, kernel, stride."""

MACHINE = host()
assert MACHINE is not None
LANES = MACHINE.lanes(4)
STATUS = np.zeros(1, np.int64)
SUM = Expr("add", (Expr.leaf(0, "float32"), Expr.leaf(1, "float32")), "float32")
ZERO = Expr.const(0.0, "float32")
RELU = Expr("where", (Expr("lt", (SUM, ZERO), "bool"), ZERO, SUM), "float32")
BIAS = [Operand("float32", row=False)]


def aligned(array: np.ndarray) -> np.ndarray:
    room = np.zeros(array.size + 64, np.float32)
    at = -room.ctypes.data % 64 // 4
    room[at:at + array.size] = array.reshape(-1)
    return room[at:at + array.size].reshape(array.shape)


def bound(spec: Any, *args: Any, items: int, scratch: int = 0) -> Callable[[], None]:
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
        native.address(spec))
    row = native.cells(args)
    room = aligned(np.zeros(scratch // 4 + 16, np.float32))
    given = row.ctypes.data, 0, items, room.ctypes.data

    def run() -> None:
        call(*given)
    run.kept = args, row, room  # type: ignore[attr-defined]
    return run


def best(functions: list[Callable[[], Any]], seconds: float) -> list[float]:
    times = [1e9] * len(functions)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, each in enumerate(functions):
            start = time.perf_counter()
            each()
            times[i] = min(times[i], time.perf_counter() - start)
    return times


def peak_rate() -> float:
    loop, work = multiply_add_loop(MACHINE)
    (t,) = best([loop], 0.2)
    return work / t / 1e9


class Peer:
    """onnxruntime with `copies` of one Conv + Relu behind a convolution that gives it its layout; times from
    its profile."""

    def __init__(self, weights: list[np.ndarray], biases: list[np.ndarray], stride: int, group: int,
                 x: np.ndarray) -> None:
        channels, self.x = x.shape[1], x
        init, nodes, source = [], [], "x"
        if channels > 3:
            init.append(numpy_helper.from_array(np.eye(channels, dtype=np.float32)[:, :, None, None], "pw"))
            nodes.append(helper.make_node("Conv", ["x", "pw"], ["px"], "pre"))
            source = "px"
        for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
            init += [numpy_helper.from_array(w, f"w{i}"), numpy_helper.from_array(b, f"b{i}")]
            nodes += [helper.make_node("Conv", [source, f"w{i}", f"b{i}"], [f"c{i}"], f"t{i}", group=group,
                                       pads=[w.shape[2] // 2] * 4, strides=[stride] * 2),
                      helper.make_node("Relu", [f"c{i}"], [f"y{i}"], f"r{i}")]
        outs = [helper.make_tensor_value_info(f"y{i}", 1, None) for i in range(len(weights))]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, x.shape)], outs, init)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_profiling, options.profile_file_prefix = True, "/tmp/convolution"
        self.session = ort.InferenceSession(model.SerializeToString(), options,
                                            providers=["CPUExecutionProvider"])

    def run(self) -> list[np.ndarray]:
        return self.session.run(None, {"x": self.x})

    def seconds(self) -> float:
        path = self.session.end_profiling()
        with open(path) as file:
            events = json.load(file)
        os.remove(path)
        times: dict[str, list[float]] = {}
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time") and (
                    event["args"].get("op_name") == "Conv") and not event["name"].startswith(("px", "pre")):
                times.setdefault(event["name"], []).append(event["dur"])
        return float(np.mean([min(t[1:]) for t in times.values()])) * 1e-6


_last: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}


def pixels_last(x: np.ndarray, pitch: int) -> np.ndarray:
    """`x` channels-last; one copy serves all that read it, as onnxruntime's do."""
    known = _last.get((id(x), pitch))
    if known is not None:
        return known[1]
    out = np.zeros((*x.shape[:1], *x.shape[2:], pitch), np.float32)
    out[..., :x.shape[1]] = np.moveaxis(x, 1, -1)
    _last[id(x), pitch] = x, aligned(out)
    return _last[id(x), pitch][1]


Step = Callable[[], None]
Make = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int], Step]


def direct(x: np.ndarray, w: np.ndarray, b: np.ndarray, y: np.ndarray, stride: int, **how: Any) -> Step:
    size, out, k = x.shape[2], y.shape[1], w.shape[2]
    pad = k // 2
    cin, cout = w.shape[1], w.shape[0]
    strides = (0, 0, y.shape[2] * y.shape[3], y.shape[3])
    g = Geometry(1, 1, cin, cout, (1, size, size), (1, k, k), (1, stride, stride), (1, 1, 1),
                      (0, pad, pad),
                      (1, out, out))
    if cin < 16:
        return stem(g, x, w, b, y, strides)
    pitch = preferred_pitch(cin)
    p = planning.plan(g, MACHINE, flat=stride == 1, **how)
    return bound(p.spec(RELU, BIAS), pixels_last(x, pitch), aligned(p.pack(w)), y,
                 *p.cells((0, 0, size * pitch, pitch), strides), b, 0, 0, 0, 0, items=p.items,
                 scratch=p.scratch)


def stem(g: Geometry, x: np.ndarray, w: np.ndarray, b: np.ndarray, y: np.ndarray,
         strides: tuple[int, ...]) -> Step:
    s = planning.plan_stem(g, MACHINE)
    padded = aligned(np.zeros((s.planes, s.rows, s.pitch), np.float32))
    first = bound(pad_rows(), x, padded, *s.copy_cells(x.shape[3] * x.shape[2], x.shape[3]),
                  items=s.planes * s.rows)
    then = bound(s.plan.spec(RELU, BIAS), padded, aligned(s.pack(w)), y, *s.plan.cells(s.strides, strides),
                 b, 0, 0, 0, 0, items=s.plan.items, scratch=s.plan.scratch)

    def run() -> None:
        first()
        then()
    return run


def each_channel(x: np.ndarray, w: np.ndarray, b: np.ndarray, y: np.ndarray, stride: int) -> Step:
    channels, size, out, k = x.shape[1], x.shape[2], y.shape[1], w.shape[2]
    g = Geometry(1, channels, 1, 1, (1, size, size), (1, k, k), (1, stride, stride), (1, 1, 1),
                      (0, k // 2, k // 2), (1, out, out))
    return bound(depthwise.spec(g, MACHINE, RELU, BIAS), pixels_last(x, channels),
                 aligned(direct.pack(w, 1, 1, LANES)), y,
                 *depthwise.cells(g, (0, 0, size * channels, channels), (0, 0, out * y.shape[3], y.shape[3])),
                 b, 0, 0, 0, 0, items=depthwise.items(g), scratch=64)


def by_tiles(side: int, block: int | None = None) -> Make:
    def make(x: np.ndarray, w: np.ndarray, b: np.ndarray, y: np.ndarray, stride: int) -> Step:
        size, out, pitch = x.shape[2], y.shape[1], preferred_pitch(x.shape[1])
        g = Geometry(1, 1, w.shape[1], w.shape[0], (1, size, size), (1, 3, 3), (1, 1, 1), (1, 1, 1),
                          (0, 1, 1), (1, out, out))
        p = winograd.plan(g, MACHINE, side, block)
        v, m = (_shared(name, n if p.whole else 1) for name, n in (("v", p.v_size), ("m", p.m_size)))
        args = (pixels_last(x, pitch), aligned(p.pack(w)), y, v, m, STATUS,
                *p.cells((0, 0, size * pitch, pitch), (0, 0, out * y.shape[3], y.shape[3])), b, 0, 0, 0, 0)
        runs = [bound(spec, *args, items=items, scratch=scratch)
                for spec, items, scratch in p.steps(RELU, BIAS)]

        def run() -> None:
            for each in runs:
                each()
        return run
    return make


_rooms: dict[tuple[str, int], np.ndarray] = {}


def _shared(name: str, size: int) -> np.ndarray:
    """Memory that all copies use, as an arena would give."""
    if (name, size) not in _rooms:
        _rooms[name, size] = aligned(np.zeros(size, np.float32))
    return _rooms[name, size]


def compare(makes: dict[str, Make], cin: int, size: int, cout: int, k: int, stride: int, group: int = 1,
            copies: int = 4, seconds: float = 0.8) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, cin, size, size), np.float32)
    ws = [rng.standard_normal((cout, cin // group, k, k), np.float32) / (cin // group * k * k) ** 0.5
          for _ in range(copies)]
    bs = [rng.standard_normal(cout, np.float32) for _ in range(copies)]
    peer = Peer(ws, bs, stride, group, x)
    wanted = peer.run()
    out = wanted[0].shape[2]
    y = aligned(np.zeros((1, out, out, preferred_pitch(cout)), np.float32))
    runs: list[Step] = []
    errors = []
    for make in makes.values():
        worst = 0.0
        for w, b, want in zip(ws, bs, wanted, strict=True):
            runs.append(make(x, w, b, y, stride))
            y[...] = np.nan
            runs[-1]()
            got = np.moveaxis(y[..., :cout], -1, 1)
            worst = max(worst, float(np.abs(got - want).max() / np.abs(want).max()))
        errors.append(worst)
    times = best([*runs, peer.run], seconds)
    theirs, rate = peer.seconds(), peak_rate()
    flops = 2 * cin // group * cout * k * k * out * out
    for i, name in enumerate(makes):
        ours = float(np.mean(times[i * copies:(i + 1) * copies]))
        print(f"{cin:4}->{cout:4} @{size:<3} {k}x{k}/{stride} {name:10} {ours * 1e6:8.1f} us "
              f"{flops / ours / 1e9:6.1f} GF "
              f"{100 * flops / ours / 1e9 / rate:5.1f} % of {rate:.0f}   "
              f"onnxruntime {theirs * 1e6:8.1f} us "
              f"{100 * flops / theirs / 1e9 / rate:5.1f} %   ratio {theirs / ours:.2f}   "
              f"error {errors[i]:.1e}",
              flush=True)


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else "direct"
    first, last = (int(a) for a in (*sys.argv[2:4], 0, 99)[:2]) if len(sys.argv) > 3 else (0, 99)
    if what == "direct":
        for layer in RESNET[first:last]:
            compare({"direct": direct}, *layer)
    if what == "winograd":
        for cin, size, cout, k, stride in RESNET[first:last]:
            if (k, stride) == (3, 1):
                compare({"direct": direct, "F(2x2)": by_tiles(2), "F(4x4)": by_tiles(4)}, cin, size, cout, k,
                        stride,
                        seconds=1.2)
    if what == "depthwise":
        for channels, size, k, stride in MOBILENET[first:last]:
            compare({"depthwise": each_channel}, channels, size, channels, k, stride, channels)


if __name__ == "__main__":
    main()
