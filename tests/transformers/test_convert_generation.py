"""convert_generation: exported graphs and a search become a model, which gives the same on both runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from search_models import decoder, encoder, gpt2_decoder, weights
from skips import needs

import orthrus
from orthrus.errors import InvalidArgument
from orthrus.transformers import convert_generation as conversion
from orthrus.transformers.generation_graphs import last_logits

V = 140
W = weights(2, V, 2)
BEAMS = {"input_ids": [[3, 4, 5], [0, 6, 7]], "max_length": [12], "min_length": [1], "num_beams": [3],
         "num_return_sequences": [2], "length_penalty": [1.0], "repetition_penalty": [1.1]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with exported graphs and config.json."""
    imports = {"opset_imports": [helper.make_opsetid("", 21)], "ir_version": 10}
    for name, graph in (("gpt2", gpt2_decoder(W, V)), ("decoder", decoder(W, V)), ("encoder", encoder(W, V)),
                        ("whole", encoder(W, V, first=True))):
        onnx.save(helper.make_model(graph, **imports), tmp_path / f"{name}.onnx")
    tmp_path.joinpath("config.json").write_text(json.dumps({
        "vocab_size": V, "eos_token_id": 9, "pad_token_id": 0, "decoder_start_token_id": 0, "num_heads": 1,
        "d_model": 8, "d_kv": 8}))
    return tmp_path


def flags(folder: Path, kind: str, encoder: str = "encoder") -> list[str]:
    """The flags for a model of a kind."""
    given = ["-m", str(folder), "--output", str(folder / "out.onnx"), "--model_type", kind, "--decoder_onnx",
             str(folder / ("gpt2.onnx" if kind == "gpt2" else "decoder.onnx"))]
    if kind == "gpt2":
        return given
    return [*given, "--encoder_decoder_init_onnx", str(folder / f"{encoder}.onnx")]


def run(runtime: Any, path: Path, feeds: dict[str, Any]) -> list[np.ndarray]:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = {i.name: np.float32 if "float" in i.type else np.int32 for i in session.get_inputs()}
    return session.run(None, {k: np.array(feeds[k], t) for k, t in names.items()})


@pytest.mark.parametrize(("kind", "more"), [
    ("gpt2", ["--output_sequences_scores", "--early_stopping"]),
    ("gpt2", ["--disable_separate_gpt2_decoder_for_init_run", "--output_sequences_scores",
              "--output_token_scores"]),
    ("gpt2", ["--disable_shared_initializers", "--vocab_mask", "--prefix_vocab_mask",
              "--custom_attention_mask"]),
    ("gpt2", ["--num_beams", "1", "--no_repeat_ngram_size", "2"]),
    ("gpt2", ["--num_beams", "1", "--top_p", "0.8", "--seed", "--run_shape_inference"]),
    ("t5", ["--output_sequences_scores"]), ("mt5", ["whole"]), ("t5", ["--use_external_data_format"])])
def test_a_converted_model_gives_the_same_on_both(folder: Path, kind: str, more: list[str]) -> None:
    files = {p.name: p.read_bytes() for p in folder.glob("*.onnx")}
    conversion.main([*flags(folder, kind, "whole" if "whole" in more else "encoder"),
                     *(flag for flag in more if flag != "whole")])
    assert {p.name: p.read_bytes() for p in folder.glob("*.onnx") if p.name in files} == files
    model = onnx.load(folder / "out.onnx")
    chosen = "Sampling" if "--top_p" in more else "GreedySearch"
    operator = chosen if "--num_beams" in more else "BeamSearch"
    assert [node.op_type for node in model.graph.node] == [operator]
    feeds = BEAMS | {"seed": [7], "vocab_mask": [1] * V, "attention_mask": [[1, 1, 1], [0, 1, 1]],
                     "prefix_vocab_mask": [[1] * V] * 2}
    ours = run(orthrus, folder / "out.onnx", feeds)
    assert ours[0].shape[-1] == 12
    onnxruntime = pytest.importorskip("onnxruntime")
    theirs = run(onnxruntime, folder / "out.onnx", feeds)
    assert ours[0].tolist() == theirs[0].tolist()
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_weights_that_two_graphs_share_are_there_once(folder: Path) -> None:
    conversion.main(flags(folder, "gpt2"))
    once = (folder / "out.onnx").stat().st_size
    conversion.main([*flags(folder, "gpt2"), "--disable_shared_initializers"])
    assert (folder / "out.onnx").stat().st_size - once > 2 * V * 8 * 4 * 0.9


