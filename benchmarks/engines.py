"""The engines that cases run on, each in a worker process of its own.

In: a model as bytes and feeds. Out: `Reply`: outputs, or how it failed. A crash or a hang costs an engine its
own case only: the worker is started again.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Run = Callable[[dict[str, Any]], list[Any]]

BY_VALUE = ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0")
WIDER = {"INT4": "INT8", "UINT4": "UINT8", "INT2": "INT8", "UINT2": "UINT8", "FLOAT4E2M1": "FLOAT"}


@dataclass
class Reply:
    """`status`: "ok", "error" (an exception), "crash" or "timeout"; times in seconds. `computed`: the
    providers that computed a node of the model by code of their own, where the engine can say so."""

    status: str
    outputs: list[list[Any]] = field(default_factory=list)
    reason: str = ""
    load: float = 0.0
    run: float = 0.0
    computed: tuple[str, ...] = ()


def open_engine(name: str, providers: list[str]) -> tuple[Callable[[bytes], Run], str]:
    """How `name` makes a model runnable, and its version. A name that is not special is a module with
    onnxruntime's API.

    onnxruntime gets help where its Python interface has no type for a value although its kernels do: 8- and
    16-bit floats travel in OrtValues, smaller types as initializers and through a Cast.
    """
    if name == "openvino":
        import openvino

        from .openvino_engine import OpenVino

        return OpenVino, openvino.__version__
    if name == "reference":
        import onnx
        from onnx.reference import ReferenceEvaluator

        return lambda model: _evaluator(ReferenceEvaluator(onnx.load_from_string(model))), onnx.__version__
    runtime = importlib.import_module(name)
    runtime.set_default_logger_severity(4)
    if name == "onnxruntime":
        return lambda model: _helped(runtime, model, providers), runtime.__version__
    version = getattr(runtime, "orthrus_version", runtime.__version__)
    return lambda model: _plain_session(runtime, model, providers), version


def _evaluator(evaluator: Any) -> Run:
    return lambda feeds: evaluator.run(None, feeds)


def _plain_session(runtime: Any, model: bytes, providers: list[str]) -> Run:
    return _Session(runtime.InferenceSession(model, providers=providers))


class _Session:
    """A session as a function of feeds that can tell which providers computed."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def __call__(self, feeds: dict[str, Any]) -> list[Any]:
        return self.session.run(None, feeds)

    def computed(self) -> tuple[str, ...]:
        """Providers with a node that does not run by its definition, of sessions that explain themselves."""
        if not hasattr(self.session, "explain"):
            return ()
        report = self.session.explain()
        defined = {name for part in report.parts for name in part.numpy}
        return tuple(sorted({n.provider for n in report if n.node not in defined}))


def _helped(runtime: Any, data: bytes, providers: list[str]) -> Run:
    """onnxruntime, whatever the element types."""
    import onnx

    model = onnx.load_from_string(data)
    types = {v.name: onnx.TensorProto.DataType.Name(v.type.tensor_type.elem_type)
             for v in [*model.graph.input, *model.graph.output]}
    if any(kind in WIDER for kind in types.values()):
        return lambda feeds: _widened(runtime, model, types, feeds, providers)
    session = runtime.InferenceSession(data, providers=providers)
    if any(kind in BY_VALUE for kind in types.values()):
        return lambda feeds: _by_value(runtime, session, types, [o.name for o in model.graph.output], feeds)
    return lambda feeds: session.run(None, feeds)


def _by_value(runtime: Any, session: Any, types: dict[str, str], names: list[str],
              feeds: dict[str, Any]) -> list[Any]:
    import onnx

    kept, values, results = [], {}, []
    for name, array in feeds.items():
        array = np.ascontiguousarray(array)
        if types[name] in BY_VALUE:
            array = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
            number = onnx.TensorProto.DataType.Value(types[name])
            values[name] = runtime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
        else:
            values[name] = runtime.OrtValue.ortvalue_from_numpy(array)
        kept.append(array)
    for name, value in zip(names, session.run_with_ort_values(None, values), strict=True):
        if types[name] not in BY_VALUE:
            results.append(value.numpy())
            continue
        dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(types[name]))
        size = int(np.prod(value.shape(), dtype=np.int64)) * dtype.itemsize
        raw = ctypes.string_at(value.data_ptr(), size) if size else b""
        results.append(np.frombuffer(raw, dtype).reshape(value.shape()).copy())
    return results


