"""What onnxruntime's transformer optimizer fuses in exported networks, and their skeletons for the tests.

    python tests/transformers/record.py <folder of export.py>

writes `exported.tar.xz` and `fusions.json` beside itself: the graphs without their large weights, and by
network the model type, the operators left by `onnxruntime.transformers.optimizer` at opt_level 0 and the
seconds it took, or its error. `tests/support/exported.py` reads them. It needs onnxruntime.
"""

from __future__ import annotations

import collections
import io
import json
import logging
import subprocess
import sys
import tarfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

HERE = Path(__file__).parent
TYPES = {"gpt2": "gpt2", "gpt_neox": "gpt_neox", "gptj": "gpt2", "llama": "gpt2", "mistral": "gpt2",
         "qwen2": "gpt2", "phi": "phi", "bart": "bart", "whisper": "bart", "t5": "t5", "vit": "vit",
         "deit": "vit", "swin": "swin", "clip": "clip", "conformer": "conformer", "sam": "sam2",
         "unet": "unet", "vae": "vae", "sd3": "mmdit", "flux": "mmdit"}
"""Model types by how names of networks begin; all others are bert's."""
_KEPT = 16
"""Elements up to which a weight is kept; index tables and others that pack well are kept too."""


def model_type(name: str) -> str:
    return next((kind for start, kind in TYPES.items() if name.startswith(start)), "bert")


def fused(path: str) -> dict[str, Any]:
    """The operators onnxruntime leaves of a model, and its seconds; or its error."""
    from onnxruntime.transformers import optimizer

    logging.disable(logging.CRITICAL)
    kind = model_type(Path(path).name)
    heads, width = (0, 0) if kind in ("unet", "vae", "swin", "sam2") else (4, 64)
    start = time.perf_counter()
    try:
        made = optimizer.optimize_model(path, kind, heads, width, opt_level=0)
    except Exception as error:
        return {"model_type": kind, "error": repr(error)[:200]}
    seconds = time.perf_counter() - start
    counts = collections.Counter(node.op_type for node in made.model.graph.node)
    return {"model_type": kind, "seconds": round(seconds, 3), "counts": dict(sorted(counts.items()))}


def weights(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """The initializers, and what Constants hold."""
    constants = [node for node in model.graph.node if node.op_type == "Constant"]
    held = (a.t for node in constants for a in node.attribute if a.name == "value")
    return [*model.graph.initializer, *held]


def skeleton(model: onnx.ModelProto) -> bytes:
    """The model without documentation and metadata, large weights reduced to mean and deviation."""
    graph = model.graph
    for holder in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output,
                   *graph.initializer):
        holder.ClearField("doc_string")
        holder.ClearField("metadata_props")
    for weight in weights(model):
        array = numpy_helper.to_array(weight)
        raw = array.tobytes()
        if array.size > _KEPT and array.dtype == np.float32 and len(zlib.compress(raw)) > len(raw) // 2:
            dims = list(weight.dims)
            name = weight.name
            weight.Clear()
            weight.name, weight.data_type = name, onnx.TensorProto.FLOAT
            weight.dims.extend(dims)
            weight.doc_string = f"{array.mean():.4g} {array.std():.4g}"
    return model.SerializeToString(deterministic=True)


def feeds(path: Path, model: onnx.ModelProto) -> bytes:
    """What the network is fed: integers as they are, of floats the shapes."""
    given = np.load(path.with_name(path.name.split(".")[0] + ".npz"))
    names = [value.name for value in model.graph.input]
    return json.dumps({name: {"shape": given[name].shape, **(
        {"values": given[name].ravel().tolist()} if given[name].dtype.kind == "i" else {})}
        for name in names}).encode()


def write_skeletons(paths: list[Path]) -> None:
    with tarfile.open(HERE / "exported.tar.xz", "w:xz", preset=9) as archive:
        for path in paths:
            model = onnx.load(path)
            for suffix, data in (("json", feeds(path, model)), ("onnx", skeleton(model))):
                entry = tarfile.TarInfo(f"{path.stem}.{suffix}")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def main(folder: str) -> None:
    paths = sorted(Path(folder).glob("*.onnx"))
    write_skeletons(paths)
    counts: dict[str, Any] = {}
    for path in paths:
        command = [sys.executable, __file__, "--one", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        counts[path.stem] = json.loads(done.stdout.splitlines()[-1])
        print(path.stem, counts[path.stem], flush=True)
    lines = [f"{json.dumps(name)}: {json.dumps(told)}" for name, told in counts.items()]
    (HERE / "fusions.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        print(json.dumps(fused(sys.argv[2])))
    else:
        main(sys.argv[1])
