"""Calibration: a float model's file and data go in, the ranges of its tensors come out.

The model is run once for each item of the data, twice where histograms are wanted, with nothing optimized:
the tensors are those of the float model. Each is looked at as soon as it is computed, then its memory is used
again. The invariant: how the data is divided into items changes no range, but for moving averages, which are
of the items' extremes.
"""

from __future__ import annotations

import copy
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from .calibration.activations import (
    Activations,
    Spool,
    about_item,
    add_extremes,
    add_outputs,
    items_of,
    length_of,
    plain_session,
    progress,
    save_changed,
)
from .calibration.data import (
    CalibrationCacheEncoder,
    CalibrationMethod,
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
    write_json,
)
from .calibration.histogram import CalibrationDataCollector, Extent, HistogramCollector, entropy, rel_entr
from .quant_utils import load_model_with_shape_infer
from .refused import InvalidType, InvalidValue

__all__ = ["CalibraterBase", "CalibrationCacheEncoder", "CalibrationDataCollector", "CalibrationDataReader",
           "CalibrationMethod", "DistributionCalibrater", "EntropyCalibrater", "HistogramCalibrater",
           "HistogramCollector", "MinMaxCalibrater", "PercentileCalibrater", "TensorData", "TensorsData",
           "create_calibrator", "entropy", "load_tensors_data", "rel_entr", "save_tensors_data"]

_AUGMENTED = "augmented_model.onnx"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)

Range = tuple[np.ndarray, np.ndarray]


class _Unsaid(NotImplementedError, TypeError):
    """A length that nobody knows; `list` does without."""


