"""`python -m orthrus.transformers.compare_bert_results`: does an optimized BERT say what the original says?

In: two models with the same inputs. Out: how many random inputs gave results outside the tolerance, and the
largest difference. The original runs without optimizations, so that it is what the file says.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...shown import tell
from .arguments import parser, value
from .bert_perf_test import create_session, onnxruntime_inference
from .bert_test_data import find_bert_inputs, generate_test_data, output_test_data, vocabulary


def run_model(model_path: str, all_inputs: Sequence[Mapping[str, Any]], use_gpu: bool,
              disable_optimization: bool) -> tuple[list[list[Any]], list[float], list[str]]:
    """Outputs per feed, seconds per run, and the outputs' names."""
    session = create_session(model_path, use_gpu, None, None, 0 if disable_optimization else None)
    names = [each.name for each in session.get_outputs()]
    return (*onnxruntime_inference(session, all_inputs, names), names)


def compare(baseline_results: Sequence[Sequence[Any]], treatment_results: Sequence[Sequence[Any]],
            verbose: bool, rtol: float = 1e-1, atol: float = 1e-3) -> tuple[float, bool]:
    """The largest absolute difference, and whether all are close."""
    most, wrong = 0.0, 0
    for case, (first, second) in enumerate(zip(baseline_results, treatment_results, strict=True)):
        close = True
        for i, (x, y) in enumerate(zip(first, second, strict=True)):
            x, y = np.asarray(x), np.asarray(y)
            if x.shape != y.shape:
                raise InvalidArgument("The models' outputs differ in shape", node=f"output {i}",
                                      found=y.shape, expected=x.shape, cure="compare models of one network")
            with np.errstate(invalid="ignore"):
                gaps = np.abs(x.astype(np.float64) - y.astype(np.float64))
            gap = float(np.max(np.where(x == y, 0.0, np.where(np.isnan(gaps), np.inf, gaps)), initial=0.0))
            most = max(most, gap)
            if not np.allclose(x, y, rtol=rtol, atol=atol, equal_nan=True):
                close = False
                if verbose:
                    tell(f"case {case}, output {i}: differs by up to {gap:.3g}")
        wrong += not close
    if wrong:
        tell(f"{wrong} out of {len(baseline_results)} results NOT passed for thresholds "
             f"(rtol={rtol}, atol={atol}).")
    else:
        tell(f"100% passed for {len(baseline_results)} random inputs given thresholds "
             f"(rtol={rtol}, atol={atol}).")
    tell(f"maximum absolute difference={most}")
    return most, not wrong


def run_test(baseline_model: str, optimized_model: str, output_dir: str | None, batch_size: int,
             sequence_length: int, use_gpu: bool, test_cases: int, seed: int, verbose: bool, rtol: float,
             atol: float, input_ids_name: str | None, segment_ids_name: str | None,
             input_mask_name: str | None, mask_type: int, dictionary_size: int = 1024
             ) -> tuple[float, bool]:
    """Feed both models `test_cases` random inputs of random lengths and `compare`. `output_dir`: where to
    keep the inputs, None for nowhere."""
    import onnx

    proto = onnx.load(baseline_model, load_external_data=False)
    names = find_bert_inputs(proto, input_ids_name, segment_ids_name, input_mask_name)
    cases = generate_test_data(batch_size, sequence_length, test_cases, seed, verbose, *names,
                               sequence_length // 2 or 1, True, mask_type,
                               vocabulary(proto, names[0], dictionary_size))
    first, times, _ = run_model(baseline_model, cases, use_gpu, disable_optimization=True)
    if verbose:
        tell(f"baseline average latency (all optimizations disabled): {1e3 * statistics.mean(times)} ms")
    for i, case in enumerate(cases if output_dir else ()):
        output_test_data(str(Path(output_dir or ".") / f"test_data_set_{i}"), case)
    second, times, _ = run_model(optimized_model, cases, use_gpu, disable_optimization=False)
    if verbose:
        tell(f"treatment average latency: {1e3 * statistics.mean(times)} ms")
    return compare(first, second, verbose, rtol, atol)


def parse_arguments() -> Any:
    """The command's flags."""
    own = {"baseline_model": value("--baseline_model", required=True, help="the original"),
           "optimized_model": value("--optimized_model", required=True, help="the optimized model"),
           "input_ids": value("--input_ids", help="input of the tokens"),
           "segment_ids": value("--segment_ids", help="input of the segments"),
           "input_mask": value("--input_mask", help="input of the attention's mask")}
    return parser("Compare a BERT with its optimized form on random inputs.", "output_dir", "batch_size",
                  "sequence_length", "rtol", "atol", "samples", "seed", "use_gpu", "verbose", "mask_type",
                  more=own, batch_size={"required": True}, sequence_length={"required": True},
                  samples={"default": 100}).parse_args()


def main() -> None:
    """The command."""
    given = parse_arguments()
    run_test(given.baseline_model, given.optimized_model, given.output_dir, given.batch_size,
             given.sequence_length, given.use_gpu, given.samples, given.seed, given.verbose, given.rtol,
             given.atol, given.input_ids, given.segment_ids, given.input_mask, given.mask_type)


if __name__ == "__main__":
    main()
