"""The flags of the commands in this package: each is said once, a command picks by name.

In: names of flags, and what a command changes of them. Out: an `argparse` parser.
"""

from __future__ import annotations

import argparse
from typing import Any

Flag = tuple[tuple[str, ...], dict[str, Any]]


def _switch(*names: str, help: str) -> Flag:
    return names, {"action": "store_true", "help": help}


def _value(*names: str, help: str, type: Any = str, **more: Any) -> Flag:
    return names, {"type": type, "help": help, **more}


def _list(*names: str, help: str, type: Any = str, **more: Any) -> Flag:
    return _value(*names, help=help, type=type, nargs="+", **more)


FLAGS: dict[str, Flag] = {
    "model": _value("-m", "--model", help="path of the ONNX model"),
    "input": _value("-i", "--input", help="profile to read"),
    "output_dir": _value("--output_dir", help="folder to write to"),
    "batch_size": _value("-b", "--batch_size", type=int, default=1, help="rows of the input"),
    "sequence_length": _value("-s", "--sequence_length", type=int, help="longest sequence of the input"),
    "past_sequence_length": _value("--past_sequence_length", type=int, default=1,
                                   help="tokens that are in the cache already"),
    "global_length": _value("--global_length", type=int, default=1, help="tokens with global attention"),
    "average_sequence_length": _value("-a", "--average_sequence_length", type=int, default=-1,
                                      help="mean length without padding (default: no padding)"),
    "random_sequence_length": _switch("-r", "--random_sequence_length",
                                      help="draw the lengths, evenly around the mean"),
    "mask_type": _value("--mask_type", type=int, default=2, help="1: length of each row; 2: a row of ones "
                        "and zeros; 3: lengths, and where each row begins among queries and among keys"),
    "input_ids_name": _value("--input_ids_name", help="input of the tokens"),
    "segment_ids_name": _value("--segment_ids_name", help="input of the segments"),
    "input_mask_name": _value("--input_mask_name", help="input of the attention's mask"),
    "samples": _value("--samples", type=int, default=1, help="how many different inputs"),
    "seed": _value("--seed", type=int, default=3, help="seed of the random inputs"),
    "test_times": _value("-t", "--test_times", type=int, default=0, help="runs of each input"),
    "threshold": _value("--threshold", type=float, default=0.01,
                        help="share of the time from which a node is listed as expensive"),
    "rtol": _value("--rtol", type=float, default=1e-3, help="relative tolerance"),
    "atol": _value("--atol", type=float, default=1e-4, help="absolute tolerance"),
    "thread_num": _value("--thread_num", type=int, default=-1, help="threads of a run"),
    "intra_op_num_threads": _value("-n", "--intra_op_num_threads", type=int,
                                   help="threads of a run (default: several are tried)"),
    "opt_level": _value("--opt_level", type=int, default=99, choices=(0, 1, 2, 3, 99),
                        help="graph optimizations: 0 none, 1 basic, 2 extended, 3 layout, 99 all"),
    "basic_optimization": _switch("--basic_optimization", help="only basic graph optimizations"),
    "log_severity": _value("--log_severity", type=int, default=2, choices=range(5),
                           help="0 verbose, 1 info, 2 warning, 3 error, 4 fatal"),
    "provider": _value("--provider", help="execution provider"),
    "use_gpu": _switch("-g", "--use_gpu", help="run on a GPU"),
    "use_io_binding": _switch("--use_io_binding", help="bind inputs and outputs before the runs"),
    "kernel_time_only": _switch("--kernel_time_only", help="only the time in kernels"),
    "verbose": _switch("-v", "--verbose", help="say more"),
}
BERT = ("input_ids_name", "segment_ids_name", "input_mask_name", "average_sequence_length",
        "random_sequence_length", "mask_type")
"""Flags of what makes inputs for a BERT."""


def parser(description: str, *names: str, more: dict[str, Flag] | None = None,
           **changes: dict[str, Any]) -> argparse.ArgumentParser:
    """A parser with the flags of these names, from `FLAGS` or `more`; `changes` gives a flag other options
    than the table, for instance `model={"required": True}`."""
    table = {**FLAGS, **(more or {})}
    made = argparse.ArgumentParser(description=description)
    for name in (*names, *(more or {})):
        flags, options = table[name]
        made.add_argument(*flags, **{**options, **changes.get(name, {})})
    return made


switch, value, values = _switch, _value, _list
"""To write flags of a single command."""
