"""A double of MIGraphX's Python module: its interface, refusals, mistakes and deaths as they were recorded
of version 2.16 with the target `ref`; what it computes, it computes by this project's definitions.

Words and behaviour are those of the record. What the library computes wrong comes out as other numbers here,
and what kills its process kills this one. `MIGRAPHX_DOUBLE` in the environment makes it another one:
`version=2.12.0`, `compile=sleep`, `compile=die`, `gpu=1`, several of them separated by spaces."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from migraphx_rules import check_nodes, known_operators, mistaken

from orthrus.kernels import Part, reference
from orthrus.load import load as load_model
from orthrus.lowering.interpret import interpret

_ASKED = dict(word.split("=", 1) for word in os.environ.get("MIGRAPHX_DOUBLE", "").split())
__version__ = _ASKED.get("version", "2.16.0.dev")
COUNTS = {"parse": 0, "compile": 0, "load": 0, "run": 0}
"""How often this process asked for what."""

STREAMS = None
"""What puts work into a stream, where a test has GPUs: a function of the stream's number and the work."""

_TYPES = {"bool_type": "bool", "half_type": "float16", "float_type": "float32", "double_type": "float64",
          "uint8_type": "uint8", "int8_type": "int8", "uint16_type": "uint16", "int16_type": "int16",
          "int32_type": "int32", "int64_type": "int64", "uint32_type": "uint32", "uint64_type": "uint64",
          "fp8e4m3fnuz_type": "float8_e4m3fnuz", "bf16_type": "bfloat16"}
_NAMES = {np.dtype(getattr(ml_dtypes, text, text)): name for name, text in _TYPES.items()}
_PROTO = {1: "float_type", 2: "uint8_type", 3: "int8_type", 4: "uint16_type", 5: "int16_type",
          6: "int32_type",
          7: "int64_type", 9: "bool_type", 10: "half_type", 11: "double_type", 12: "uint32_type",
          13: "uint64_type",
          16: "bf16_type", 18: "fp8e4m3fnuz_type", 21: "uint8_type", 22: "int8_type"}
_FORMATS = {"?": "bool_type", "e": "half_type", "f": "float_type", "d": "double_type", "B": "uint8_type",
            "b": "int8_type", "H": "uint16_type", "h": "int16_type", "i": "int32_type", "l": "int64_type",
            "q": "int64_type", "I": "uint32_type", "L": "uint64_type", "Q": "uint64_type"}


def _fail(place, text):
    raise RuntimeError(f"/src/AMDMIGraphX/src/{place}: {text}")


def _dtype(name):
    text = _TYPES[name]
    return np.dtype(getattr(ml_dtypes, text, text))


class shape:
    class dynamic_dimension:
        def __init__(self, low=0, high=0, optimals=frozenset()):
            self.min, self.max, self.optimals = low, high, set(optimals)

        def is_fixed(self):
            return self.min == self.max

    def __init__(self, type="float", lens=None, strides=None, dyn_dims=None, **_):
        if lens is not None and not isinstance(lens, list):
            raise RuntimeError("lens has to be a list")
        name = type if type.endswith("_type") else {"float": "float_type", "bool": "bool_type"}.get(type)
        if name not in _TYPES:
            raise IndexError("unordered_map::at")
        self._type, self._dyn = name, dyn_dims
        self._lens = [1] if lens is None else lens
        self._strides = strides or [int(np.prod(self._lens[i + 1:],
                                                dtype=np.int64)) for i in range(len(self._lens))]

    def type_string(self):
        return self._type

    def dynamic(self):
        return self._dyn is not None

    def lens(self):
        if self.dynamic():
            _fail("shape.cpp:638", "lens: SHAPE: lens() called on a dynamic shape")
        return list(self._lens)

    def strides(self):
        self.lens()
        return list(self._strides)

    def dyn_dims(self):
        if not self.dynamic():
            _fail("shape.cpp:700", "dyn_dims: SHAPE: dyn_dims() called on a static shape")
        return list(self._dyn)

    def ndim(self):
        return len(self._dyn if self.dynamic() else self._lens)

    def elements(self):
        return int(np.prod(self.lens(), dtype=np.int64))

    def bytes(self):
        return self.elements() * _dtype(self._type).itemsize

    def _text(self):
        parts = ["{" + ", ".join(map(str, part)) + "}" for part in (self._lens, self._strides)]
        return f"{self._type}, {', '.join(parts)}"


