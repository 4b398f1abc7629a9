"""onnxruntime behind Starlette on uvicorn, as one would write it in an hour: the server's measure.

    python -m benchmarks.serving.peer FOLDER PORT inline|pool [THREADS]

The Open Inference Protocol with binary tensors for the models NAME/1/model.onnx of a folder. `inline` runs
the session on the event loop, `pool` in a pool of threads. THREADS: of a run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "UINT8": np.uint8}
NAMES = {np.dtype(kind).name: name for name, kind in TYPES.items()}


def main(folder: str, port: str, form: str, threads: str = "1") -> None:
    import onnxruntime
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    options.log_severity_level = 3
    provider = ["CPUExecutionProvider"]
    sessions = {path.parts[-3]: onnxruntime.InferenceSession(path, options, providers=provider)
                for path in Path(folder).glob("*/*/model.onnx")}
    outputs = {name: [each.name for each in session.get_outputs()] for name, session in sessions.items()}
    pool = ThreadPoolExecutor(2)

    async def infer(request: Request) -> Response:
        name = request.path_params["name"]
        body = memoryview(await request.body())
        size = int(request.headers["inference-header-content-length"])
        head, at, feeds = json.loads(bytes(body[:size])), size, dict[str, Any]()
        for each in head["inputs"]:
            end = at + each["parameters"]["binary_data_size"]
            feeds[each["name"]] = np.frombuffer(body[at:end], TYPES[each["datatype"]]).reshape(each["shape"])
            at = end
        session = sessions[name]
        if form == "inline":
            results = session.run(None, feeds)
        else:
            results = await asyncio.get_running_loop().run_in_executor(pool, session.run, None, feeds)
        told = [{"name": each, "datatype": NAMES[value.dtype.name], "shape": value.shape,
                 "parameters": {"binary_data_size": value.nbytes}}
                for each, value in zip(outputs[name], results, strict=True)]
        answer = json.dumps({"model_name": name, "outputs": told}).encode()
        return Response(answer + b"".join(value.tobytes() for value in results),
                        media_type="application/octet-stream",
                        headers={"Inference-Header-Content-Length": str(len(answer))})

    async def ready(request: Request) -> Response:
        return Response()

    app = Starlette(routes=[Route("/v2/models/{name}/infer", infer, methods=["POST"]),
                            Route("/v2/health/ready", ready)])
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