class CalibrationDataReader(ABC):
    """Where calibration data comes from: a subclass says what the next item is. Anything that has `get_next`
    counts as one."""

    @classmethod
    def __subclasshook__(cls, subclass: type) -> Any:
        return True if callable(getattr(subclass, "get_next", None)) else NotImplemented

    @abstractmethod
    def get_next(self) -> dict[str, Any] | None:
        """The next item: an array for each of the model's inputs, by name; None after the last one."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        item = self.get_next()
        if item is None:
            raise StopIteration
        return item

    def __len__(self) -> int:
        """How many items there are, where a subclass says so."""
        raise _Unsaid("this reader does not say how many items it has")

    def set_range(self, start_index: int, end_index: int) -> None:
        """Give the items from `start_index` to before `end_index` next; needed for CalibStridedMinMax."""
        raise NotImplementedError


class CalibraterBase:
    """A float model, and which of its tensors are to be calibrated: the inputs and outputs of float32 or
    float16 of nodes of `op_types_to_calibrate`, of all nodes where that is empty, but for initializers.

    `model_path`: the model's file. `symmetric`: widen ranges to be centred on 0. `per_channel`: a range for
    each index of a tensor's second dimension. `augmented_model_path`: where, if it is another than the
    default, `augment_graph` writes the model with the tensors as outputs; with `use_external_data_format`,
    its weights in a file beside it. Raises ValueError for a model that is no path.
    """

    def __init__(self, model_path: str | os.PathLike[str], op_types_to_calibrate: Sequence[str] | None = None,
                 augmented_model_path: str | os.PathLike[str] = _AUGMENTED, symmetric: bool = False,
                 use_external_data_format: bool = False, per_channel: bool = False) -> None:
        if not isinstance(model_path, str | os.PathLike):
            raise InvalidValue("model_path should be model path.", found=type(model_path).__name__,
                               expected="a str or a Path", cure="save the model with onnx.save")
        self._path = os.fspath(model_path)
        self._outline = _outline(self._path)
        self._model: ModelProto | None = None
        self.op_types_to_calibrate = op_types_to_calibrate
        self.augmented_model_path = augmented_model_path
        self.symmetric, self.per_channel = symmetric, per_channel
        self.use_external_data_format = use_external_data_format
        self.augment_model: ModelProto | None = None
        self.infer_session: Any = None
        self.execution_providers: Sequence[Any] = ["CPUExecutionProvider"]
        self.tensors_to_calibrate: Any = None
        self.model_original_outputs = {output.name for output in self._outline.graph.output}
        self.num_model_outputs = len(self._outline.graph.output)
        self.items = 0

    @property
    def model(self) -> ModelProto:
        """The model with its weights and the types of its tensors; read when it is first asked for."""
        if self._model is None:
            self._model = load_model_with_shape_infer(Path(self._path))
        return self._model

    @model.setter
    def model(self, model: ModelProto) -> None:
        self._model = self._outline = model

    def set_execution_providers(self, execution_providers: Sequence[Any] = ("CPUExecutionProvider",)) -> None:
        """Compute on these from now on."""
        self.execution_providers = execution_providers
        self.create_inference_session()

    def create_inference_session(self) -> None:
        """Make the session that computes: of the model, and ready to be watched; or of the file at
        `augmented_model_path`, where a subclass has its own `augment_graph`."""
        if self._augments:
            self.infer_session = plain_session(self.augmented_model_path, self.execution_providers)
            self._activations = None
            return
        names = self._chosen()
        self.infer_session = plain_session(self._path, self.execution_providers, names)
        self._activations = Activations(self._path, names, self.infer_session, self.execution_providers)

    @property
    def _augments(self) -> bool:
        """Whether a subclass makes an augmented model of its own."""
        return type(self).augment_graph not in (CalibraterBase.augment_graph, _Observer.augment_graph)

    def _chosen(self) -> list[str]:
        """The tensors to calibrate in the order in which the graph names them."""
        if self.tensors_to_calibrate is None:
            self.tensors_to_calibrate, _ = self.select_tensors_to_calibrate(self._outline)
        graph = self._outline.graph
        order = dict.fromkeys(name for node in graph.node for name in (*node.input, *node.output))
        named = [name for name in order if name in self.tensors_to_calibrate]
        return [*named, *sorted(self.tensors_to_calibrate - set(named))]

    def select_tensors_to_calibrate(self, model: ModelProto) -> tuple[set[str], dict[str, Any]]:
        """The names of the tensors of `model` to calibrate, and what its graph states of each tensor."""
        graph = model.graph
        stated = {info.name: info for info in (*graph.value_info, *graph.output, *graph.input)}
        constant = {tensor.name for tensor in graph.initializer}
        kinds = self.op_types_to_calibrate
        touched = {name for node in graph.node if not kinds or node.op_type in kinds
                   for name in (*node.input, *node.output)}
        return {name for name in touched - constant
                if name in stated and stated[name].type.HasField("tensor_type")
                and stated[name].type.tensor_type.elem_type in _FLOATS}, stated

    def _show(self, model: ModelProto) -> None:
        """Let what tells of the tensors to calibrate be outputs of the model: the tensors themselves."""
        add_outputs(model, self._chosen())

    def get_augment_model(self) -> ModelProto:
        """The model with what tells of the tensors to calibrate as further outputs."""
        if self._augments:
            return self.model
        if self.augment_model is None:
            self.augment_model = copy.deepcopy(self.model)
            self._show(self.augment_model)
        return self.augment_model

    def augment_graph(self) -> None:
        """Choose the tensors to calibrate."""
        raise NotImplementedError

    def collect_data(self, data_reader: Any) -> None:
        """Run the model on what `data_reader` gives. May be called again with more."""
        raise NotImplementedError

    def compute_data(self) -> TensorsData:
        """The ranges of what was collected by now."""
        raise NotImplementedError

    def _runs(self, items: Iterable[dict[str, Any]], title: str, total: int | None, see: Any) -> int:
        """Run the model on each of `items` with `see(name, array)` looking on, which is told by
        `see(None, None)` that an item is done; how many there were."""
        count = 0
        with progress(title, total) as advance:
            for item in items:
                count += 1
                with about_item(count):
                    self._run(item, see)
                see(None, None)
                advance()
        return count

    def _run(self, item: dict[str, Any], see: Any) -> None:
        if self._activations is not None:
            self._activations.run(item, see)
            return
        names = [output.name for output in self.infer_session.get_outputs()]
        for name, array in zip(names, self.infer_session.run(None, item), strict=True):
            see(name, array)


class _Observer(CalibraterBase):
    """What the calibraters of this module share."""

    def augment_graph(self) -> None:
        """Choose the tensors to calibrate; write the model with what tells of them as outputs where
        `augmented_model_path` is not the default."""
        self.tensors_to_calibrate = None
        self.augment_model = None
        self._chosen()
        if os.fspath(self.augmented_model_path) != _AUGMENTED:
            save_changed(self._path, self._show, os.fspath(self.augmented_model_path),
                         self.use_external_data_format)

    def _ready(self) -> None:
        if self.infer_session is None:
            self.create_inference_session()

    def _nothing(self) -> InvalidValue:
        return InvalidValue("No data is collected.", found="a reader whose first get_next() gives nothing",
                            expected="a dict of arrays", cure="give a fresh reader: one that was read to its "
                            "end gives nothing more")


class MinMaxCalibrater(_Observer):
    """The least and the greatest number that each tensor had.

    `moving_average`: their averages over the items of a collection, and from collection to collection what
    was found before, moved towards what is found now by the share `averaging_constant`.
    `max_intermediate_outputs`: after how many items of a collection their ranges are put together.
    """

    def __init__(self, model_path: str | os.PathLike[str], op_types_to_calibrate: Sequence[str] | None = None,
                 augmented_model_path: str | os.PathLike[str] = _AUGMENTED, symmetric: bool = False,
                 use_external_data_format: bool = False, moving_average: bool = False,
                 averaging_constant: float = 0.01, max_intermediate_outputs: int | None = None,
                 per_channel: bool = False) -> None:
        super().__init__(model_path, op_types_to_calibrate, augmented_model_path, symmetric,
                         use_external_data_format, per_channel)
        if moving_average and not 0 <= averaging_constant <= 1:
            raise InvalidValue("Invalid averaging constant, which should not be < 0 or > 1.",
                               found=averaging_constant)
        if max_intermediate_outputs is not None and max_intermediate_outputs < 1:
            raise InvalidValue("max_intermediate_outputs is no number of items", expected="1 or more",
                               found=max_intermediate_outputs)
        self.moving_average, self.averaging_constant = moving_average, averaging_constant
        self.max_intermediate_outputs = max_intermediate_outputs
        self.intermediate_outputs: list[dict[str, Range]] = []
        self.calibrate_tensors_range: TensorsData | None = None

    def _show(self, model: ModelProto) -> None:
        """The least and the greatest number of each tensor as outputs."""
        _, stated = self.select_tensors_to_calibrate(self._outline)
        add_extremes(model, self._chosen(), stated, self.per_channel)

    def clear_collected_data(self) -> None:
        """Forget the ranges of items that are not in `calibrate_tensors_range` yet."""
        self.intermediate_outputs = []

    def collect_data(self, data_reader: Any) -> None:
        """Raises ValueError where the reader gives nothing and nothing was collected before, where an item
        does not fit the model, and where a tensor has NaN."""
        self._ready()
        now: dict[str, Any] = {}

        def see(name: str | None, array: Any) -> None:
            if name is None:
                self._keep(now)
                now.clear()
            else:
                now[name] = array if self._activations is None else _extremes(name, array, self.per_channel)
        items = items_of(data_reader, self.infer_session)
        self.items += self._runs(items, "calibrating", length_of(data_reader), see)
        if not self.intermediate_outputs and self.calibrate_tensors_range is None:
            raise self._nothing()
        found = self.compute_data()
        if not isinstance(found, TensorsData):
            raise InvalidType(f"compute_data must return a TensorsData not {type(found)}.")
        self.clear_collected_data()

    def _keep(self, now: Mapping[str, Any]) -> None:
        """Keep the ranges of an item: of an augmented model, those that its further outputs are in pairs."""
        ranges = dict(now)
        if self._activations is None:
            added = [name for name in now if name not in self.model_original_outputs]
            ranges = {least.rpartition("_")[0]: (now[least], now[greatest])
                      for least, greatest in zip(added[::2], added[1::2], strict=True)}
        self.intermediate_outputs.append(ranges)
        if len(self.intermediate_outputs) == self.max_intermediate_outputs:
            self.compute_data()
            self.clear_collected_data()

    def merge_range(self, old_range: Any, new_range: Any) -> Any:
        """`new_range`, with what `old_range` says of the same tensors put into it: mappings of tensors to
        `TensorData` or to (lowest, highest)."""
        for name, old in (old_range.items() if old_range else ()):
            lowest, highest = old.range_value if isinstance(old, TensorData) else old
            new = new_range[name]
            least, greatest = new.range_value if isinstance(new, TensorData) else new
            if self.moving_average:
                lowest = lowest + self.averaging_constant * (least - lowest)
                highest = highest + self.averaging_constant * (greatest - highest)
            else:
                lowest, highest = np.minimum(lowest, least), np.maximum(highest, greatest)
            whole = isinstance(old, TensorData) or isinstance(new, TensorData)
            new_range[name] = (TensorData(lowest=lowest, highest=highest) if whole else (lowest, highest))
        return new_range

    def compute_data(self) -> Any:
        """The ranges as `TensorsData`; None where nothing was collected."""
        if self.intermediate_outputs:
            low, high = (np.nanmean, np.nanmean) if self.moving_average else (np.nanmin, np.nanmax)
            found = {}
            for name in self.intermediate_outputs[0]:
                lows, highs = (_stacked(name, [ranges[name][side] for ranges in self.intermediate_outputs])
                               for side in (0, 1))
                found[name] = self._centred(low(lows, axis=0), high(highs, axis=0))
            self.calibrate_tensors_range = self.merge_range(
                self.calibrate_tensors_range, TensorsData(CalibrationMethod.MinMax, found))
        return self.calibrate_tensors_range

    def _centred(self, lowest: Any, highest: Any) -> tuple[Any, Any]:
        if not self.symmetric:
            return lowest, highest
        farthest = np.nanmax([np.abs(lowest), np.abs(highest)], axis=0)
        return -farthest, farthest

    def save_collected(self, path: str | os.PathLike[str]) -> None:
        """Write what was collected by now to a JSON file; `load_collected` of a calibrater of the same model
        and options goes on from there. `items` says how many items that were."""
        ranges = self.compute_data()
        self.clear_collected_data()
        write_json({"items": self.items, "ranges": ranges}, path)

    def load_collected(self, path: str | os.PathLike[str]) -> None:
        """What `save_collected` wrote, in place of what was collected. Raises ValueError for another file."""
        content = _collected(path, "ranges")
        self.items = content["items"]
        ranges = content["ranges"]
        self.calibrate_tensors_range = None if ranges is None else TensorsData.from_dict(ranges)
        self.clear_collected_data()


class HistogramCalibrater(_Observer):
    """Ranges from histograms, see `HistogramCollector`; its subclasses are made by `create_calibrator`.

    Each item is run twice: its numbers can only be counted once the largest of the whole collection is known.
    What the reader gives is kept meanwhile, beyond some megabytes in a temporary file.
    """

    calibration_method: CalibrationMethod | None = None

    def __init__(self, model_path: str | os.PathLike[str], op_types_to_calibrate: Sequence[str] | None = None,
                 augmented_model_path: str | os.PathLike[str] = _AUGMENTED,
                 use_external_data_format: bool = False, method: str = "percentile", symmetric: bool = False,
                 num_bins: int = 128, num_quantized_bins: int = 2048, percentile: float = 99.999,
                 scenario: str = "same") -> None:
        super().__init__(model_path, op_types_to_calibrate, augmented_model_path, symmetric,
                         use_external_data_format)
        self.method, self.num_bins, self.num_quantized_bins = method, num_bins, num_quantized_bins
        self.percentile, self.scenario = percentile, scenario
        self.collector: HistogramCollector | None = None

    def clear_collected_data(self) -> None:
        """Nothing: no tensor is held."""

    def collect_data(self, data_reader: Any) -> None:
        """Raises ValueError where the reader gives nothing, where an item does not fit the model, and where
        a tensor has NaN or infinite values; what was collected before stays as it was."""
        self._ready()
        collector = self.collector or HistogramCollector(
            self.method, self.symmetric, self.num_bins, self.num_quantized_bins, self.percentile,
            self.scenario)
        spool = Spool()
        try:
            extents = self._measured(data_reader, spool, collector.magnitudes)
            if not len(spool):
                raise self._nothing()
            countings = {name: collector.begin(name, extent) for name, extent in extents.items()}

            def count(name: str | None, array: Any) -> None:
                if name in countings:
                    countings[name].add(array)
            self.items += self._runs(spool, "counting", len(spool), count)
        finally:
            spool.close()
        for name, counting in countings.items():
            collector.finish(name, extents[name], counting)
        self.collector = collector

    def _measured(self, reader: Any, spool: Spool, magnitudes: bool) -> dict[str, Extent]:
        """What the tensors' values lie between; the reader's items go into `spool`."""
        extents: dict[str, Extent] = {}
        wanted = self.tensors_to_calibrate if self._activations is None else None

        def measure(name: str | None, array: Any) -> None:
            if name is None or (wanted is not None and name not in wanted):
                return
            extent = extents.setdefault(name, Extent(array.dtype, magnitudes))
            if array.size:
                (lowest,), (highest,) = _extremes(name, array, False)
                extent.widen(lowest, highest, array)

        def kept() -> Iterator[dict[str, Any]]:
            for item in items_of(reader, self.infer_session):
                spool.add(item)
                yield item
        self._runs(kept(), "measuring", length_of(reader), measure)
        return extents

    def compute_data(self) -> TensorsData:
        """The ranges, or the distributions. Raises ValueError where nothing was collected."""
        if self.collector is None:
            raise InvalidValue("No collector created and can't generate calibration data.",
                               cure="call collect_data first")
        if self.calibration_method is None:
            raise InvalidType(f"Unknown calibrater {type(self)}. This method must be overwritten.")
        return TensorsData(self.calibration_method, self.collector.compute_collection_result())

    def save_collected(self, path: str | os.PathLike[str]) -> None:
        """Write the histograms of what was collected by now to a JSON file; `load_collected` of a calibrater
        of the same model and options goes on from there. `items` says of how many items they are."""
        histograms = self.collector.histogram_dict if self.collector is not None else {}
        write_json({"items": self.items, "histograms": {
            name: [np.asarray(part) for part in found] for name, found in histograms.items()}}, path)

    def load_collected(self, path: str | os.PathLike[str]) -> None:
        """What `save_collected` wrote, in place of what was collected. Raises ValueError for another file."""
        content = _collected(path, "histograms")
        self.items = content["items"]
        self.collector = HistogramCollector(self.method, self.symmetric, self.num_bins,
                                            self.num_quantized_bins, self.percentile, self.scenario)
        self.collector.histogram_dict = {
            name: tuple(np.array(part["data"], np.dtype(part["dtype"])) for part in found)
            for name, found in content["histograms"].items()}


class EntropyCalibrater(HistogramCalibrater):
    """Ranges whose quantized histogram differs least from the histogram, by relative entropy."""

    calibration_method = CalibrationMethod.Entropy

    def __init__(self, model_path: str | os.PathLike[str], op_types_to_calibrate: Sequence[str] | None = None,
                 augmented_model_path: str | os.PathLike[str] = _AUGMENTED,
                 use_external_data_format: bool = False, method: str = "entropy", symmetric: bool = False,
                 num_bins: int = 128, num_quantized_bins: int = 128) -> None:
        super().__init__(model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format,
                         method, symmetric, num_bins, num_quantized_bins)


class PercentileCalibrater(HistogramCalibrater):
    """Ranges that hold a share of a tensor's values."""

    calibration_method = CalibrationMethod.Percentile

    def __init__(self, model_path: str | os.PathLike[str], op_types_to_calibrate: Sequence[str] | None = None,
                 augmented_model_path: str | os.PathLike[str] = _AUGMENTED,
                 use_external_data_format: bool = False, method: str = "percentile", symmetric: bool = False,
                 num_bins: int = 2048, percentile: float = 99.999) -> None:
        super().__init__(model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format,
                         method, symmetric, num_bins, percentile=percentile)


