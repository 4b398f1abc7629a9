"""The process that parses, compiles and traces: what the library dies of ends it, and not the session's
process.

In: the folder of the module as an argument, "" for none; a job per line of standard input, as JSON. Out: a
line of JSON each: {"ok": true} with what was found, or {"ok": false} with the `stage` that failed, its
`message`, and whether it would fail again (`lasting`). What the library prints goes to standard error.
Standard input's end ends the process."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

import numpy as np

from . import module as library


def main() -> None:
    """Serve jobs until there are no more."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    found = library.found(sys.argv[1], any_version=True)
    for line in sys.stdin:
        print(json.dumps(_served(json.loads(line), found)), file=replies, flush=True)


def _served(job: dict[str, Any], module: Any) -> dict[str, Any]:
    stage = ["start"]
    try:
        if not module:
            raise ImportError(module.reason)
        return {"ok": True, **(_traced if "program" in job else _compiled)(job, module, stage)}
    except Exception as error:
        return {"ok": False, "stage": stage[0], "message": f"{type(error).__name__}: {error}",
                "lasting": stage[0] != "start" and not isinstance(error, OSError | MemoryError)}


def _compiled(job: dict[str, Any], mx: Any, stage: list[str]) -> dict[str, Any]:
    """Parse the model in the file `model`, whose weights lie in `folder`; quantize it, compile it, save it to
    `output`. Gives the shapes of the program's outputs."""
    if job["device"] and job["target"] == "gpu":
        library.select_device(job["device"])
    target = mx.get_target(job["target"])
    stage[0] = "parse"
    with open(job["model"], "rb") as file:
        raw = file.read()
    dims = {"map_input_dims": job["dims"]} if not job["ranges"] else {
        "map_dyn_input_dims": {name: [mx.shape.dynamic_dimension(*each) for each in sides]
                               for name, sides in job["ranges"].items()}}
    program = mx.parse_onnx_buffer(raw, external_data_path=job["folder"], **dims)
    del raw
    outputs = [_described(shape) for shape in program.get_output_shapes()]
    stage[0] = "quantization"
    _quantized(program, target, job, mx)
    stage[0] = "compile"
    program.compile(target, offload_copy=job["offload"], fast_math=job["fast_math"],
                    exhaustive_tune=job["exhaustive_tune"])
    stage[0] = "save"
    mx.save(program, job["output"])
    return {"outputs": outputs}


def _quantized(program: Any, target: Any, job: dict[str, Any], mx: Any) -> None:
    if job["fp16"]:
        mx.quantize_fp16(program)
    if job["bf16"]:
        mx.quantize_bf16(program)
    if job["fp8"]:
        held = {name: _spread(shape, job["fp8"].get(name, 1))
                for name, shape in program.get_parameter_shapes().items()
                if shape.type_string() == "float_type"}
        entry = {name: mx.argument(held[name]) if name in held else mx.fill_argument(shape, 0)
                 for name, shape in program.get_parameter_shapes().items()}
        mx.quantize_fp8(program, target, calibration=[entry])


def _spread(shape: Any, largest: float) -> np.ndarray:
    """Numbers up to `largest` either way, of a parameter's very shape: a rank of 0 has strides of 0."""
    sizes = shape.lens() if shape.strides() != [0] else []
    return np.linspace(-largest, largest, shape.elements(), dtype=np.float32).reshape(sizes)


def _described(shape: Any) -> list[Any]:
    """A shape's element type, and its sizes or the largest it may have."""
    if shape.dynamic():
        return [shape.type_string(), [[d.min, d.max] for d in shape.dyn_dims()]]
    return [shape.type_string(), [[d, d] for d in shape.lens()]]


def _traced(job: dict[str, Any], mx: Any, stage: list[str]) -> dict[str, Any]:
    """Run the program in the file `program` on the arrays in the files `inputs`, while the library prints its
    times; the results' bytes go to the files `outputs`. Gives the results' sizes."""
    if job["device"] and job["target"] == "gpu":
        library.select_device(job["device"])
    program = mx.load(job["program"])
    stage[0] = "run"
    given = {name: np.load(path, allow_pickle=False) for name, path in job["inputs"].items()}
    made = program.run(given)
    for path, argument in zip(job["outputs"], made, strict=True):
        size = argument.get_shape().bytes()
        with open(path, "wb") as file:
            file.write(ctypes.string_at(argument.data_ptr(), size) if size else b"")
    return {"sizes": [argument.get_shape().lens() for argument in made]}


if __name__ == "__main__":
    main()
