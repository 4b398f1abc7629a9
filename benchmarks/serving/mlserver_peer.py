"""onnxruntime in MLServer, Seldon's public server of the same protocol, in one process:
`parallel_workers` 0 saves it a hop between processes.

    python -m benchmarks.serving.mlserver_peer FOLDER PORT [THREADS]

The models NAME/1/model.onnx of a folder. Over HTTP it knows tensors as JSON alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Model(MLModel):
    async def load(self) -> bool:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["PEER_THREADS"])
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri, options,
                                                    providers=["CPUExecutionProvider"])
        self.asked = [each.name for each in self.session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feeds = {each.name: NumpyCodec.decode_input(each) for each in payload.inputs}
        results = self.session.run(self.asked, feeds)
        return InferenceResponse(model_name=self.name, outputs=[
            NumpyCodec.encode_output(name, np.asarray(value))
            for name, value in zip(self.asked, results, strict=True)])


def main(folder: str, port: str, threads: str = "1") -> None:
    from mlserver.cli.main import main as command

    made = Path(tempfile.mkdtemp(prefix="mlserver-"))
    settings = {"host": "127.0.0.1", "http_port": int(port), "grpc_port": int(port) + 1, "debug": False,
                "metrics_endpoint": None, "parallel_workers": 0}
    (made / "settings.json").write_text(json.dumps(settings))
    for path in Path(folder).glob("*/1/model.onnx"):
        own = made / path.parts[-3]
        own.mkdir()
        (own / "model-settings.json").write_text(json.dumps(
            {"name": own.name, "implementation": "benchmarks.serving.mlserver_peer.Model",
             "parameters": {"uri": str(path)}}))
    os.environ["PEER_THREADS"] = threads
    sys.argv = ["mlserver", "start", str(made)]
    command()


if __name__ == "__main__":
    main(*sys.argv[1:])
