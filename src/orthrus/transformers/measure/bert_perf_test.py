"""`python -m orthrus.transformers.bert_perf_test`: how fast a BERT runs, by batch and number of threads.

In: a model, batches, a length. Out: a table beside the model, a row per measurement, the fastest first; each
is measured in a process of its own, so that none runs on what another left behind. With
`--versus_onnxruntime` the same runs follow on onnxruntime, where it is installed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from datetime import datetime
from multiprocessing import get_context
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...records import dataclass
from ...shown import tell
from .arguments import BERT, parser, switch, value
from .benchmark_helper import providers_of, timed
from .bert_test_data import find_bert_inputs, generate_test_data, vocabulary
from .machine_info import cores
from .results import write_rows

_PERCENTILES = (50, 75, 90, 95, 99)
_LEVELS = {0: "ORT_DISABLE_ALL", 1: "ORT_ENABLE_BASIC", 2: "ORT_ENABLE_EXTENDED", 3: "ORT_ENABLE_LAYOUT",
           99: "ORT_ENABLE_ALL"}
_PEER = "onnxruntime"


@dataclass
class TestSetting:
    """The runs. `test_cases`: different inputs; `test_times`: runs of each."""

    __test__ = False

    batch_size: int
    sequence_length: int
    test_cases: int
    test_times: int
    use_gpu: bool
    use_io_binding: bool
    provider: str
    intra_op_num_threads: int
    seed: int
    verbose: bool
    log_severity: int
    average_sequence_length: int
    random_sequence_length: bool
    engine: str = "orthrus"


@dataclass
class ModelSetting:
    """The model and its inputs. The results of tuning are read and written by no provider here."""

    model_path: str
    input_ids_name: str
    segment_ids_name: str
    input_mask_name: str
    opt_level: int
    input_tuning_results: str | None
    output_tuning_results: str | None
    mask_type: int


def _engine(name: str) -> Any:
    if name == _PEER:
        import onnxruntime

        return onnxruntime
    import orthrus

    return orthrus


def create_session(model_path: str, use_gpu: bool, provider: str | None, intra_op_num_threads: int | None,
                   graph_optimization_level: Any = None, log_severity: int = 2,
                   tuning_results_path: str | None = None, *, engine: str = "orthrus") -> Any:
    """A session. `graph_optimization_level`: a number of the command line, or a member of
    GraphOptimizationLevel; None: all. `engine`: onnxruntime to make it there."""
    if tuning_results_path is not None:
        raise InvalidArgument("No provider here is tuned by such a file", found=tuning_results_path,
                              expected="None", cure="leave out --input_tuning_results")
    runtime = _engine(engine)
    options = runtime.SessionOptions()
    options.log_severity_level = log_severity
    if intra_op_num_threads:
        options.intra_op_num_threads = intra_op_num_threads
    options.graph_optimization_level = _level(runtime, graph_optimization_level)
    return runtime.InferenceSession(model_path, options, providers=providers_of(use_gpu, provider))


def _level(runtime: Any, asked: Any) -> Any:
    if asked is None or (isinstance(asked, int) and asked in _LEVELS):
        return getattr(runtime.GraphOptimizationLevel, _LEVELS[99 if asked is None else asked])
    return asked


def numpy_type(torch_type: Any) -> Any:
    """numpy's type of a type of torch, which may be an array's own."""
    if not str(torch_type).startswith("torch."):
        return np.dtype(torch_type)
    from ..export.io_binding_helper import TypeHelper

    return TypeHelper.torch_type_to_numpy_type(torch_type)


def create_input_output_tensors(inputs: Mapping[str, Any], outputs: Mapping[str, Any], device: Any
                                ) -> tuple[dict[str, Any], dict[str, Any]]:
    """torch's tensors on a device, from feeds and from outputs as they came."""
    import torch

    return tuple({name: torch.from_numpy(np.ascontiguousarray(array)).to(device)  # type: ignore[return-value]
                  for name, array in arrays.items()} for arrays in (inputs, outputs))


def create_io_binding(sess: Any, input_tensors: Mapping[str, Any], output_tensors: Mapping[str, Any]) -> Any:
    """A binding of a session to contiguous tensors: nothing is copied in or out."""
    binding = sess.io_binding()
    for bind, tensors in ((binding.bind_input, input_tensors), (binding.bind_output, output_tensors)):
        for name, tensor in tensors.items():
            bind(name, tensor.device.type, 0, numpy_type(tensor.dtype), list(tensor.shape), tensor.data_ptr())
    return binding