def _shape_of(array):
    """The shape of an array of memory, as strides have it."""
    name = _NAMES[array.dtype]
    if array.ndim == 0:
        return shape(type=name, lens=[1], strides=[0])
    return shape(type=name, lens=list(array.shape), strides=[s // array.itemsize for s in array.strides])


class argument:
    def __init__(self, buffer, _array=None):
        if _array is None:
            view = memoryview(buffer)
            if view.format not in _FORMATS:
                raise RuntimeError(f"Unsupported data type {view.format}")
            _array = np.asarray(view)
        self._array = _array

    def get_shape(self):
        return _shape_of(self._array)

    def data_ptr(self):
        return self._array.ctypes.data

    def __array__(self, *_, **__):
        if self._array.dtype.kind not in "biuf" or self._array.dtype == ml_dtypes.bfloat16:
            raise ValueError("'z' is not a valid PEP 3118 buffer format string")
        return self._array.view()

    def tolist(self):
        if self._array.dtype.name not in ("bool", "float32",
                                          "float64") and self._array.dtype.kind not in "iu":
            raise TypeError("Unsupported format")
        return self._array.ravel().tolist()


def argument_from_pointer(shape, address):
    """An argument of memory at an address, which nobody else looks at."""
    raw = (ctypes.c_uint8 * shape.bytes()).from_address(address) if shape.bytes() else bytearray()
    held = np.frombuffer(raw, _dtype(shape.type_string()))
    return argument(None, held.reshape(shape.lens() if shape.strides() != [0] else ()))


def fill_argument(s, value):
    """An argument with memory of its own, all of one number."""
    return argument(None, np.full(s.lens() if s.strides() != [0] else (), value, _dtype(s.type_string())))


def get_onnx_operators():
    return sorted(known_operators())


class target:
    pass


def get_target(name):
    if name == "ref" or (name == "gpu" and _ASKED.get("gpu") == "1"):
        return target()
    _fail("dynamic_loader.cpp:60", "dynamic_loader: Dynamic loading or symbol lookup failed with: "
                                   f"libmigraphx_{name}.so: cannot open shared object file")


class program:
    def __init__(self, model=b"", dims=None, ranges=None, compiled=False):
        self._raw, self._dims, self._ranges, self._compiled = model, dims or {}, ranges or {}, compiled
        self._graphs, self._offload = {}, True
        model = onnx.ModelProto.FromString(model)
        constant = {each.name for each in model.graph.initializer}
        self._names = [i.name for i in model.graph.input if i.name not in constant]
        self._types = {i.name: _PROTO[i.type.tensor_type.elem_type] for i in model.graph.input}
        self._model = model

    def _part(self, dims):
        """The graph for these sizes of inputs, and what computes it."""
        key = tuple(sorted((name, tuple(d)) for name, d in dims.items()))
        if key not in self._graphs:
            model = onnx.ModelProto.FromString(self._raw)
            for info in model.graph.input:
                if info.name in dims:
                    info.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(
                        dim=[onnx.TensorShapeProto.Dimension(dim_value=d) for d in dims[info.name]]))
            del model.graph.value_info[:]
            for info in model.graph.output:
                info.type.tensor_type.ClearField("shape")
            graph = load_model(model)
            graph.inputs = [v for v in graph.inputs if v.name in self._names]
            self._graphs[key] = Part("double", graph.nodes, graph.inputs, graph.outputs, "double", graph.info)
        return self._graphs[key]

    def _sizes(self, name):
        if name in self._dims:
            return self._dims[name]
        (info,) = (i for i in self._model.graph.input if i.name == name)
        return [d.dim_value or 1 for d in info.type.tensor_type.shape.dim]

    def get_parameter_names(self):
        return list(self._names)

    def get_parameter_shapes(self):
        made = {}
        for name in self._names:
            sizes = self._sizes(name)
            made[name] = shape(type=self._types[name],
                               dyn_dims=self._ranges[name]) if name in self._ranges else shape(
                type=self._types[name], lens=sizes or [1], strides=None if sizes else [0])
        if self._compiled and not self._offload:
            made.update((f"main:#output_{i}", each) for i, each in enumerate(self.get_output_shapes()))
        return made

    def get_output_shapes(self):
        sides = [{name: [getattr(d, end) for d in dims] for name, dims in self._ranges.items()}
                 for end in ("min", "max")]
        part, low = (self._part({**self._dims, **side}) for side in reversed(sides))
        known = [v for v in part.outputs if v.node is None or v in self._made(v.node)]
        made = []
        for value in known:
            least = next(v for v in low.outputs if v.name == value.name)
            name = _NAMES.get(value.elem.numpy, f"{value.elem.text}_type")
            if self._ranges:
                made.append(shape(type=name, dyn_dims=[shape.dynamic_dimension(*ends) for ends in zip(
                    least.shape, value.shape, strict=True)]))
            else:
                made.append(shape(type=name, lens=list(value.shape) or [1],
                                  strides=None if value.shape else [0]))
        return made

    @staticmethod
    def _made(node):
        """The outputs the parser knows of: others disappear without a word."""
        return node.outputs[:1] if node.op_type in ("MaxPool", "BatchNormalization") else node.outputs

    def is_compiled(self):
        return self._compiled

    def compile(self, t, offload_copy=True, fast_math=True, exhaustive_tune=False):
        assert isinstance(t, target)
        COUNTS["compile"] += 1
        if _ASKED.get("compile") == "sleep":
            time.sleep(600)
        if _ASKED.get("compile") == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        self._compiled, self._offload = True, offload_copy

    def run_async(self, given, stream, name):
        """As `run`, when the stream comes to it; arguments are read and results written then."""
        assert name == "ihipStream_t"
        found = {each: self.get_parameter_shapes()[each] for each in given}
        for each, argument in given.items():
            if argument.get_shape()._text() != found[each]._text():
                _fail("program.cpp:530", f"generic_eval: Incorrect shape for parameter: {each}")
        held = dict(given)

        def work():
            inputs = {each: a for each, a in held.items() if not each.startswith("main:#")}
            for i, made in enumerate(self.run(inputs)):
                np.copyto(held[f"main:#output_{i}"]._array, made._array)
        STREAMS(stream, work)

    def run(self, given):
        COUNTS["run"] += 1
        arrays, dims = {}, {}
        for name, expected in self.get_parameter_shapes().items():
            if name.startswith("main:#"):
                continue
            if name not in given:
                _fail("program.cpp:520", f"generic_eval: Parameter not found: {name}")
            array = given[name]
            held = array._array if isinstance(array, argument) else np.asarray(memoryview(array))
            found = _shape_of(held)
            if expected.dynamic():
                fits = found.ndim() == expected.ndim() and found.type_string() == expected.type_string()
            else:
                odd = [i for i, d in enumerate(expected.lens()) if d == 1]
                strides = [s for i,
                           s in enumerate(found.strides()) if i not in odd or expected.strides() == [0]]
                wanted = [s for i,
                          s in enumerate(expected.strides()) if i not in odd or expected.strides() == [0]]
                fits = (found.type_string(), found.lens(), strides) == (
                    expected.type_string(), expected.lens(), wanted) or (
                    not found.elements() and found.lens() == expected.lens())
            if not fits:
                _fail("program.cpp:530",
                      f"generic_eval: Incorrect shape {{{found._text()}}} for parameter: {name}"
                                         f" should be: {expected._text()}")
            arrays[name], dims[name] = held, list(held.shape)
        part = self._part(dims)
        trace = os.environ.get("MIGRAPHX_TRACE_EVAL", "0") != "0"
        if trace:
            for i, node in enumerate(part.nodes):
                says = f"Run instruction: @{i} = ref::{node.op_type.lower()}(@0) -> float_type, target_id=0\n"
                os.write(1, f"{says}Time: {0.25 * (i + 1)}ms, {0.5 * (i + 1)}ms\n".encode())
        made = interpret(part, self._reference, [arrays[v.name] for v in part.inputs])
        made = made if isinstance(made, tuple) else (made,)
        return [argument(None, np.asarray(self._passed(v, m, part, arrays)))
                for v, m in zip(part.outputs, made, strict=True) if v.node is None or v in self._made(v.node)]

    @staticmethod
    def _reference(node):
        """What computes a node: its definition, or something else where the library is wrong; it dies where
        the library does."""
        run = reference(node).run

        def computed(*given):
            mistaken(node, given)
            result = run(*given)
            several = result if isinstance(result, tuple) else (result,)
            wrong = mistaken(node, given, several)
            return tuple(_other(np.asarray(r)) for r in several) if wrong else result
        return computed

    @staticmethod
    def _passed(value, made, part, arrays):
        """A result that is an argument: the same memory."""
        node = value.node
        if node is not None and node.op_type == "Identity" and node.inputs[0] in part.inputs:
            return arrays[node.inputs[0].name]
        return np.array(made, order="C")


def _other(array):
    """Numbers that are wrong."""
    if array.dtype.kind == "b":
        return ~array
    if array.dtype.kind == "f":
        return (array.astype(np.float64) + 17).astype(array.dtype)
    return array + np.ones((), array.dtype)


def parse_onnx_buffer(filename, default_dim_value=0, default_dyn_dim_value=None, map_input_dims=None,
                      map_dyn_input_dims=None, skip_unknown_operators=False, print_program_on_error=False,
                      external_data_path="", use_debug_symbols=False):
    COUNTS["parse"] += 1
    if isinstance(filename, memoryview):
        raise TypeError("incompatible function arguments")
    if map_input_dims and map_dyn_input_dims:
        _fail("onnx.cpp:60",
              "parse_onnx_from: PARSE_ONNX: both map_input_dims and map_dyn_input_dims non-empty")
    model = onnx.ModelProto.FromString(bytes(filename))
    for each in model.graph.initializer:
        if each.data_location == onnx.TensorProto.EXTERNAL:
            onnx.external_data_helper.load_external_data_for_tensor(each, str(external_data_path))
            each.data_location = onnx.TensorProto.DEFAULT
            del each.external_data[:]
    for each in (*model.graph.initializer, *model.graph.input):
        kind = each.data_type if isinstance(each, onnx.TensorProto) else each.type.tensor_type.elem_type
        if kind not in _PROTO:
            _fail("onnx/onnx_parser.cpp:929", f"get_type: Prototensor data type {kind} not supported")
    check_nodes(model, _fail)
    return program(model.SerializeToString(), map_input_dims, map_dyn_input_dims)


def _marked(prog, what):
    if prog.is_compiled():
        raise AssertionError(f"{what} after compile is ineffective")


def quantize_fp16(prog, ins_names=("all",)):
    _marked(prog, "quantize_fp16")


def quantize_bf16(prog, ins_names=("all",)):
    _marked(prog, "quantize_bf16")


def quantize_fp8(prog, t, calibration=()):
    _marked(prog, "quantize_fp8")
    for entry in calibration:
        assert all(isinstance(value, argument) for value in entry.values())
        assert set(entry) == set(prog.get_parameter_names())
        prog.run(entry)


_FILE = 8


def save(p, filename, format="msgpack"):
    head = {"version": _FILE, "migraphx_version": __version__, "dims": p._dims, "compiled": p._compiled,
            "offload": p._offload,
            "ranges": {name: [[d.min, d.max] for d in dims] for name, dims in p._ranges.items()}}
    Path(filename).write_bytes(json.dumps(head).encode() + b"\n" + p._raw)


def load(filename, format="msgpack"):
    COUNTS["load"] += 1
    head, newline, raw = Path(filename).read_bytes().partition(b"\n")
    try:
        found = json.loads(head)
    except ValueError:
        found = {}
    if not newline or "version" not in found:
        _fail("value.cpp:400", "at: Not an object for field: version")
    if found["version"] != _FILE:
        _fail("program.cpp:700", "from_value: Program version mismatch")
    ranges = {name: [shape.dynamic_dimension(*d) for d in dims] for name, dims in found["ranges"].items()}
    try:
        made = program(raw, found["dims"], ranges, found["compiled"])
        made._offload = found["offload"]
        return made
    except Exception:
        raise RuntimeError("insufficient bytes") from None


