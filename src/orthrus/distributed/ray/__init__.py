"""Models on Ray: over the rows of a dataset, and behind Ray Serve.

    import ray
    from orthrus.distributed.ray import predict
    table = predict(ray.data.read_parquet("texts"), "model.onnx", batch_size=64, concurrency=2)

In: a dataset and a model. Out: a dataset with the outputs as columns. Where actors run, what is done again
when a node is lost and what is shown of the progress is Ray's; nothing of it is made anew. Ray is imported
when the first of these is used.
"""

from __future__ import annotations

from .predictor import OrthrusPredictor, predict, put

__all__ = ["OrthrusPredictor", "predict", "put"]