def onnxruntime_inference_with_io_binding(session: Any, all_inputs: Sequence[Mapping[str, Any]],
                                          output_names: Sequence[str], test_setting: TestSetting
                                          ) -> tuple[list[list[Any]], list[float]]:
    """Outputs and seconds of a run per feed, inputs and outputs bound beforehand."""
    results, times = [], []
    for feed in all_inputs:
        outputs = dict(zip(output_names, session.run(output_names, feed), strict=True))
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        held = {name: np.empty_like(array) for name, array in outputs.items()}
        for name, array in held.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        times += timed(lambda bound=binding: session.run_with_iobinding(bound), 1, 1)  # type: ignore[misc]
        results.append(list(held.values()))
    return results, times


def onnxruntime_inference(session: Any, all_inputs: Sequence[Mapping[str, Any]], output_names: Sequence[str]
                          ) -> tuple[list[list[Any]], list[float]]:
    """Outputs and seconds of a run per feed."""
    if all_inputs:
        session.run(output_names, random.choice(all_inputs))
    results: list[list[Any]] = []
    times: list[float] = []
    for feed in all_inputs:
        times += timed(lambda feed=feed: results.append(session.run(output_names, feed)), 1)  # type: ignore[misc]
    return results, times


def to_string(model_path: str, session: Any, test_setting: TestSetting) -> str:
    """What was measured: `name=value` joined by commas, in the order of the table's columns."""
    options = session.get_session_options()
    facts: dict[str, Any] = {
        "model": os.path.basename(model_path),
        "graph_optimization_level": options.graph_optimization_level.name.removeprefix("ORT_"),
        "intra_op_num_threads": options.intra_op_num_threads}
    skipped = ("provider", "intra_op_num_threads", "seed", "verbose", "log_severity")
    facts |= {name: found for name, found in asdict(test_setting).items() if name not in skipped}
    if test_setting.engine != _PEER:
        del facts["engine"]
    return ",".join(f"{name}={found}" for name, found in facts.items())


def run_one_test(model_setting: ModelSetting, test_setting: TestSetting, perf_results: dict[str, Any],
                 all_inputs: Sequence[Mapping[str, Any]], intra_op_num_threads: int | None) -> None:
    """Measure in this process: under what `to_string` says, `perf_results` gets milliseconds, the mean first,
    percentiles next, and rows per second last."""
    if model_setting.output_tuning_results is not None:
        raise InvalidArgument("No provider here has results of tuning", found="output_tuning_results",
                              expected="None", cure="leave out --output_tuning_results")
    session = create_session(model_setting.model_path, test_setting.use_gpu, test_setting.provider,
                             intra_op_num_threads, model_setting.opt_level, test_setting.log_severity,
                             model_setting.input_tuning_results, engine=test_setting.engine)
    names = [each.name for each in session.get_outputs()]
    key = to_string(model_setting.model_path, session, test_setting)
    if test_setting.verbose:
        tell(f"Running test: {key}")
    seconds: list[float] = []
    for turn in range(test_setting.test_times):
        if test_setting.use_io_binding:
            _, spent = onnxruntime_inference_with_io_binding(session, all_inputs, names, test_setting)
        else:
            _, spent = onnxruntime_inference(session, all_inputs, names)
        seconds += spent
        if turn == 0 and test_setting.test_times > 1:
            seconds = []
    times = 1e3 * np.asarray(seconds)
    mean = float(times.mean())
    rate = test_setting.batch_size * 1e3 / mean
    perf_results[key] = (mean, *(float(np.percentile(times, p)) for p in _PERCENTILES), rate)
    tell(f"Average latency = {mean:.2f} ms, Throughput = {rate:.2f} QPS")


def _measured(*given: Any) -> dict[str, Any]:
    model, setting, inputs, threads = given
    found: dict[str, Any] = {}
    run_one_test(model, setting, found, inputs, threads)
    return found


def launch_test(model_setting: ModelSetting, test_setting: TestSetting, perf_results: dict[str, Any],
                all_inputs: Sequence[Mapping[str, Any]], intra_op_num_threads: int | None) -> None:
    """Measure in a process of its own. Raises what it raised."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        perf_results.update(pool.submit(_measured, model_setting, test_setting, list(all_inputs),
                                        intra_op_num_threads).result())


def run_perf_tests(model_setting: ModelSetting, test_setting: TestSetting, perf_results: dict[str, Any],
                   all_inputs: Sequence[Mapping[str, Any]]) -> None:
    """Measure with the threads that are asked for, else with several numbers of them: one, each power of two
    and the machine's cores."""
    asked = test_setting.intra_op_num_threads
    for threads in [asked] if asked is not None else sorted(_candidates()):
        launch_test(model_setting, test_setting, perf_results, all_inputs, threads)


