"""Networks on a GPU, side by side with PyTorch on the same GPU: eager, and compiled by torch.compile.

    python -m benchmarks.gpu [name …] [--provider CUDA] [--device cuda] [--types float32,tf32,float16]
                             [--small] [--json rows.json] [--seconds 300] [--mode reduce-overhead]

Arrays stay on the device: sessions are run on bound OrtValues, with graphs where the provider has them
(`unbound_ms` in the JSON file: results in memory of each run's own). Given
per network and type: milliseconds of a run with its end waited for (median), torch's better time over ours,
and the largest difference relative to the largest output of torch's eager float32. `product` is 4096 cubed in
float16, in TFLOP/s; `overhead` one addition of 16 numbers, in microseconds; `llama_1b` decodes a token, ours
with weights of 4 bits, torch's in float16, in tokens a second and GB/s of weights. `--provider CPU --device
cpu --small` tries the program itself. Needs torch, transformers and diffusers.

Each row has a process of its own, so that one which loses the device, or takes longer than `--seconds`, costs
no other; `--jobs` of them make and compile their networks side by side, and take times one after another. The
JSON file holds all that was learned, written after each row: the table's figures, how long the session and
the first run took, nodes that the CPU got and why, the slowest kernels, and errors whole.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

import orthrus as ort

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "transformers"))
import export
from export import Network, Wrapped, decoder, encoder, vision

import transformers as tr

TYPES = ("float32", "tf32", "float16")
SECONDS = 1.0
WORDS = {"vocab_size": 8000, "max_position_embeddings": 2048}


class Scale:
    """Sizes of what is measured; `small` tries the program; `turns`: a file to lock while times are taken."""

    small = False
    turns = ""


def _sized(batch: int, length: int, past: int = 0) -> None:
    export.BATCH, export.LENGTH, export.PAST = batch, length, past


def _resnet(batch: int) -> Network:
    _sized(batch, 1)
    config = tr.ResNetConfig(**({"depths": [1, 1, 1, 1]} if Scale.small else {}))
    return vision(tr.ResNetModel(config), 64 if Scale.small else 224, "pooler_output")


def _bert(length: int, batch: int) -> Network:
    _sized(batch, length)
    return encoder(tr.BertModel(tr.BertConfig(num_hidden_layers=2 if Scale.small else 12)))


def _vit() -> Network:
    _sized(1, 1)
    return vision(tr.ViTModel(tr.ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536,
                                           num_hidden_layers=2 if Scale.small else 12)), 224)


def _gpt2() -> Network:
    layers = 2 if Scale.small else 12
    _sized(1, 1, 127)
    return decoder(tr.GPT2LMHeadModel(tr.GPT2Config(n_layer=layers)), 12, 64, True, layers, 1)


def _llama() -> Network:
    layers = 1 if Scale.small else 16
    _sized(1, 1, 511)
    config = tr.LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers,
                            num_attention_heads=32, num_key_value_heads=32, **WORDS)
    return decoder(tr.LlamaForCausalLM(config), 32, 64, True, layers, 1)


def _unet() -> Network:
    import diffusers

    wide = (32, 64) if Scale.small else (320, 640, 1280, 1280)
    cross = 64 if Scale.small else 768
    down = ("CrossAttnDownBlock2D",) * (len(wide) - 1) + ("DownBlock2D",)
    up = ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (len(wide) - 1)
    model = diffusers.UNet2DConditionModel(
        sample_size=64, in_channels=4, out_channels=4, layers_per_block=2, block_out_channels=wide,
        down_block_types=down, up_block_types=up, cross_attention_dim=cross, attention_head_dim=8)

    def call(m: Any, sample: Any, step: Any, states: Any) -> Any:
        return m(sample, step, states).sample
    size = 16 if Scale.small else 64
    feeds = {"sample": torch.randn(2, 4, size, size), "timestep": torch.tensor([10], dtype=torch.int64),
             "encoder_hidden_states": torch.randn(2, 77, cross)}
    return Network(Wrapped(model, call), feeds, ["out_sample"], {})


class _Product(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


class _Sum(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


def _pair(module: nn.Module, *shape: int) -> Network:
    return Network(module, {name: torch.randn(*shape) for name in "ab"}, ["c"], {})


NETWORKS: dict[str, Callable[[], Network]] = {
    **{f"resnet50_{batch}": lambda batch=batch: _resnet(batch) for batch in (1, 8, 32)},
    **{f"bert_base_{length}x{batch}": lambda length=length, batch=batch: _bert(length, batch)
       for length in (128, 384) for batch in (1, 8)},
    "vit_small": _vit, "gpt2_decode": _gpt2, "unet": _unet, "llama_1b": _llama,
    "product": lambda: _pair(_Product(), *(2 * [256 if Scale.small else 4096])),
    "overhead": lambda: _pair(_Sum(), 16),
}


ONLY = {"llama_1b": ["4 bits"], "product": ["float16"], "overhead": ["float32"]}
"""Types of networks that do not come in all."""


def saved(net: Network, path: Path, kind: str) -> None:
    """The network as an ONNX file: in float16 where `kind` says so, or with weights of 4 bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net.module.eval(), tuple(net.feeds.values()), str(path),
                          input_names=list(net.feeds), output_names=net.outputs, opset_version=17,
                          dynamo=False)
    if kind == "float32" or kind == "tf32":
        return
    from orthrus.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(onnx.load(path), keep_io_types=False)
    if kind == "4 bits":
        from orthrus.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(model, block_size=128, is_symmetric=True)
        quantizer.process()
        model = quantizer.model.model
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """While no other row takes times."""
    with open(Scale.turns or os.devnull, "rb") as file:
        if Scale.turns:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def timed(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Median seconds of a call whose end is waited for, warm."""
    with alone():
        return _timed(call, wait)


def _timed(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    times, end = list[float](), time.perf_counter() + (0.2 if Scale.small else SECONDS)
    for _ in range(3):
        call()
    wait()
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def kernels(run: Callable[[], Any]) -> list[dict[str, Any]]:
    """The slowest kernels of a run, each timed by itself: what it is, its grid, microseconds."""
    from orthrus.lowering.gpu.graphs import unrecorded
    from orthrus.lowering.gpu.part import GpuPart

    found, launch = list[dict[str, Any]](), GpuPart._launch

    def timed(part: GpuPart, it: Any, packed: bytes) -> None:
        spent = part.device.timed(lambda: launch(part, it, packed))
        steps = (step for plan in part.plans.values() if plan is not None
                 for step, each in zip(plan.steps, plan.launches, strict=True) if each is it)
        step = next(steps)
        found.append({"kernel": step.spec.template, "node": step.node.label, "blocks": it.blocks,
                      "threads": it.threads, "tile": str(dict(step.spec.params).get("tile", "")),
                      "us": round(1e3 * spent, 2)})
    GpuPart._launch = timed  # type: ignore[method-assign]
    try:
        with unrecorded(), alone():
            run()
    finally:
        GpuPart._launch = launch  # type: ignore[method-assign]
    return sorted(found, key=lambda each: -each["us"])[:25]


def ours(path: Path, feeds: dict[str, np.ndarray], provider: str, kind: str, device: str,
         learned: dict[str, Any]) -> tuple[float, list[np.ndarray]]:
    """Seconds of a run on bound arrays of the device, and what it answers. What else there is to know goes to
    `learned`."""
    options: dict[str, Any] = {}
    if provider == "CUDA":
        options = {"enable_cuda_graph": 1, "use_tf32": int(kind == "tf32")}
    elif provider == "ROCM":
        options = {"enable_hip_graph": 1}
    asked = {f"{provider}ExecutionProvider": options, "CPUExecutionProvider": {}}
    start = time.perf_counter()
    session = ort.InferenceSession(str(path), providers=list(asked.items()), enable_fallback=0)
    learned["create_s"] = time.perf_counter() - start
    told = session.explain()
    learned["on_cpu"] = [f"{e.op_type} {e.node}: {e.refusals[0].reason if e.refusals else ''}"
                         for e in told.nodes if e.provider == "CPUExecutionProvider"][:40]
    binding = session.io_binding()
    inputs = {value.name for value in session.get_inputs()}
    for name, array in feeds.items():
        if name in inputs:
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, device, 0))
    for value in session.get_outputs():
        binding.bind_output(value.name, device)
    start = time.perf_counter()
    session.run_with_iobinding(binding)
    answers = binding.copy_outputs_to_cpu()
    learned["first_run_s"] = time.perf_counter() - start
    learned["unbound_ms"] = 1e3 * timed(lambda: session.run_with_iobinding(binding),
                                        binding.synchronize_outputs)
    for value, array in zip(session.get_outputs(), answers, strict=True):
        binding.bind_ortvalue_output(value.name, ort.OrtValue.ortvalue_from_numpy(array, device, 0))
    if provider != "CPU":
        learned["kernels"] = kernels(lambda: session.run_with_iobinding(binding))
    return timed(lambda: session.run_with_iobinding(binding), binding.synchronize_outputs), answers


def theirs(net: Network, kind: str, device: str, mode: str = "") -> tuple[float, list[np.ndarray]]:
    """The same by PyTorch, compiled in the `mode` that is given."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = kind == "tf32"
    half = kind in ("float16", "4 bits")
    module = net.module.eval().to(device, torch.float16 if half else torch.float32)
    feeds = [t.to(device, torch.float16 if half and t.is_floating_point() else t.dtype)
             for t in net.feeds.values()]
    call = torch.compile(module, mode=mode) if mode else module
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    with torch.inference_mode():
        made = call(*feeds)
        answers = [t.float().cpu().numpy() for t in (made if isinstance(made, tuple) else (made,))]
        return timed(lambda: call(*feeds), wait), answers


def measured(name: str, kind: str, given: argparse.Namespace, folder: Path, learned: dict[str, Any]) -> None:
    """A row, whose figures go to `learned` as they are found."""
    torch.manual_seed(0)
    net = NETWORKS[name]()
    path = folder / f"{name}.{kind.replace(' ', '')}.onnx"
    saved(net, path, kind)
    half = kind in ("float16", "4 bits")
    feeds = {n: t.numpy().astype(np.float16) if half and t.is_floating_point() else t.numpy()
             for n, t in net.feeds.items()}
    seconds, answers = ours(path, feeds, given.provider, kind, given.device, learned)
    learned["ms"] = 1e3 * seconds
    if name == "product":
        learned["more"] = f"{2e-12 * feeds['a'].shape[0] ** 3 / seconds:.1f} TFLOP/s"
    elif name == "overhead":
        learned["more"] = f"{1e6 * seconds:.1f} us"
    elif name == "llama_1b":
        weights = sum(p.numel() for p in net.module.parameters()) * (0.5 + 2 / 128 if kind == "4 bits" else 2)
        learned["more"] = f"{1 / seconds:.1f} tokens/s, {1e-9 * weights / seconds:.0f} GB/s"
    eager, wanted = theirs(net, kind, given.device)
    learned["eager_ms"] = 1e3 * eager
    learned["difference"] = max(float(np.abs(a.astype(np.float32) - b).max() / max(1e-9, np.abs(b).max()))
              for a, b in zip(answers, wanted, strict=False))
    learned["compiled_ms"] = 1e3 * theirs(net, kind, given.device, given.mode)[0]


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    times = [row.get(key) for key in ("ms", "eager_ms", "compiled_ms")]
    theirs = [time for time in times[1:] if time is not None]
    ratio = f"{min(theirs) / times[0]:.2f}" if theirs and times[0] else ""
    far = f"{row['difference']:.0e}" if "difference" in row else ""
    why = row["error"].strip().splitlines()[-1][:200] if "error" in row else ""
    cells = (row["name"], row["kind"], *("" if t is None else f"{t:.3f}" for t in times), ratio, far,
             " ".join(filter(None, (row.get("more"), why))))
    return f"| {' | '.join(cells)} |"


def by_itself(name: str, kind: str, given: argparse.Namespace) -> dict[str, Any]:
    """A row, made by a process of its own."""
    small = ["--small"] if given.small else []
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "row.json"
        command = [sys.executable, "-m", "benchmarks.gpu", name, "--row", kind, "--json", str(told),
                   "--provider", given.provider, "--device", given.device, "--mode", given.mode,
                   "--turns", given.turns, *small]
        row: dict[str, Any] = {"name": name, "kind": kind}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=given.seconds)
            failed = f"{done.stderr[-4000:]}\nthe process ended with {done.returncode}"
        except subprocess.TimeoutExpired:
            failed = f"took longer than {given.seconds} seconds"
        row.update(json.loads(told.read_text()) if told.exists() else {"error": failed})
        if failed.startswith("took"):
            row.setdefault("error", failed)
        return row