class DistributionCalibrater(HistogramCalibrater):
    """Averages and deviations, for float8. `scenario`: "same" where weights and float8 are distributed alike,
    "p3" where float8 is as the third power of a normal law."""

    calibration_method = CalibrationMethod.Distribution

    def __init__(self, model_path: str | os.PathLike[str], op_types_to_calibrate: Sequence[str] | None = None,
                 augmented_model_path: str | os.PathLike[str] = _AUGMENTED,
                 use_external_data_format: bool = False, method: str = "distribution", num_bins: int = 128,
                 scenario: str = "same") -> None:
        super().__init__(model_path, op_types_to_calibrate, augmented_model_path, use_external_data_format,
                         method, num_bins=num_bins, scenario=scenario)


class _Kind(NamedTuple):
    """A calibrater, and the defaults of the options that it takes."""

    made: type[_Observer]
    options: dict[str, Any]


_KINDS = {
    CalibrationMethod.MinMax: _Kind(MinMaxCalibrater, {
        "symmetric": False, "moving_average": False, "averaging_constant": 0.01,
        "max_intermediate_outputs": None, "per_channel": False}),
    CalibrationMethod.Entropy: _Kind(EntropyCalibrater, {
        "num_bins": 128, "num_quantized_bins": 128, "symmetric": False}),
    CalibrationMethod.Percentile: _Kind(PercentileCalibrater, {
        "num_bins": 2048, "percentile": 99.999, "symmetric": True}),
    CalibrationMethod.Distribution: _Kind(DistributionCalibrater, {"num_bins": 2048, "scenario": "same"}),
}


