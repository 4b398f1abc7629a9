"""GPT-2 with its cache as tensors, exported, run and compared.

A layer's keys and values are one tensor, [2, batch, heads, tokens, size]. Inputs come in the order tokens,
positions, mask, caches; a model for unpadded text has no positions and no mask.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch

from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from ...export import exporting
from ...export.decoding import positions
from ...export.io_binding_helper import IOBindingHelper
from ...measure.benchmark_helper import Precision, timed

logger = logging.getLogger(__name__)

PRETRAINED_GPT2_MODELS = ["distilgpt2", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]
DEFAULT_TOLERANCE = {Precision.FLOAT32: 0.0005, Precision.FLOAT16: 0.2, Precision.INT8: 3.0}
"""How far logits may be from torch's, by precision."""
_FLOAT_OPERATORS = ["Add", "LayerNormalization", "SkipLayerNormalization", "FastGelu",
                    "EmbedLayerNormalization"]
_LONGEST_CASE = 8


class GPT2ModelNoPastState(GPT2Model):  # type: ignore[misc]
    """Of tokens the last hidden states; no cache."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)

    def forward(self, input_ids: Any) -> Any:
        return super().forward(input_ids, use_cache=False, return_dict=False)


def _cache(past: Sequence[torch.Tensor]) -> Any:
    from transformers import DynamicCache

    return DynamicCache([(layer[0], layer[1]) for layer in past])


def _stacked(found: Any) -> tuple[torch.Tensor, ...]:
    """The first output and a tensor for each layer's cache."""
    return (found[0], *(torch.stack((layer.keys, layer.values)) for layer in found[1].layers))


class MyGPT2Model(GPT2Model):  # type: ignore[misc]
    """Of tokens and a cache the last hidden states and the longer cache."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)

    @staticmethod
    def post_process(result: Any, num_layer: int) -> tuple[torch.Tensor, ...]:
        """Outputs as tensors, the cache of each of `num_layer` layers in one."""
        return _stacked(result)[:1 + num_layer]

    def forward(self, input_ids: Any, position_ids: Any, attention_mask: Any,
                *past: Any) -> Any:
        result = super().forward(input_ids, position_ids=position_ids, attention_mask=attention_mask,
                                 past_key_values=_cache(past), use_cache=True, return_dict=False)
        return MyGPT2Model.post_process(result, self.config.n_layer)


class MyGPT2LMHeadModel(GPT2LMHeadModel):  # type: ignore[misc]
    """Of tokens and a cache the logits and the longer cache."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)

    def forward(self, input_ids: Any, position_ids: Any, attention_mask: Any,
                *past: Any) -> Any:
        result = super().forward(input_ids, position_ids=position_ids, attention_mask=attention_mask,
                                 past_key_values=_cache(past), use_cache=True, return_dict=False)
        return MyGPT2Model.post_process(result, self.config.n_layer)


