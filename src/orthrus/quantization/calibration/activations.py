"""A float model run on calibration data, with somebody looking at its tensors.

In: a model file, names of its tensors, and what a reader gives, item by item. Out: each of the tensors'
arrays, shown once an item, as soon as it is computed. The invariant: every tensor that is asked for is shown,
and of what a run computes no more is in memory than the run itself needs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import IO, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...errors import InvalidArgument
from ..refused import InvalidType, InvalidValue

See = Callable[[str, np.ndarray], None]

_HELD = 1 << 26
"""Bytes of what a reader gave that are held in memory; the rest waits in a file."""


def plain_session(model: str | os.PathLike[str] | bytes, providers: Sequence[Any] | None,
                  names: Sequence[str] | None = None) -> Any:
    """A session in which nothing is optimized; one that can be watched for the values `names`."""
    from ... import GraphOptimizationLevel, InferenceSession, SessionOptions

    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    if names is not None:
        options.add_session_config_entry("orthrus.watch", json.dumps(list(names)))
    given = model if isinstance(model, bytes) else os.fspath(model)
    return InferenceSession(given, options, providers=providers)


class Activations:
    """The tensors `names` of a model's file, shown run by run. What the session's providers compute without
    showing it, as parts compiled as a whole are, comes from a second session that has it as outputs."""

    def __init__(self, path: str, names: Sequence[str], session: Any,
                 providers: Sequence[Any] | None) -> None:
        self.path, self.names, self.session, self.providers = path, names, session, providers
        self._hidden: list[str] = []
        self._second: Any = None

    def run(self, feeds: Mapping[str, Any], see: See) -> None:
        """One run, in which `see(name, array)` gets every tensor; the array holds until it returns."""
        shown: set[str] = set()

        def first(name: str, array: Any) -> None:
            if name not in shown and name not in self._hidden:
                shown.add(name)
                see(name, array)
        with self.session.watch(first):
            self.session.run(None, feeds)
        for name in self.names:
            if name in feeds and name not in shown:
                first(name, np.asarray(feeds[name]))
        missing = [name for name in self.names if name not in shown]
        if not set(missing) <= set(self._hidden):
            self._hidden, self._second = missing, None
        if missing:
            self._apart(feeds, see)

    def _apart(self, feeds: Mapping[str, Any], see: See) -> None:
        """Show what the first session does not."""
        if self._second is None:
            with tempfile.TemporaryDirectory(prefix="orthrus.calibration.") as folder:
                augmented = os.path.join(folder, "augmented.onnx")
                save_changed(self.path, partial(add_outputs, names=self._hidden), augmented)
                self._second = plain_session(augmented, self.providers)
        for name, array in zip(self._hidden, self._second.run(self._hidden, dict(feeds)), strict=True):
            see(name, array)


def save_changed(path: str, change: Callable[[Any], None], target: str, external: bool = False) -> None:
    """Write the model of a file with further outputs, which `change` adds, to `target`.
    `external`: its weights in a file beside it, as they are too where the model would pass 2 GB."""
    model = onnx.load(path)
    change(model)
    if external or model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        onnx.save_model(model, target, save_as_external_data=True, all_tensors_to_one_file=True,
                        location=os.path.basename(target) + ".data", convert_attribute=False)
    else:
        onnx.save_model(model, target)


def add_outputs(model: Any, names: Sequence[str]) -> None:
    """Let the tensors `names` be outputs of a ModelProto too, where they are not yet; their types may be
    unknown."""
    known = {info.name: info for info in (*model.graph.value_info, *model.graph.input)}
    outputs = {info.name for info in model.graph.output}
    for name in names:
        if name not in outputs:
            model.graph.output.append(known.get(name, onnx.ValueInfoProto(name=name)))


def add_extremes(model: Any, names: Sequence[str], stated: Mapping[str, Any], per_channel: bool) -> None:
    """Let the least and the greatest number of each of the tensors `names` be outputs of a ModelProto:
    `<name>_ReduceMin` and `<name>_ReduceMax`, vectors of one number, or of one for each index of the second
    dimension where `per_channel`. `stated`: the ValueInfoProto of each tensor."""
    graph = model.graph
    taken = {*stated, *(tensor.name for tensor in graph.initializer)}
    opset = next(item.version for item in model.opset_import if not item.domain)

    def constant(values: list[int]) -> str:
        name = next(n for n in (f"extremes_{k}" for k in itertools.count()) if n not in taken)
        taken.add(name)
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    shape, places = constant([-1]), dict[int, str]()
    for name, op_type in itertools.product(names, ("ReduceMin", "ReduceMax")):
        output, more = f"{name}_{op_type}", dict[str, Any]()
        type_ = stated[name].type.tensor_type
        inputs, rank = [name], len(type_.shape.dim)
        if per_channel and opset < 18:
            more["axes"] = [0, *range(2, rank)]
        elif per_channel:
            if rank not in places:
                places[rank] = constant([0, *range(2, rank)])
            inputs.append(places[rank])
        graph.node.extend([
            helper.make_node(op_type, inputs, [f"{output}_Reshape"], output, keepdims=1, **more),
            helper.make_node("Reshape", [f"{output}_Reshape", shape], [output], f"{output}_Reshape")])
        graph.output.append(helper.make_tensor_value_info(output, type_.elem_type, [None]))


def items_of(reader: Any, session: Any) -> Iterator[dict[str, Any]]:
    """What a reader gives until it gives nothing, each with all inputs of `session` and no other. Raises
    TypeError for an item that is no dict, ValueError for one with other names."""
    needed = {arg.name for arg in session.get_inputs()}
    known = needed | {arg.name for arg in session.get_overridable_initializers()}
    count = 0
    while True:
        item = reader.get_next()
        if not item:
            return
        count += 1
        if not isinstance(item, Mapping):
            raise InvalidType(f"item {count} of the calibration data is no dict", found=type(item).__name__,
                              expected="a dict of arrays by the inputs' names", cure="mend get_next()")
        if not needed <= item.keys() <= known:
            raise InvalidValue(f"item {count} of the calibration data does not fit the model's inputs",
                               found=", ".join(map(str, item)), expected=", ".join(sorted(needed)),
                               cure="let get_next() give these names")
        yield dict(item)


@contextlib.contextmanager
def about_item(number: int) -> Iterator[None]:
    """What goes wrong with an input says which item of the data it was."""
    try:
        yield
    except InvalidArgument as error:
        if isinstance(error, ValueError):
            raise
        raise InvalidValue(f"item {number} of the calibration data cannot be run: {error.text}",
                           node=error.node, found=error.found, expected=error.expected,
                           cure=error.cure or "let get_next() give arrays of the inputs' types and shapes"
                           ) from error


class Spool:
    """Items of a reader, kept to be gone through again: in memory up to some megabytes, then in a file that
    nobody else sees."""

    def __init__(self) -> None:
        self._rows: list[tuple[dict[str, Any], int]] = []
        self._file: IO[bytes] | None = None
        self._held = 0

    def add(self, item: dict[str, Any]) -> None:
        """Keep a copy of an item: its reader may fill the same arrays again."""
        item = {name: np.copy(array) if _plain(array) else array for name, array in item.items()}
        size = sum(array.nbytes for array in item.values() if _plain(array))
        if self._held + size <= _HELD:
            self._held += size
            self._rows.append((item, -1))
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="orthrus.calibration.")  # noqa: SIM115
        start = self._file.seek(0, os.SEEK_END)
        for array in item.values():
            if _plain(array):
                np.lib.format.write_array(self._file, array, allow_pickle=False)
        self._rows.append(({name: None if _plain(array) else array for name, array in item.items()}, start))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for item, start in self._rows:
            if start < 0:
                yield item
                continue
            assert self._file is not None
            self._file.seek(start)
            yield {name: np.lib.format.read_array(self._file, allow_pickle=False) if array is None else array
                   for name, array in item.items()}

    def close(self) -> None:
        """Forget the items."""
        self._rows.clear()
        if self._file is not None:
            self._file.close()


def _plain(array: Any) -> bool:
    """Whether a file can hold it."""
    return isinstance(array, np.ndarray) and array.dtype.kind in "biufc"


@contextlib.contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """A function to be called for each item: it moves a bar, where somebody sits at a terminal and rich is
    installed."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


def length_of(reader: Any) -> int | None:
    """How many items a reader says it has, None where it does not say."""
    try:
        return len(reader)
    except (NotImplementedError, TypeError):
        return None
