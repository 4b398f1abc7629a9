"""onnxruntime.transformers' names on this runtime, as modules.

Its modules lie in folders here, by what they do; `HOMES` says where. Each can be imported and run by
onnxruntime's path, `orthrus.transformers.bert_perf_test`, and is one object under either name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

HOMES = {
    "fusion": ("fusion_utils",),
    "model": ("constants", "convert_to_packing_mode", "dynamo_onnx_helper", "import_utils", "onnx_model",
              "onnx_utils", "shape_infer_helper"),
    "measure": ("affinity_helper", "benchmark", "benchmark_helper", "bert_perf_test", "bert_test_data",
                "compare_bert_results", "huggingface_models", "machine_info", "metrics",
                "profile_result_processor", "profiler"),
    "export": ("io_binding_helper", "large_model_exporter", "onnx_exporter", "past_helper",
               "quantize_helper", "torch_onnx_export_helper"),
}
"""Folder → the modules of onnxruntime.transformers that lie in it."""
SHARED = {
    "fusion.base": ("fusion_base",),
    "fusion.classes": tuple(f"fusion_{name}" for name in (
        "attention", "attention_clip", "attention_sam2", "attention_unet", "attention_vae", "bart_attention",
        "bias_add", "biasgelu", "biassplitgelu", "conformer_attention", "constant_fold", "embedlayer",
        "fastgelu", "gelu", "gelu_approximation", "gemmfastgelu", "gpt_attention", "gpt_attention_megatron",
        "gpt_attention_no_past", "group_norm", "layernorm", "mha_dit", "mha_mmdit", "nhwc_conv", "quickgelu",
        "reshape", "rotary_attention", "shape", "simplified_layernorm", "skip_group_norm", "skiplayernorm",
        "transpose")),
    "model.bert": ("onnx_model_bert",),
    "model.families": tuple(f"onnx_model_{name}" for name in (
        "bart", "bert_keras", "bert_tf", "clip", "conformer", "gpt2", "mmdit", "phi", "sam2", "t5", "tnlr",
        "unet", "vae")),
}
"""Module here → the modules of onnxruntime.transformers whose names it has."""
_HOME = {name: f"{folder}.{name}" for folder, names in HOMES.items() for name in names} | {
    name: home for home, names in SHARED.items() for name in names}


class _Finder:
    """Finds a module of onnxruntime's path in its folder, also below another name of this package."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        if name not in _HOME or getattr(sys.modules.get(parent), "__name__", parent) != __name__:
            return None
        import importlib.util
        from importlib.machinery import ModuleSpec

        found = importlib.util.find_spec(f"{__name__}.{_HOME[name]}")
        home: Any = found and _Home(fullname, found)
        return found and ModuleSpec(found.name, home, origin=found.origin)


class _Home:
    """Gives the module in its folder a second name; `get_code` is for `runpy`, which takes the package for
    relative imports from the spec."""

    def __init__(self, fullname: str, spec: ModuleSpec) -> None:
        self.fullname, self.spec = fullname, spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        import importlib

        return importlib.import_module(self.spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec
        sys.modules[self.fullname] = module

    def get_code(self, fullname: str) -> CodeType | None:
        loader = self.spec.loader
        return loader.get_code(self.spec.name)  # type: ignore[union-attr]


if not any(type(finder).__qualname__ == _Finder.__qualname__ and type(finder).__module__ == __name__
           for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())