def one_row(name: str, kind: str, given: argparse.Namespace) -> None:
    """What such a process does: the file has what was learned, also where it is stopped."""
    row: dict[str, Any] = {"name": name, "kind": kind}

    class Kept(dict[str, Any]):
        """Written whenever something is learned."""

        def __setitem__(self, key: str, value: Any) -> None:
            super().__setitem__(key, value)
            written(given.json, {**row, **self})
    learned = Kept()
    try:
        with tempfile.TemporaryDirectory() as folder:
            measured(name, kind, given, Path(folder), learned)
    except Exception:
        learned["error"] = traceback.format_exc()


def written(path: str, what: Any) -> None:
    """A JSON file, whole at any time."""
    beside = Path(f"{path}.part")
    beside.write_text(json.dumps(what, indent=1))
    os.replace(beside, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=", ".join(NETWORKS))
    parser.add_argument("--provider", default="CUDA")
    parser.add_argument("--device", default="cuda", help="where torch and the arrays are; ROCm's is cuda too")
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--small", action="store_true", help="small networks, to try the program")
    parser.add_argument("--json", help="file for all that is learned")
    parser.add_argument("--seconds", type=float, default=300, help="a row may take, at most")
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile; this one has graphs too")
    parser.add_argument("--jobs", type=int, default=1, help="rows that are prepared side by side")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--turns", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    Scale.small, Scale.turns = given.small, given.turns
    if given.row:
        one_row(given.names[0], given.row, given)
        return
    print("| network | type | Orthrus, ms | torch, eager | torch.compile | ratio | difference | |\n"
          "|---|---|---|---|---|---|---|---|")
    rows = list[dict[str, Any]]()
    wanted = [(name, kind) for name in given.names or NETWORKS
              for kind in ONLY.get(name, given.types.split(","))]
    with tempfile.NamedTemporaryFile() as turns, ThreadPoolExecutor(given.jobs) as pool:
        given.turns = turns.name if given.jobs > 1 else ""
        for row in as_completed(pool.submit(by_itself, *each, given) for each in wanted):
            rows.append(row.result())
            print(line(rows[-1]), flush=True)
            if given.json:
                written(given.json, rows)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main()
