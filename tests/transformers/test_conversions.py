"""Networks of transformers with random weights, converted by the commands: each is what torch's is, and
onnxruntime says the same."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from skips import needs

import orthrus as ort

pytestmark = [pytest.mark.slow, needs("torch", "transformers")]

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
         "max_position_embeddings": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "BertConfig": SMALL,
    "GPT2Config": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "LlamaConfig": {**SMALL, "num_key_value_heads": 2}, "PhiConfig": SMALL,
    "ViTConfig": {**SMALL, "image_size": 32, "patch_size": 8},
    "T5Config": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
                 "decoder_start_token_id": 0},
    "WhisperConfig": {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                      "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
                      "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 30,
                      "decoder_start_token_id": 1},
}
LIMITS = {"fp32": 1e-4, "fp16": 2e-2, "int8": 0.1, "int4": 0.5}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def network(kind: str, folder: Path) -> str:
    """A folder with a configuration and no weights."""
    import transformers

    config = getattr(transformers, kind)(**CONFIGS[kind], vocab_size=200, bos_token_id=1, eos_token_id=2,
                                         pad_token_id=0)
    config.save_pretrained(folder / kind)
    return str(folder / kind)


def run(monkeypatch: pytest.MonkeyPatch, tool: str, *arguments: str) -> Any:
    module = importlib.import_module(f"orthrus.transformers.{tool}")
    monkeypatch.setattr(sys, "argv", ["tool", *arguments])
    return module.main()


def differences(text: str) -> list[float]:
    """What the commands said of the models' differences from torch."""
    return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if "the largest difference" in line]


def loads_there(path: Path) -> None:
    """onnxruntime opens the model; its weights lie beside it."""
    theirs = pytest.importorskip("onnxruntime")
    theirs.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("arguments", [
    [], ["-p", "fp16"], ["-o"], ["-o", "-p", "fp16", "-a"], ["-p", "int8"], ["-o", "-p", "int4"],
    ["--model_class", "GPT2LMHeadModel_NoPadding"], ["--model_class", "GPT2Model", "--use_int64_inputs"],
    ["-e", "-s", "2"]], ids=" ".join)