def test_the_first_step_computes_the_last_logits_alone() -> None:
    graph = gpt2_decoder(W, V)
    assert last_logits(graph)
    session = orthrus.InferenceSession(helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())
    made = session.run(["logits"], {
        "input_ids": np.ones((2, 5), np.int32), "position_ids": np.tile(np.arange(5, dtype=np.int32), (2, 1)),
        "attention_mask": np.ones((2, 5), np.int32),
        **{f"past_{i}": np.zeros((2, 2, 1, 0, 8), np.float32) for i in range(2)}})
    assert made[0].shape == (2, 1, V)


@pytest.mark.parametrize(("kind", "more", "error", "message"), [
    ("t5", ["--decoder_onnx", "none.onnx"], InvalidArgument, "exported t5 is not here"),
    ("gpt2", ["--past_present_share_buffer"], ValueError, "past_present_share_buffer"),
    ("gpt2", ["--output_token_scores"], ValueError, "requires --output_sequences_scores"),
    ("gpt2", ["--num_beams", "1", "--output_sequences_scores"], NotImplementedError, "greedy"),
    ("t5", ["-m", "nowhere"], InvalidArgument, "configuration is not here")])
def test_what_cannot_be_converted_says_why(folder: Path, kind: str, more: list[str], error: type[Exception],
                                           message: str) -> None:
    with pytest.raises(error, match=message):
        conversion.main([*flags(folder, kind), *more])
    assert not (folder / "out.onnx").exists()


def test_graphs_of_another_convention_are_refused(folder: Path) -> None:
    gpt2 = onnx.load(folder / "gpt2.onnx").graph
    with pytest.raises(ValueError, match="Input 0 is expected to be encoder_input_ids"):
        conversion.verify_t5_encoder_decoder_init_subgraph(
            _renamed(onnx.load(folder / "encoder.onnx").graph, "tokens"), "fp32")
    with pytest.raises(ValueError, match="onnx data type"):
        conversion.verify_gpt2_subgraph(gpt2, "fp16")
    with pytest.raises(ValueError, match="no inputs for a cache"):
        conversion.verify_t5_decoder_subgraph(helper.make_graph([], "none", [], []), "fp32")


def _renamed(graph: onnx.GraphProto, name: str) -> onnx.GraphProto:
    graph.input[0].name = name
    return graph


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "more"), [
    ("gpt2", ["--output_sequences_scores"]), ("gpt2", ["--num_beams", "1"]), ("t5", [])])
def test_models_of_either_converter_give_the_same_tokens(folder: Path, kind: str, more: list[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    onnxruntime = pytest.importorskip("onnxruntime")
    from onnxruntime.transformers import convert_generation as theirs

    search = "GREEDYSEARCH" if more[:1] == ["--num_beams"] else "BEAMSEARCH"
    found = []
    for converter in (conversion, theirs):
        args = converter.parse_arguments([*flags(folder, kind), *more])
        args.output = str(folder / f"{converter.__name__.partition('.')[0]}.onnx")
        converter.convert_generation_model(args, converter.GenerationType[search])
        made = onnx.load(args.output)
        # A newer onnx writes a version that the installed onnxruntime does not know.
        made.ir_version = 10
        onnx.save(made, args.output)
        found += [run(runtime, Path(args.output), BEAMS)[0].tolist() for runtime in (orthrus, onnxruntime)]
    assert all(tokens == found[0] for tokens in found)


@pytest.mark.slow
@needs("torch", "transformers")
@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_a_model_that_was_not_exported_is(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    monkeypatch.chdir(tmp_path)  # a table of the parity is left where one is
    sizes = {"vocab_size": V, "eos_token_id": 9, "pad_token_id": 0}
    if kind == "gpt2":
        config = transformers.GPT2Config(n_positions=64, n_embd=64, n_layer=2, n_head=4, **sizes)
    else:
        config = transformers.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
                                       decoder_start_token_id=0, **sizes)
    config.save_pretrained(tmp_path)
    conversion.main(["-m", str(tmp_path), "--model_type", kind, "--output", str(tmp_path / "out.onnx")])
    onnxruntime = pytest.importorskip("onnxruntime")
    ours, theirs = (run(runtime, tmp_path / "out.onnx", BEAMS)[0] for runtime in (orthrus, onnxruntime))
    assert ours.shape[-1] == 12 and ours.tolist() == theirs.tolist()