def create_calibrator(model: str | os.PathLike[str], op_types_to_calibrate: Sequence[str] | None = None,
                      augmented_model_path: str | os.PathLike[str] = _AUGMENTED,
                      calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
                      use_external_data_format: bool = False, providers: Sequence[Any] | None = None,
                      extra_options: Mapping[str, Any] | None = None) -> Any:
    """A calibrater for a model's file, ready to collect. `extra_options`: of the calibrater's own parameters;
    others are left out. Raises ValueError for a method there is not, and what the calibrater raises."""
    kind = _KINDS.get(calibrate_method)
    if kind is None:
        raise InvalidValue(f"Unsupported calibration method {calibrate_method}",
                           expected=", ".join(map(str, _KINDS)))
    given = extra_options or {}
    options = {name: given.get(name, default) for name, default in kind.options.items()}
    calibrator: Any = kind.made(model, op_types_to_calibrate, augmented_model_path,
                                use_external_data_format=use_external_data_format, **options)
    calibrator.augment_graph()
    if providers:
        calibrator.execution_providers = providers
    calibrator.create_inference_session()
    return calibrator


def _outline(path: str) -> ModelProto:
    """The model of a file with the types of its tensors, without its large weights."""
    from ..api.peek import proto

    return onnx.shape_inference.infer_shapes(proto(path))


