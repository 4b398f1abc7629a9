"""Tokens a second of an exported decoder, by the same loop on this engine and on onnxruntime, in turns.

    python -m benchmarks.transformers gpt2_token llama_token --folder FOLDER
    python -m benchmarks.generation FOLDER/llama_token.script.onnx [--bits 4] [--new 64] [--threads 1]

`--bits 4` quantizes the weights of products first, in blocks of 32, for accuracy level 4. Needs onnxruntime.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import onnx

import orthrus
from orthrus.generation import Decoder, generate

ROUNDS = 5


def quantized(path: Path, bits: int) -> Path:
    """The model with weights of few bits, in a file of its own."""
    from orthrus.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(onnx.load(path), bits=bits, block_size=32, is_symmetric=True,
                                accuracy_level=4)
    made.process()
    target = Path(tempfile.mkdtemp()) / f"{path.stem}.{bits}.onnx"
    made.model.save_model_to_file(str(target))
    return target


def decoder(engine: Any, path: Path, threads: int) -> Decoder:
    options = engine.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return Decoder(engine.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]))


def main() -> None:
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--bits", type=int, choices=(4, 8))
    parser.add_argument("--new", type=int, default=64, help="tokens to write")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    prompt = list(range(2, 34))
    print("| model | Orthrus, tokens/s | onnxruntime | ratio | outside of run | same tokens |\n"
          "|---|---|---|---|---|---|")
    for path in given.models:
        file = quantized(path, given.bits) if given.bits else path
        decoders = {e.__name__: decoder(e, file, given.threads) for e in (orthrus, onnxruntime)}
        best: dict[str, Any] = {}
        for _ in range(ROUNDS):
            for name, it in decoders.items():
                made = generate(it, prompt, max_new_tokens=given.new)
                if name not in best or made.tokens_per_second > best[name].tokens_per_second:
                    best[name] = made
        own, other = best["orthrus"], best["onnxruntime"]
        ratio = own.tokens_per_second / other.tokens_per_second
        print(f"| {path.stem}{f' {given.bits} bits' if given.bits else ''} | {own.tokens_per_second:.0f} | "
              f"{other.tokens_per_second:.0f} | {ratio:.2f} | {1 - own.run_seconds / own.seconds:.1%} | "
              f"{list(own.tokens[0]) == list(other.tokens[0])} |", flush=True)


if __name__ == "__main__":
    main()
