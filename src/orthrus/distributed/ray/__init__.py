"""Models on Ray: over the rows of a dataset, and behind Ray Serve.

    import ray
    from orthrus.distributed.ray import predict
    table = predict(ray.data.read_parquet("texts"), "model.onnx", batch_size=64, concurrency=2)

    from ray import serve
    from orthrus.distributed.ray import application
    handle = serve.run(application("model.onnx"))

In: a model, and a dataset or requests. Out: a dataset with the outputs as columns, or answers. Where actors
run, what is done again when a node is lost and what is shown of the progress is Ray's; nothing of it is made
anew. Ray is imported when the first of these is used.
"""

from __future__ import annotations

from .predictor import OrthrusPredictor, predict, put
from .serve import application

__all__ = ["OrthrusPredictor", "application", "predict", "put"]
