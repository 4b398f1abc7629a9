"""A session in an actor of Ray's, run over the batches of a dataset.

In: a model, as a path that every node has or as a reference to its bytes in the object store, and batches.
Out: batches with the outputs as columns. The bytes are in each node's memory once: its actors read them where
they lie.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidArgument, NoSuchFile
from .columns import Rows, columns_of

_GPUS = ("CUDAExecutionProvider", "ROCMExecutionProvider", "MIGraphXExecutionProvider")


def put(model: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Any:
    """A model in Ray's object store, once for all actors and deployments: the reference that they take in
    place of it. It has to live as long as they do. `model`: a path, whose external data is taken along, or
    bytes. Raises NoSuchFile, and InvalidArgument for a model too large for one message of protobuf."""
    import ray

    return ray.put(np.frombuffer(_content(model), np.uint8))


def _content(model: str | os.PathLike[str] | bytes | bytearray | memoryview) -> bytes:
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    path = Path(model)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NoSuchFile(f"Load model from {path} failed:{error.strerror}") from None
    import onnx
    from onnx.external_data_helper import load_external_data_for_model, uses_external_data

    try:
        proto = onnx.load_model_from_string(content)
    except Exception:  # what it is instead, the session says
        return content
    if not any(map(uses_external_data, proto.graph.initializer)):
        return content
    try:
        load_external_data_for_model(proto, str(path.parent))
        return proto.SerializeToString()
    except ValueError as error:
        raise InvalidArgument(
            f"{path} with its external data is too large for one message",
            found=str(error),
            expected="2 GiB at most",
            cure="give the path itself, and have the files on every node",
        ) from None


class OrthrusPredictor:
    """What `map_batches` makes in each of its actors: a session, and how columns become its inputs.

        dataset.map_batches(OrthrusPredictor, fn_constructor_kwargs={"model": put("model.onnx")},
                            concurrency=2, num_cpus=1, batch_size=64)

    `predict` does this in one call. The session has as many threads as the actor has processors (`num_cpus`,
    one for a part of one) and, where it has a GPU (`num_gpus`), the provider of that.
    """

    def __init__(
        self,
        model: Any,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        constants: Mapping[str, Any] | None = None,
        providers: Sequence[Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`model`: what `put` gave, a path on every node, or bytes. `inputs`: the column of each input, where
        it is not called as the input is. `outputs`: those that are wanted, a list, or a mapping to the
        columns they become. `keep`: the columns that stay beside the outputs; by default all that the model
        does not read. `constants`: inputs that are the same for all rows. `providers`: as a session's;
        `options`: attributes of its SessionOptions. Raises InvalidArgument for names that the model does not
        have, and what making a session raises."""
        self.session = session_of(model, providers, options)
        self.rows = Rows(self.session, inputs, outputs, constants)
        self.keep = None if keep is None else tuple([keep] if isinstance(keep, str) else keep)

    def __call__(self, batch: Any) -> dict[str, np.ndarray]:
        """The outputs of a batch, in its order, with the columns that are kept. `batch`: numpy arrays by
        column, a pyarrow.Table or a pandas.DataFrame. Raises InvalidArgument, which names column and row."""
        columns = columns_of(batch)
        read = set(self.rows.inputs.values())
        kept = [name for name in columns if name not in read] if self.keep is None else self.keep
        for name in kept:
            if name not in columns:
                raise InvalidArgument(
                    f"there is no column {name!r} to keep", found=f"columns {', '.join(map(repr, columns))}"
                )
        twice = sorted({*kept} & {*self.rows.outputs.values()})
        if twice:
            raise InvalidArgument(
                f"the column {twice[0]!r} is there already and would be an output too",
                cure="name the output's column by outputs=, or what stays by keep=",
            )
        return {**{name: columns[name] for name in kept}, **self.rows.run(columns)}


def predict(
    dataset: Any,
    model: Any,
    *,
    batch_size: int | None = 64,
    concurrency: Any = 1,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    batch_format: str = "numpy",
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | Sequence[str] | None = None,
    keep: Sequence[str] | None = None,
    constants: Mapping[str, Any] | None = None,
    providers: Sequence[Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **ray: Any,
) -> Any:
    """A dataset with a model's outputs as columns, computed when it is read.

    `dataset`: a `ray.data.Dataset`. `model`: a path or bytes, which go to the object store, or what `put`
    gave. `batch_size`, `concurrency`, `num_cpus`, `num_gpus`, `batch_format` and what else there is go to
    its `map_batches`; the others are `OrthrusPredictor`'s.
    """
    if isinstance(model, str | os.PathLike | bytes | bytearray | memoryview):
        model = put(model)
    arguments = {
        "model": model,
        "inputs": inputs,
        "outputs": outputs,
        "keep": keep,
        "constants": constants,
        "providers": providers,
        "options": options,
    }
    return dataset.map_batches(
        OrthrusPredictor,
        fn_constructor_kwargs=arguments,
        batch_size=batch_size,
        concurrency=concurrency,
        batch_format=batch_format,
        zero_copy_batch=True,
        num_gpus=num_gpus,
        num_cpus=1 if num_cpus is None and not num_gpus else num_cpus,
        **ray,
    )


def session_of(
    model: Any, providers: Sequence[Any] | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """A session on what the actor was given. Raises InvalidArgument where that is a GPU and no provider for
    it is here."""
    from ... import InferenceSession, SessionOptions, get_available_providers

    settings = SessionOptions()
    cpus, gpus = _assigned()
    settings.intra_op_num_threads = max(1, int(cpus))
    for name, value in (options or {}).items():
        if not hasattr(settings, name):
            raise InvalidArgument(f"SessionOptions has no {name!r}", found=f"options {dict(options or {})}")
        setattr(settings, name, value)
    if providers is None:
        there = [name for name in _GPUS if name in get_available_providers()]
        if gpus and not there:
            raise InvalidArgument(
                "the actor has a GPU and there is no provider for one",
                found=", ".join(get_available_providers()),
                cure="install one, or providers=['CPUExecutionProvider'] without num_gpus",
            )
        providers = [*(there[:1] if gpus else ()), "CPUExecutionProvider"]
    return InferenceSession(_model_of(model), settings, providers=list(providers))


def _assigned() -> tuple[float, float]:
    """Processors and GPUs of the actor; one processor outside of Ray."""
    import ray

    if not ray.is_initialized():
        return 1, 0
    context = ray.get_runtime_context()
    given = context.get_assigned_resources() if context.worker.mode == ray.WORKER_MODE else {}
    return given.get("CPU", 1), given.get("GPU", 0)


def _model_of(model: Any) -> Any:
    """What a session is made of: a path, or the bytes where they lie in the object store."""
    import ray

    if isinstance(model, ray.ObjectRef):
        model = ray.get(model)
    if isinstance(model, np.ndarray):
        return model.data
    return model