def _candidates() -> Iterator[int]:
    logical, power = os.cpu_count() or 1, 1
    while power <= logical:
        yield power
        power *= 2
    if cores() not in (1 << i for i in range(logical.bit_length())):
        yield cores()


def run_performance(model_setting: ModelSetting, test_setting: TestSetting, perf_results: dict[str, Any]
                    ) -> None:
    """Make the inputs of one batch size and measure."""
    import onnx

    proto = onnx.load(model_setting.model_path, load_external_data=False)
    names = find_bert_inputs(proto, model_setting.input_ids_name, model_setting.segment_ids_name,
                             model_setting.input_mask_name)
    if test_setting.verbose:
        tell(f"Generating {test_setting.test_cases} samples for batch_size={test_setting.batch_size} "
             f"sequence_length={test_setting.sequence_length}")
    inputs = generate_test_data(test_setting.batch_size, test_setting.sequence_length,
                                test_setting.test_cases, test_setting.seed, test_setting.verbose, *names,
                                test_setting.average_sequence_length, test_setting.random_sequence_length,
                                model_setting.mask_type, vocabulary(proto, names[0]))
    run_perf_tests(model_setting, test_setting, perf_results, inputs)


def parse_arguments() -> Any:
    """The command's flags."""
    own = {"input_tuning_results": value("--input_tuning_results", help="results of tuning to read"),
           "output_tuning_results": value("--output_tuning_results", help="where to write them"),
           "versus_onnxruntime": switch("--versus_onnxruntime", help="run the same on onnxruntime")}
    return parser("Measure a BERT on this runtime.", "model", "batch_size", "sequence_length", "samples",
                  "test_times", "opt_level", "seed", "verbose", "log_severity", "use_gpu", "use_io_binding",
                  "provider", "intra_op_num_threads", *BERT, more=own, model={"required": True},
                  batch_size={"nargs": "+", "required": True, "default": None},
                  sequence_length={"required": True}, samples={"default": 10}).parse_args()


def main() -> None:
    """The command."""
    given = parse_arguments()
    sizes = sorted(set(given.batch_size))
    if not all(1 <= size <= 128 for size in sizes):
        raise SystemExit("batch_size not in range [1, 128]")
    times = given.test_times or max(1, 1000 // given.samples)
    average = given.average_sequence_length if given.average_sequence_length > 0 else given.sequence_length
    model = ModelSetting(given.model, given.input_ids_name, given.segment_ids_name, given.input_mask_name,
                         given.opt_level, given.input_tuning_results, given.output_tuning_results,
                         given.mask_type)
    results: dict[str, Any] = {}
    for size in sizes:
        setting = TestSetting(size, given.sequence_length, given.samples, times, given.use_gpu,
                              given.use_io_binding, given.provider, given.intra_op_num_threads, given.seed,
                              given.verbose, given.log_severity, average, given.random_sequence_length)
        for engine in ("orthrus", _PEER) if given.versus_onnxruntime else ("orthrus",):
            run_performance(model, replace(setting, engine=engine), results)
    write_summary(given, sizes, results)


def write_summary(given: Any, sizes: Sequence[int], results: Mapping[str, Sequence[float]]) -> str:
    """Write the table beside the model and answer its path."""
    rows = []
    heads = ("Latency(ms)", *(f"Latency_P{p}" for p in _PERCENTILES), "Throughput(QPS)")
    for key, figures in sorted(results.items(), key=lambda item: item[1][0]):
        facts = dict(part.split("=", 1) for part in key.split(","))
        rows.append({**dict(zip(heads, (f"{f:.2f}" for f in figures), strict=True)), **facts})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    if "engine" in columns:
        rows = [{"engine": "orthrus", **row} for row in rows]
    path = os.path.join(os.path.dirname(given.model) or ".",
                        f"perf_results_{'GPU' if given.use_gpu else 'CPU'}_B{'-'.join(map(str, sizes))}"
                        f"_S{given.sequence_length}_{stamp}.txt")
    write_rows(path, columns, rows, delimiter="\t")
    tell(f"Test summary is saved to {path}")
    return path


if __name__ == "__main__":
    main()