def test_gpt2(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = run(monkeypatch, "models.gpt2.convert_to_onnx", "-m", network("GPT2Config", folder), "--output",
              "out", "-t", "10", "-r", "1", *arguments)
    assert row["parity"] and row["max_diff"] < LIMITS[row["precision"]] and row["test_cases"] == 10
    assert Path("gpt2_parity_results.csv").read_text().count("\n") == 2
    loads_there(Path(row["onnx_path"]))


@pytest.mark.parametrize("arguments", [[], ["--encoder_decoder_init", "--use_int64_inputs"], ["-o"],
                                       ["-p", "fp16"], ["-s", "--encoder_decoder_init", "-e"]], ids=" ".join)
def test_t5(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch,
            capsys: pytest.CaptureFixture) -> None:
    run(monkeypatch, "models.t5.convert_to_onnx", "-m", network("T5Config", folder), "--output", "out",
        *arguments)
    found = differences(capsys.readouterr().out)
    assert len(found) == 2 and max(found) < LIMITS["fp16" if "fp16" in arguments else "fp32"]
    for path in Path("out").glob("*.onnx"):
        loads_there(path)


@pytest.mark.parametrize("arguments", [
    [], ["--no_optimize", "-d"], ["--use_gqa"], ["-p", "fp16"], ["-p", "int8"], ["--use_gqa", "-p", "int4"]],
    ids=" ".join)
def test_llama(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch,
               capsys: pytest.CaptureFixture) -> None:
    run(monkeypatch, "models.llama.convert_to_onnx", "-m", network("LlamaConfig", folder), "-o", "out",
        *arguments)
    found = differences(capsys.readouterr().out)
    assert len(found) == 2 and max(found) < LIMITS[arguments[-1] if "-p" in arguments else "fp32"]
    for path in Path("out").glob("*.onnx"):
        loads_there(path)


def test_phi2(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    name = network("PhiConfig", folder)
    run(monkeypatch, "models.phi2.convert_to_onnx", "-m", name, "--output_dir", "out", "--fp32_cpu",
        "--int4_cpu")
    first, second = differences(capsys.readouterr().out)
    assert first < LIMITS["fp32"] and second < LIMITS["int4"]
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="nothing to convert to"):
        run(monkeypatch, "models.phi2.convert_to_onnx", "-m", name, "--fp16_gpu")


@pytest.mark.parametrize("arguments", [[], ["--no_beam_search_op"], ["-o"], ["-p", "int4"],
                                       ["--separate_encoder_and_decoder_init", "-p", "fp16"]], ids=" ".join)
def test_whisper(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch,
                 capsys: pytest.CaptureFixture) -> None:
    run(monkeypatch, "models.whisper.convert_to_onnx", "-m", network("WhisperConfig", folder), "--output",
        "out", *arguments)
    found = differences(capsys.readouterr().out)
    assert len(found) == 2 and max(found) < LIMITS[arguments[-1] if "-p" in arguments else "fp32"]
    for path in Path("out").glob("*.onnx"):
        loads_there(path)


@pytest.mark.parametrize("arguments", [["--with_past"], []], ids=" ".join)
def test_any_causal_model(arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from orthrus.transformers.export import decoding, exporting, networks
    from transformers import AutoModelForCausalLM

    name = network("PhiConfig", folder)
    run(monkeypatch, "large_model_exporter", "-m", name, "-s", "out", *arguments)
    path = folder / "out" / "PhiConfig" / "PhiConfig.onnx"
    config = networks.configuration(name)
    made = networks.network(name, AutoModelForCausalLM)
    case = decoding.example(config, 3, 4, 6 if arguments else 0)
    session = ort.InferenceSession(str(path))
    known = [each.name for each in session.get_inputs()]
    found = session.run(None, {name: each for name, each in exporting.feed(case).items() if name in known})
    with torch.no_grad():
        expected = decoding.Decoder(made)(*case.values())
    assert exporting.difference(expected[:len(found)], found) < LIMITS["fp32"]


def test_the_benchmark_measures_engines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "benchmark", "-m", network("BertConfig", folder), network("ViTConfig", folder), "-e",
        "onnxruntime", "torch", "torchscript", "-b", "1", "2", "-s", "8", "-i", "1", "3", "-t", "2", "-n",
        "1", "-v", "-d", "detail.csv", "-r", "summary.csv", "-f", "fused.csv")
    lines = Path("detail.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * (2 + 1) + 2 * 2 * 2
    assert all(row.rsplit(",", 1)[1] for row in Path("summary.csv").read_text().splitlines())
    assert len(Path("fused.csv").read_text().splitlines()) == 4


def test_a_session_runs_on_torchs_tensors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from orthrus.transformers import io_binding_helper as binding

    run(monkeypatch, "large_model_exporter", "-m", network("LlamaConfig", folder), "-s", "model.onnx",
        "--with_past")
    from orthrus.transformers.export import decoding, networks

    config = networks.configuration(str(folder / "LlamaConfig"))
    session = ort.InferenceSession("model.onnx")
    device = torch.device("cpu")
    manager = binding.GpuBindingManager(session, device, max_cuda_graphs=2)
    for past in (3, 5, 3):
        case = decoding.example(config, 2, 1, past)
        expected = session.run(None, {name: each.numpy() for name, each in case.items()})
        outputs = {each.name: array.shape
                   for each, array in zip(session.get_outputs(), expected, strict=True)}
        held = manager.get_binding({name: tuple(each.shape) for name, each in case.items()} | outputs)
        found = held.infer(case)
        plain = binding.CudaSession(session, device)
        plain.allocate_buffers(outputs)
        for name, array in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(found[name].numpy(), array)
            np.testing.assert_array_equal(plain.infer(case)[name].numpy(), array)
    assert manager.get_binding({name: tuple(each.shape) for name, each in case.items()} | outputs) is held
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="does not fit"):
        held.infer({"input_ids": torch.zeros(2, 2, dtype=torch.int64)})
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="contiguous"):
        plain.bind_input_and_buffer_sharing("input_ids", torch.zeros(4, 2, dtype=torch.int64)[:, :1])
    types = binding.TypeHelper
    assert types.get_io_torch_type_map(session)["logits"] is torch.float32
    assert types.torch_type_to_numpy_type(torch.float16) is np.float16
    with pytest.raises(ValueError, match="not found in map"):
        types.ort_type_to_numpy_type("tensor(bfloat16)")


def test_a_network_without_weights_is_the_same_each_time(folder: Path) -> None:
    import torch

    from orthrus.transformers.export import networks
    from transformers import AutoModel

    name = network("BertConfig", folder)
    first, second = (networks.network(name, AutoModel) for _ in range(2))
    assert networks.is_bare(name) and not first.training
    assert all(torch.equal(x, y) for x, y in zip(first.parameters(), second.parameters(), strict=True))