class MyGPT2LMHeadModel_NoPadding(GPT2LMHeadModel):  # type: ignore[misc]
    """As `MyGPT2LMHeadModel`, of text without padding: positions follow from the cache."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)

    def forward(self, input_ids: Any, *past: Any) -> Any:
        result = super().forward(input_ids, past_key_values=_cache(past), use_cache=True, return_dict=False)
        return MyGPT2Model.post_process(result, self.config.n_layer)


MODEL_CLASSES = {"GPT2LMHeadModel": (MyGPT2LMHeadModel, "logits", True),
                 "GPT2LMHeadModel_NoPadding": (MyGPT2LMHeadModel_NoPadding, "logits", False),
                 "GPT2Model": (MyGPT2Model, "last_state", True)}
"""By name: the class, the name of its first output, whether it has positions and a mask."""


class Gpt2Inputs:
    """The inputs of a run; positions and mask may be None."""

    def __init__(self, input_ids: Any, position_ids: Any, attention_mask: Any, past: Sequence[Any]) -> None:
        self.input_ids, self.position_ids, self.attention_mask = input_ids, position_ids, attention_mask
        self.past = past

    def to_list(self) -> list[Any]:
        """The tensors that there are, caches last."""
        return [each for each in (self.input_ids, self.position_ids, self.attention_mask)
                if each is not None] + list(self.past or ())

    def to_tuple(self) -> tuple[Any, ...]:
        """The tensors that there are, caches last in one tuple."""
        first = self.to_list()[:len(self.to_list()) - len(self.past or ())]
        return (*first, tuple(self.past)) if self.past else tuple(first)

    def to_fp32(self) -> Gpt2Inputs:
        """The same with floats of 32 bits."""
        mask = self.attention_mask
        if mask is not None and mask.dtype == torch.float16:
            mask = mask.to(torch.float32)
        return Gpt2Inputs(self.input_ids, self.position_ids, mask,
                          [each.to(torch.float32) for each in self.past or ()])

    def named(self) -> dict[str, Any]:
        """The tensors that there are, by input name."""
        given = {"input_ids": self.input_ids, "position_ids": self.position_ids,
                 "attention_mask": self.attention_mask}
        return {name: each for name, each in given.items() if each is not None} | {
            f"past_{i}": each for i, each in enumerate(self.past or ())}


class Gpt2Helper:
    """Inputs, conversion, runs and comparisons of a GPT-2. Everything is a static method."""

    @staticmethod
    def get_dummy_inputs(batch_size: int, past_sequence_length: int, sequence_length: int,
                         num_attention_heads: int, hidden_size: int, num_layer: int, vocab_size: int,
                         device: torch.device, float16: bool = False, has_position_ids: bool = True,
                         has_attention_mask: bool = True, input_ids_dtype: torch.dtype = torch.int32,
                         position_ids_dtype: torch.dtype = torch.int32,
                         attention_mask_dtype: torch.dtype = torch.int32, left_side_padding: bool = True
                         ) -> Gpt2Inputs:
        """Random inputs. Padding hides part of the past, before the text or, without `left_side_padding`,
        behind it: a token that sees nothing would have no result."""
        kind = torch.float16 if float16 else torch.float32
        shape = (2, batch_size, num_attention_heads, past_sequence_length, hidden_size // num_attention_heads)
        past = [torch.rand(shape, dtype=kind, device=device) * 2 - 1 for _ in range(num_layer)]
        ids = torch.randint(vocab_size, (batch_size, sequence_length), dtype=input_ids_dtype, device=device)
        total = past_sequence_length + sequence_length
        mask = torch.ones(batch_size, total, dtype=attention_mask_dtype, device=device)
        for row in range(batch_size if past_sequence_length else 0):
            hidden = random.randint(0, past_sequence_length - 1)
            if left_side_padding:
                mask[row, :hidden] = 0
            elif hidden:
                mask[row, past_sequence_length - hidden:past_sequence_length] = 0
        places = positions(mask, sequence_length).to(position_ids_dtype) if has_position_ids else None
        return Gpt2Inputs(ids, places, mask if has_attention_mask else None, past)

    @staticmethod
    def get_output_shapes(batch_size: int, past_sequence_length: int, sequence_length: int,
                          config: GPT2Config, model_class: str = "GPT2LMHeadModel") -> dict[str, list[int]]:
        """The outputs' shapes by name."""
        width = config.vocab_size if "LMHead" in model_class else config.hidden_size
        cache = [2, batch_size, config.num_attention_heads, past_sequence_length + sequence_length,
                 config.hidden_size // config.num_attention_heads]
        return {MODEL_CLASSES[model_class][1]: [batch_size, sequence_length, width],
                **{f"present_{i}": list(cache) for i in range(config.n_layer)}}

    @staticmethod
    def auto_increase_buffer_size(output_buffers: MutableMapping[str, torch.Tensor],
                                  output_shapes: Mapping[str, Sequence[int]]) -> None:
        """Replace the buffers that are too small for these shapes."""
        for name, shape in output_shapes.items():
            held = output_buffers[name]
            if held.numel() < int(np.prod(shape)):
                output_buffers[name] = torch.empty(int(np.prod(shape)), dtype=held.dtype, device=held.device)

    @staticmethod
    def get_output_buffers(output_shapes: Mapping[str, Sequence[int]], device: torch.device,
                           is_float16: bool = False) -> dict[str, torch.Tensor]:
        """A flat tensor for each output."""
        kind = torch.float16 if is_float16 else torch.float32
        return {name: torch.empty(int(np.prod(shape)), dtype=kind, device=device)
                for name, shape in output_shapes.items()}

    @staticmethod
    def diff_outputs(torch_outputs: Sequence[Any], ort_outputs: Sequence[Any], relative: bool = False
                     ) -> float:
        """The largest difference in the first output; `relative` to torch's values, of 1e-6 at least."""
        expected = np.asarray(torch_outputs[0].detach().cpu().float())
        gap = np.abs(expected - np.asarray(ort_outputs[0], np.float32))
        return float(np.amax(gap / np.maximum(np.abs(expected), 1e-6) if relative else gap))

    @staticmethod
    def compare_outputs(torch_outputs: Sequence[Any], ort_outputs: Sequence[Any], rtol: float = 1e-3,
                        atol: float = 1e-3, **kwargs: Any) -> bool:
        """Whether all outputs are within the tolerance; the log says which are not."""
        close = True
        for i, (first, second) in enumerate(zip(torch_outputs, ort_outputs, strict=True)):
            x, y = np.asarray(first.detach().cpu().float()), np.asarray(second, np.float32)
            same = np.allclose(y, x, rtol=rtol, atol=atol)
            if not same:
                logger.info("output %s differs by up to %.3g", i, float(np.abs(x - y).max()))
            close = close and bool(same)
        return close

    @staticmethod
    def compare_outputs_v2(torch_outputs: Sequence[Any], ort_outputs: Sequence[Any], atol: float = 1e-6
                           ) -> dict[str, Any]:
        """How far outputs are from torch's: percentiles of the logits' difference, share of results that are
        no numbers, and of the texts whose next token is the same."""
        expected = np.asarray(torch_outputs[0].detach().cpu().float())
        found = np.asarray(ort_outputs[0], np.float32)
        gaps = np.abs(expected - found)
        last = (expected[:, -1], found[:, -1]) if expected.ndim == 3 else (expected, found)
        same = last[0].argmax(-1) == last[1].argmax(-1)
        return {"is_all_close": exporting.difference(torch_outputs, ort_outputs) <= atol,
                "max_diff": float(np.nanmax(gaps)), "top1_match_rate": float(np.mean(same)),
                "nan_rate": float(np.mean(np.isnan(found))),
                **{f"logits_diff_percentile_{p}": float(np.nanpercentile(gaps, p)) for p in (50, 90, 95, 99)}}

    @staticmethod
    def export_onnx(model: Any, device: torch.device, onnx_model_path: str, verbose: bool = False,
                    use_external_data_format: bool = False, has_position_ids: bool = True,
                    has_attention_mask: bool = True, input_ids_dtype: torch.dtype = torch.int32,
                    position_ids_dtype: torch.dtype = torch.int32,
                    attention_mask_dtype: torch.dtype = torch.int32) -> None:
        """Write a network of `MODEL_CLASSES` with its cache."""
        config = model.config
        inputs = Gpt2Helper.get_dummy_inputs(
            1, 1, 1, config.num_attention_heads, config.hidden_size, config.n_layer, config.vocab_size,
            device, False, has_position_ids, has_attention_mask, input_ids_dtype, position_ids_dtype,
            attention_mask_dtype)
        first = "logits" if isinstance(model, GPT2LMHeadModel) else "last_state"
        total = "total_seq_len"
        axes = {"input_ids": {0: "batch_size", 1: "seq_len"}, "position_ids": {0: "batch_size", 1: "seq_len"},
                "attention_mask": {0: "batch_size", 1: total}, first: {0: "batch_size", 1: "seq_len"},
                **{f"past_{i}": {1: "batch_size", 3: "past_seq_len"} for i in range(config.n_layer)},
                **{f"present_{i}": {1: "batch_size", 3: total} for i in range(config.n_layer)}}
        named = inputs.named()
        outputs = [first, *(f"present_{i}" for i in range(config.n_layer))]
        kept = {name: each for name, each in axes.items() if name in named or name in outputs}
        exporting.export(model, named, outputs, onnx_model_path, kept, external=use_external_data_format,
                         verbose=verbose)

    @staticmethod
    def optimize_onnx(onnx_model_path: str, optimized_model_path: str, is_float16: bool,
                      num_attention_heads: int, hidden_size: int, use_external_data_format: bool = False,
                      auto_mixed_precision: bool = False, stage: int = 0, **kwargs: Any) -> dict[str, Any]:
        """Write the model as the optimizer makes it, of half floats where asked for, and answer how these
        were made. `kwargs`: of `convert_float_to_float16`. `stage` changes nothing: one model is fast in
        both."""
        from ...optimizer import optimize_model

        model = optimize_model(onnx_model_path, "gpt2", num_heads=num_attention_heads,
                               hidden_size=hidden_size, opt_level=0)
        parameters: dict[str, Any] = {}
        if is_float16 and auto_mixed_precision:
            parameters = Gpt2Helper.auto_mixed_precision(model)
        elif is_float16:
            parameters = {"keep_io_types": True, **kwargs}
            model.convert_float_to_float16(use_symbolic_shape_infer=True, **parameters)
        model.save_model_to_file(optimized_model_path, use_external_data_format)
        return parameters

    @staticmethod
    def auto_mixed_precision(onnx_model: Any, op_block_list: list[str] = list(_FLOAT_OPERATORS)  # noqa: B006
                             ) -> dict[str, Any]:
        """Let an `OnnxModel` compute in half floats but for these operators and the product that makes the
        logits; answers what was asked of `convert_float_to_float16`."""
        logits = onnx_model.model.graph.output[0].name
        last = [node.name for node in onnx_model.model.graph.node if logits in node.output]
        parameters = {"keep_io_types": [logits], "op_block_list": list(op_block_list),
                      "node_block_list": last, "force_fp16_initializers": False}
        onnx_model.convert_float_to_float16(use_symbolic_shape_infer=True, **parameters)
        return parameters

    @staticmethod
    def pytorch_inference(model: Any, inputs: Gpt2Inputs, total_runs: int = 0) -> Any:
        """torch's outputs, and with `total_runs` the mean milliseconds of a run."""
        with torch.no_grad():
            given = inputs.to_fp32().to_list()
            outputs = model(*given)
            return _with_latency(outputs, lambda: model(*given), total_runs)

    @staticmethod
    def onnxruntime_inference(ort_session: Any, inputs: Gpt2Inputs, total_runs: int = 0) -> Any:
        """The session's outputs, and with `total_runs` the mean milliseconds of a run."""
        feed = exporting.feed(inputs.named())
        return _with_latency(ort_session.run(None, feed), lambda: ort_session.run(None, feed), total_runs)

    @staticmethod
    def prepare_io_binding(ort_session: Any, input_ids: Any, position_ids: Any, attention_mask: Any,
                           past: Any, output_buffers: Any, output_shapes: Any) -> Any:
        """See `IOBindingHelper`."""
        return IOBindingHelper.prepare_io_binding(ort_session, input_ids, position_ids, attention_mask, past,
                                                  output_buffers, output_shapes)

    @staticmethod
    def get_outputs_from_io_binding_buffer(ort_session: Any, output_buffers: Any, output_shapes: Any,
                                           return_numpy: bool = True) -> list[Any]:
        """See `IOBindingHelper`."""
        return IOBindingHelper.get_outputs_from_io_binding_buffer(ort_session, output_buffers, output_shapes,
                                                                  return_numpy)

    @staticmethod
    def onnxruntime_inference_with_binded_io(
            ort_session: Any, inputs: Gpt2Inputs, output_buffers: dict[str, torch.Tensor],
            output_shapes: dict[str, list[int]], total_runs: int = 0, return_numpy: bool = True,
            include_copy_output_latency: bool = False) -> Any:
        """The session's outputs from `output_buffers`, which are bound, and with `total_runs` the mean
        milliseconds of a run, with `include_copy_output_latency` of copying them out too."""
        binding = IOBindingHelper.prepare_io_binding(
            ort_session, inputs.input_ids.contiguous(), inputs.position_ids, inputs.attention_mask,
            inputs.past, output_buffers, output_shapes)

        def copied() -> list[Any]:
            return IOBindingHelper.get_outputs_from_io_binding_buffer(ort_session, output_buffers,
                                                                      output_shapes, return_numpy)

        def run() -> None:
            ort_session.run_with_iobinding(binding)
            if include_copy_output_latency:
                copied()

        run()
        return _with_latency(copied(), run, total_runs)

    @staticmethod
    def save_outputs(i: int, ort_outputs: Sequence[Any], torch_outputs: Sequence[Any]) -> None:
        """Write both sides' outputs to `ort_outputs_<i>.npz` and `torch_outputs_<i>.npz`."""
        np.savez(f"ort_outputs_{i}.npz", *ort_outputs)
        np.savez(f"torch_outputs_{i}.npz", *(each.detach().cpu().numpy() for each in torch_outputs))

    @staticmethod
    def save_inputs(i: int, dummy_inputs: Gpt2Inputs, ort_outputs: Sequence[Any],
                    torch_outputs: Sequence[Any]) -> None:
        """Write the inputs to `dummy_inputs_<i>.npz`, and the outputs."""
        np.savez(f"dummy_inputs_{i}.npz", **exporting.feed(dummy_inputs.named()))  # type: ignore[arg-type]
        Gpt2Helper.save_outputs(i, ort_outputs, torch_outputs)

    @staticmethod
    def test_parity(ort_session: Any, model: Any, device: torch.device, is_float16: bool = False,
                    rtol: float = 5e-4, atol: float = 5e-4, test_cases_per_run: int = 10000,
                    total_runs: int = 1, use_io_binding: bool = True, model_class: str = "GPT2LMHeadModel",
                    has_position_ids: bool = True, has_attention_mask: bool = True,
                    input_ids_dtype: torch.dtype = torch.int32, position_ids_dtype: torch.dtype = torch.int32,
                    attention_mask_dtype: torch.dtype = torch.int32, stage: int = 0, verbose: bool = False,
                    enable_pickle_output: bool = False) -> dict[str, Any]:
        """Compare with torch over random inputs: how many cases passed, the largest difference, how often the
        next token is the same. `stage`: 1 only without a past, 2 only with one. `enable_pickle_output`: write
        the outputs that differ, by `save_inputs`."""
        config = model.config
        cases = test_cases_per_run * total_runs
        passed, found = 0, []
        for i in range(cases):
            tokens = 1 if stage == 2 else random.randint(1, 1 + _LONGEST_CASE)
            past = 0 if stage == 1 else random.randint(int(stage == 2), _LONGEST_CASE)
            inputs = Gpt2Helper.get_dummy_inputs(
                random.randint(1, _LONGEST_CASE), past, tokens, config.num_attention_heads,
                config.hidden_size, config.n_layer, config.vocab_size, device, is_float16, has_position_ids,
                has_attention_mask, input_ids_dtype, position_ids_dtype, attention_mask_dtype)
            expected = Gpt2Helper.pytorch_inference(model, inputs)
            if use_io_binding:
                shapes = Gpt2Helper.get_output_shapes(len(inputs.input_ids), past, tokens, config,
                                                      model_class)
                buffers = IOBindingHelper.get_output_buffers(ort_session, shapes, device)
                outputs = Gpt2Helper.onnxruntime_inference_with_binded_io(ort_session, inputs, buffers,
                                                                          shapes)
            else:
                outputs = Gpt2Helper.onnxruntime_inference(ort_session, inputs)
            close = Gpt2Helper.compare_outputs(expected, outputs, rtol, atol)
            passed += close
            found.append(Gpt2Helper.compare_outputs_v2(expected, outputs, atol))
            if enable_pickle_output and not close:
                Gpt2Helper.save_inputs(i, inputs, outputs, expected)
        logger.info("%s of %s cases within rtol=%s, atol=%s", passed, cases, rtol, atol)
        return {"test_cases": cases, "passed": passed, "parity": passed == cases,
                "max_diff": max((each["max_diff"] for each in found), default=0.0),
                **{name: float(np.mean([each[name] for each in found]))
                   for name in ("top1_match_rate", "nan_rate") if found}}

    @staticmethod
    def test_performance(ort_session: Any, model: Any, device: torch.device, is_float16: bool = False,
                         total_runs: int = 100, use_io_binding: bool = True,
                         model_class: str = "GPT2LMHeadModel", has_position_ids: bool = True,
                         has_attention_mask: bool = True, input_ids_dtype: torch.dtype = torch.int32,
                         position_ids_dtype: torch.dtype = torch.int32,
                         attention_mask_dtype: torch.dtype = torch.int32, batch_size: int = 8,
                         sequence_length: int = 1, past_sequence_length: int = 32) -> float:
        """The mean milliseconds of a run."""
        config = model.config
        inputs = Gpt2Helper.get_dummy_inputs(
            batch_size, past_sequence_length, sequence_length, config.num_attention_heads, config.hidden_size,
            config.n_layer, config.vocab_size, device, is_float16, has_position_ids, has_attention_mask,
            input_ids_dtype, position_ids_dtype, attention_mask_dtype)
        if not use_io_binding:
            return float(Gpt2Helper.onnxruntime_inference(ort_session, inputs, total_runs)[1])
        shapes = Gpt2Helper.get_output_shapes(batch_size, past_sequence_length, sequence_length, config,
                                              model_class)
        buffers = IOBindingHelper.get_output_buffers(ort_session, shapes, device)
        return float(Gpt2Helper.onnxruntime_inference_with_binded_io(ort_session, inputs, buffers, shapes,
                                                                     total_runs)[1])

    @staticmethod
    def torchscript(model: Any, config: GPT2Config, device: torch.device, has_position_ids: bool = True,
                    has_attention_mask: bool = True) -> Any:
        """The network traced by torch."""
        inputs = Gpt2Helper.get_dummy_inputs(1, 1, 1, config.num_attention_heads, config.hidden_size,
                                             config.n_layer, config.vocab_size, device, False,
                                             has_position_ids, has_attention_mask)
        with torch.no_grad():
            return torch.jit.trace(model, tuple(inputs.to_list()), check_trace=False)

    @staticmethod
    def get_onnx_paths(output_dir: str, model_name_or_path: str, model_class: str = "GPT2LMHeadModel",
                       has_past: bool = True, new_folder: bool = False,
                       remove_existing: Iterable[str] = ["raw", "fp32", "fp16", "int8"]
                       ) -> dict[str, str]:
        """Where the exported model lies, and each that is made of it. With `new_folder` each has a folder of
        its own, and those of `remove_existing` that are there are deleted."""
        name = model_name_or_path
        if os.path.isdir(name):
            name = os.path.basename(os.path.normpath(name))
        if model_class != "GPT2LMHeadModel":
            name = f"{name}_{model_class}"
        if has_past:
            name = f"{name}_past"
        paths = {}
        for suffix in ("raw", "fp32", "fp16", "int8"):
            full = name if suffix == "raw" else f"{name}_{suffix}"
            folder = os.path.join(output_dir, full) if new_folder else output_dir
            if new_folder and suffix in remove_existing:
                exporting.remove(folder)
            os.makedirs(folder, exist_ok=True)
            paths[suffix] = os.path.join(folder, f"{full}.onnx")
        return paths


def _with_latency(outputs: Any, run: Any, total_runs: int) -> Any:
    if not total_runs:
        return outputs
    return outputs, 1e3 * float(np.mean(timed(run, total_runs)))
