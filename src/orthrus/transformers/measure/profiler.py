"""`python -m orthrus.transformers.profiler`: where a model's time goes.

In: a model, and what its inputs are like; or a profile that is there already. Out: the profile's file, and
the tables of `profile_result_processor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...shown import tell
from . import inputs
from .arguments import parser, value
from .benchmark_helper import create_onnxruntime_session
from .bert_test_data import find_bert_inputs, generate_test_data, vocabulary
from .profile_result_processor import process_results

_CASES = ("bert", "gpt2", "longformer", "default")
_SEED = 123


def parse_arguments(argv: Sequence[str] | None = None) -> Any:
    """The command's flags."""
    own = {"dummy_inputs": value("--dummy_inputs", choices=_CASES, default="default",
                                 help="what the inputs are like; default: ones of the declared shapes")}
    return parser("Profile a model.", "input", "model", "batch_size", "sequence_length",
                  "past_sequence_length", "global_length", "samples", "threshold", "thread_num",
                  "input_ids_name", "segment_ids_name", "input_mask_name", "use_gpu", "provider",
                  "basic_optimization", "kernel_time_only", "verbose", more=own,
                  sequence_length={"default": 32}, samples={"default": 1000}).parse_args(argv)


def run_profile(onnx_model_path: str, use_gpu: bool, provider: str | None, basic_optimization: bool,
                thread_num: int, all_inputs: Sequence[Mapping[str, Any]]) -> str:
    """Run each feed once, profiled, and answer the path of the profile."""
    session = create_onnxruntime_session(onnx_model_path, use_gpu, provider,
                                         enable_all_optimization=not basic_optimization,
                                         num_threads=thread_num, enable_profiling=True)
    for feed in all_inputs:
        session.run(None, feed)
    return str(session.end_profiling())


def get_dim_from_type_proto(dim: Any) -> int | str | None:
    """A dimension's number or name; None for one without either."""
    return getattr(dim, dim.WhichOneof("value")) if dim.WhichOneof("value") else None


def get_shape_from_type_proto(type_proto: Any) -> list[int | str | None]:
    """The dimensions of a tensor's type."""
    return [get_dim_from_type_proto(dim) for dim in type_proto.tensor_type.shape.dim]


def create_dummy_inputs(onnx_model: Any, batch_size: int, sequence_length: int, samples: int
                        ) -> list[dict[str, np.ndarray]]:
    """Feeds of ones for any model: an open first dimension is the batch, other open ones the sequence."""
    made = {}
    for each in inputs.open_inputs(onnx_model):
        shape = tuple(dim if isinstance(dim, int) else batch_size if i == 0 else sequence_length
                      for i, dim in enumerate(inputs.declared(each)))
        made[each.name] = inputs.ones(shape, inputs.dtype_of(each))
    return [made] * samples


def create_bert_inputs(onnx_model: Any, batch_size: int, sequence_length: int, samples: int,
                       input_ids_name: str | None = None, segment_ids_name: str | None = None,
                       input_mask_name: str | None = None) -> list[dict[str, np.ndarray]]:
    """Feeds of random tokens, without padding, for a BERT."""
    names = find_bert_inputs(onnx_model, input_ids_name, segment_ids_name, input_mask_name)
    return generate_test_data(batch_size, sequence_length, samples, _SEED, False, *names, sequence_length,
                              False, 2, vocabulary(onnx_model, names[0]))


def create_gpt2_inputs(onnx_model: Any, batch_size: int, sequence_length: int, past_sequence_length: int,
                       samples: int) -> list[dict[str, np.ndarray]]:
    """Feeds of ones for a decoder with a cache, whose dimensions have the names of the exporter here, short
    or long: batch_size, seq_len, past_seq_len, total_seq_len."""
    sizes = {"batch_size": batch_size}
    for name, length in (("", sequence_length), ("past_", past_sequence_length),
                         ("total_", past_sequence_length + sequence_length)):
        sizes |= {f"{name}seq_len": length, f"{name}sequence_length": length}
    return [inputs.feed(inputs.open_inputs(onnx_model), sizes)] * samples


def create_longformer_inputs(onnx_model: Any, batch_size: int, sequence_length: int, global_length: int,
                             samples: int) -> list[dict[str, np.ndarray]]:
    """Feeds of ones for a Longformer, the first `global_length` tokens with global attention."""
    def mask(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.broadcast_to(np.arange(shape[-1]) < global_length, shape).astype(dtype)

    sizes = {"batch_size": batch_size, "sequence_length": sequence_length, "seq_len": sequence_length}
    return [inputs.feed(inputs.open_inputs(onnx_model), sizes, {"global": mask})] * samples


def run(args: Any) -> str:
    """Profile what the flags say and answer the path of the profile."""
    import onnx

    model = onnx.load(args.model, load_external_data=False)
    shape = (args.batch_size, args.sequence_length)
    if args.dummy_inputs == "bert":
        feeds = create_bert_inputs(model, *shape, args.samples, args.input_ids_name, args.segment_ids_name,
                                   args.input_mask_name)
    elif args.dummy_inputs == "gpt2":
        feeds = create_gpt2_inputs(model, *shape, args.past_sequence_length, args.samples)
    elif args.dummy_inputs == "longformer":
        feeds = create_longformer_inputs(model, *shape, args.global_length, args.samples)
    else:
        feeds = create_dummy_inputs(model, *shape, args.samples)
    return run_profile(args.model, args.use_gpu, args.provider, args.basic_optimization, args.thread_num,
                       feeds)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    given = parse_arguments(argv)
    if not given.input and not given.model:
        raise SystemExit("one of --model and --input is needed")
    tell("\n".join(process_results(given.input or run(given), given)))


if __name__ == "__main__":
    main()
