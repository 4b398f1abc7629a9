"""Networks of transformers and diffusers at working sizes, side by side with onnxruntime on its own optimized
file.

    python -m benchmarks.transformers [name …] [--folder FOLDER] [--threads 1] [--rounds 7]

Each network, with random weights, is exported by torch's script exporter and optimized by
`onnxruntime.transformers.optimizer`. onnxruntime runs the file of its optimizer and the exported one, Orthrus
the exported one; they take turns in one process. Given per network: milliseconds (lower quartiles),
onnxruntime's better time over ours, the largest difference relative to the largest output, and both
optimizers' seconds.
Needs torch, transformers, diffusers, onnxruntime.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "transformers"))
import export
from export import Network, decoder, encoder, seq2seq_decoder, vision

import transformers as tr

SIZES = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}
WORDS = {"vocab_size": 8000, "max_position_embeddings": 512}
export.BATCH, export.LENGTH, export.PAST = 1, 128, 127


def _gpt2(past: bool) -> Network:
    config = tr.GPT2Config(vocab_size=8000, n_positions=512, n_embd=512, n_layer=6, n_head=8)
    return decoder(tr.GPT2LMHeadModel(config), 8, 64, past, 6, 1)


def _llama(past: bool) -> Network:
    return decoder(tr.LlamaForCausalLM(tr.LlamaConfig(**SIZES, **WORDS)), 8, 64, past, 6, 1)


def _whisper() -> Network:
    model = tr.WhisperModel(tr.WhisperConfig(
        vocab_size=8000, d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6,
        decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536, max_source_positions=500,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1))
    return export.speech(model.encoder, {"input_features": torch.randn(1, 80, 1000)}, {0: "batch"})


def _t5() -> Any:
    return tr.T5Model(tr.T5Config(vocab_size=8000, d_model=512, d_kv=64, d_ff=2048, num_layers=6,
                                  num_heads=8))


def _unet() -> Network:
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=32, in_channels=4, out_channels=4, layers_per_block=2, block_out_channels=(64, 128, 256),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=256,
        attention_head_dim=8)

    def call(m: Any, sample: Any, step: Any, states: Any) -> Any:
        return m(sample, step, states).sample
    feeds = {"sample": torch.randn(1, 4, 32, 32), "timestep": torch.tensor([10], dtype=torch.int64),
             "encoder_hidden_states": torch.randn(1, 77, 256)}
    return Network(export.Wrapped(model, call), feeds, ["out_sample"], {})


NETWORKS: dict[str, tuple[str, Callable[[], Network]]] = {
    "bert": ("bert", lambda: encoder(tr.BertModel(tr.BertConfig(**SIZES, **WORDS)), segments=True)),
    "vit": ("vit", lambda: vision(tr.ViTModel(tr.ViTConfig(**SIZES, image_size=224, patch_size=16)), 224)),
    "gpt2": ("gpt2", lambda: _gpt2(False)),
    "gpt2_token": ("gpt2", lambda: _gpt2(True)),
    "llama": ("gpt2", lambda: _llama(False)),
    "llama_token": ("gpt2", lambda: _llama(True)),
    "t5_encoder": ("t5", lambda: encoder(_t5().encoder)),
    "t5_token": ("t5", lambda: seq2seq_decoder(_t5().decoder, True, 8, 64, 6)),
    "whisper_encoder": ("bart", _whisper),
    "unet": ("unet", _unet),
}
"""Each network with its type, as onnxruntime's optimizer calls it."""


def measured(name: str, folder: Path, threads: int, rounds: int) -> float:
    """One line of the table; onnxruntime's better time over ours."""
    kind, _ = NETWORKS[name]
    path = folder / f"{name}.script.onnx"
    if not path.exists():
        export.export(name, "script", folder, {n: make for n, (_, make) in NETWORKS.items()})
    import onnxruntime
    from onnxruntime.transformers import optimizer

    import orthrus
    from orthrus.transformers import optimizer as own

    seconds, optimized = [], folder / f"{name}.onnxruntime.onnx"
    for each, where in ((own, folder / f"{name}.orthrus.onnx"), (optimizer, optimized)):
        start = time.perf_counter()
        made = each.optimize_model(str(path), model_type=kind, num_heads=0, hidden_size=0, opt_level=0)
        seconds.append(time.perf_counter() - start)
        made.save_model_to_file(str(where))
    with np.load(folder / f"{name}.npz") as kept:
        feeds = {k: v for k, v in kept.items() if not k.startswith("out:")}
    sessions = {"orthrus": _session(orthrus, path, threads), "exported": _session(onnxruntime, path, threads)}
    try:
        sessions["optimized"] = _session(onnxruntime, optimized, threads)
    except Exception as error:
        print(f"{name}: onnxruntime does not run its own file: {str(error)[:100]}", file=sys.stderr)
    answers, times = {}, {}
    asked = {value.name for value in sessions["orthrus"].get_inputs()}
    feeds = {k: v for k, v in feeds.items() if k in asked}
    for at, session in sessions.items():
        answers[at] = session.run(None, feeds)
        times[at] = []
    for _ in range(rounds):
        for at, session in sessions.items():
            end = time.perf_counter() + 0.4
            while time.perf_counter() < end:
                start = time.perf_counter()
                session.run(None, feeds)
                times[at].append(time.perf_counter() - start)
    taken = {at: 1e3 * float(np.quantile(t, 0.25)) for at, t in times.items()}
    far = max(float(np.abs(a - b).max() / max(1e-9, np.abs(b).max()))
              for a, b in zip(answers["orthrus"], answers["exported"], strict=True))
    ratio = min(t for at, t in taken.items() if at != "orthrus") / taken["orthrus"]
    row = (*(f"{taken.get(at, math.nan):.2f}" for at in ("orthrus", "exported", "optimized")), f"{ratio:.2f}",
           f"{far:.0e}", *(f"{s:.2f}" for s in seconds))
    print(f"| {name} | {' | '.join(row)} |", flush=True)
    return ratio


def _session(engine: Any, path: Path, threads: int) -> Any:
    options = engine.SessionOptions()
    options.intra_op_num_threads = threads
    return engine.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=", ".join(NETWORKS))
    parser.add_argument("--folder", type=Path, help="keep the models here")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    print("| network | Orthrus | onnxruntime, exported | onnxruntime, optimized | ratio | difference | "
          "Orthrus optimizes, s | onnxruntime optimizes, s |\n|---|---|---|---|---|---|---|---|")
    ratios = [measured(name, folder, given.threads, given.rounds) for name in given.names or NETWORKS]
    print(f"\ngeometric mean {math.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