def _extremes(name: str, array: np.ndarray, per_channel: bool) -> Range:
    """The least and the greatest number of a tensor, 0 where it has none; of each index of its second
    dimension where `per_channel`. Raises ValueError where there are NaN."""
    axes = (0, *range(2, array.ndim)) if per_channel and array.ndim > 1 else None
    if not array.size:
        least = greatest = np.zeros(1 if axes is None else array.shape[1], array.dtype)
    else:
        least, greatest = np.min(array, axes).reshape(-1), np.max(array, axes).reshape(-1)
    if np.isnan(least).any():
        raise InvalidValue(f"tensor {name} has NaN, so that it has no range", node=name,
                           found=f"NaN in {np.isnan(array).sum()} of {array.size} values",
                           expected="numbers", cure="mend the data or the model, or leave the tensor out by "
                           "op_types_to_calibrate")
    return least, greatest


def _stacked(name: str, parts: list[np.ndarray]) -> np.ndarray:
    """Ranges of items as one array. Raises ValueError where they are of different lengths."""
    if len({part.shape for part in parts}) > 1:
        raise InvalidValue(f"tensor {name} has no range by channel", node=name,
                           found=f"{' and '.join(sorted({str(part.size) for part in parts}))} channels",
                           expected="as many in each item", cure="leave per_channel out")
    return np.array(parts)


def _collected(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """The content of a file that `save_collected` wrote."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidValue(f"{os.fspath(path)} is no JSON: {error}", cure="give what save_collected wrote"
                           ) from None
    if not isinstance(content, dict) or not {"items", what} <= content.keys():
        raise InvalidValue(f"{os.fspath(path)} does not hold {what}", expected="what save_collected wrote")
    return content