def _widened(runtime: Any, model: Any, types: dict[str, str], feeds: dict[str, Any],
             providers: list[str]) -> list[Any]:
    """Inputs under eight bits become initializers, such outputs get a Cast to a type that numpy has."""
    import onnx

    code, changed = onnx.TensorProto.DataType.Value, onnx.ModelProto()
    changed.CopyFrom(model)
    graph, types, narrow = changed.graph, dict(types), {}
    kept = {name: array for name, array in feeds.items() if types[name] not in WIDER}
    graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in feeds.items() if n not in kept)
    inputs = [v for v in graph.input if v.name in kept]
    del graph.input[:]
    graph.input.extend(inputs)
    for out in graph.output:
        if types[out.name] in WIDER:
            wide, name = code(WIDER[types[out.name]]), f"{out.name}__wide"
            graph.node.append(onnx.helper.make_node("Cast", [out.name], [name], to=wide))
            narrow[name] = onnx.helper.tensor_dtype_to_np_dtype(code(types[out.name]))
            types[name] = WIDER[types[out.name]]
            out.name, out.type.tensor_type.elem_type = name, wide
    names = [out.name for out in graph.output]
    session = runtime.InferenceSession(changed.SerializeToString(), providers=providers)
    if any(types[name] in BY_VALUE for name in [*kept, *names]):
        results = _by_value(runtime, session, types, names, kept)
    else:
        results = session.run(None, kept)
    return [r.astype(narrow[n]) if n in narrow else r for n, r in zip(names, results, strict=True)]


def _serve(pipe: Any, name: str, providers: list[str]) -> None:
    """The worker: answers (model, feeds) with a Reply until the pipe closes."""
    import warnings

    import ml_dtypes  # noqa: F401  its types have to be known before arrays are unpickled

    warnings.simplefilter("ignore")
    load, version = open_engine(name, providers)
    pipe.send(version)
    while True:
        try:
            model, feeds = pipe.recv()
        except EOFError:
            return
        start = time.perf_counter()
        try:
            run = load(model)
            loaded = time.perf_counter()
            outputs = [[_sendable(v) for v in run(feed)] for feed in feeds]
            spent = time.perf_counter() - loaded
            computed = run.computed() if isinstance(run, _Session) else ()
            pipe.send(Reply("ok", outputs, "", loaded - start, spent, computed))
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:300]
            where = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
            pipe.send(Reply("error", reason=f"{type(error).__name__}: {text} ({where})"))


def _sendable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_sendable(v) for v in value]
    if isinstance(value, dict):
        return {k: _sendable(v) for k, v in value.items()}
    return value if value is None or isinstance(value, np.ndarray | str | int | float) else np.asarray(value)


class Worker:
    """An engine in a process of its own; `run` never raises for what the engine does."""

    def __init__(self, engine: str, providers: list[str] | None = None, timeout: float = 30.0) -> None:
        self.engine, self.providers, self.timeout = engine, providers or ["CPUExecutionProvider"], timeout
        self.version = ""
        self._process: Any = None
        self._pipe: Any = None

    def __enter__(self) -> Worker:
        self._start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, self.engine, self.providers), daemon=True)
        self._process.start()
        far.close()
        try:
            self.version = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"engine {self.engine!r} does not start") from None

    def _stop(self) -> None:
        if self._process is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
        self._process = None

    def run(self, model: bytes, feeds: list[dict[str, Any]]) -> Reply:
        """Load the model and run every feed. A worker that dies is tried once more fresh: an earlier case may
        have hurt it."""
        fresh = self._process is None
        reply = self._run(model, feeds)
        return reply if fresh or reply.status != "crash" else self._run(model, feeds)

    def _run(self, model: bytes, feeds: list[dict[str, Any]]) -> Reply:
        if self._process is None:
            self._start()
        try:
            self._pipe.send((model, feeds))
            if self._pipe.poll(self.timeout):
                return self._pipe.recv()
            self._stop()
            return Reply("timeout", reason=f"no answer in {self.timeout:g} s")
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            self._stop()
            return Reply("crash", reason=f"the process ended with {code}")
