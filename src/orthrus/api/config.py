"""SessionOptions in, the engine's Config out; and the table of configuration keys that act.

A key of `KEYS` does what is said beside it. A key of `INERT` is onnxruntime's, is accepted, and has nothing
to act on here. Any other key is accepted too, and reported in the log as unknown.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import Fail, InvalidArgument
from .enums import ExecutionMode, GraphOptimizationLevel
from .environment import threads_of
from .options import SessionOptions

if TYPE_CHECKING:
    from .metadata import OrtEpContextDataBuffer

log = logging.getLogger("orthrus")

_PROCESSORS = 1 << 16
"""The highest number of a processor that is taken for one."""

_LEVELS = {"disable_all": 0, "enable_basic": 1, "enable_extended": 2, "enable_layout": 3, "enable_all": 99}
_MODES = {"sequential": 0, "ort_sequential": 0, "parallel": 1, "ort_parallel": 1}


def _flag(text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError("expected 0 or 1")
    return text.lower() in ("1", "true")


def _choice(table: dict[str, int], kind: Callable[[int], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text.lower() not in table:
            raise ValueError(f"expected one of {', '.join(table)}")
        return kind(table[text.lower()])
    return read


_PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "session.intra_op_num_threads": ("intra_op_num_threads", int),
    "session.inter_op_num_threads": ("inter_op_num_threads", int),
    "session.enable_cpu_mem_arena": ("enable_cpu_mem_arena", _flag),
    "session.enable_mem_pattern": ("enable_mem_pattern", _flag),
    "session.log_id": ("logid", str),
    "session.log_severity_level": ("log_severity_level", int),
    "session.log_verbosity_level": ("log_verbosity_level", int),
    "session.graph_optimization_level":
        ("graph_optimization_level", _choice(_LEVELS, GraphOptimizationLevel)),
    "session.optimized_model_filepath": ("optimized_model_filepath", str),
    "session.execution_mode": ("execution_mode", _choice(_MODES, ExecutionMode)),
    "session.use_per_session_threads": ("use_per_session_threads", _flag),
    "session.use_deterministic_compute": ("use_deterministic_compute", _flag),
}
"""Keys that stand for a property of SessionOptions: its name, and how its text is read."""

KEYS: dict[str, str] = {
    **{key: f"as SessionOptions.{name}" for key, (name, _) in _PROPERTIES.items()},
    "session.load_model_format": "ONNX or unset; ORT fails, as the flatbuffer format is onnxruntime's own",
    "session.save_model_format": "ONNX or unset; ORT fails",
    "session.disable_cpu_ep_fallback": "1: fail where the CPU provider would get a node",
    "session.record_ep_graph_assignment_info": "1: keep what get_provider_graph_assignment_info() answers",
    "session.model_external_initializers_file_folder_path": "folder of the model's external data",
    "session.optimized_model_external_initializers_file_name": "data file of the optimized model, beside it",
    "session.optimized_model_external_initializers_min_size_in_bytes":
        "from which size tensors go to that file; 1024",
    "session.strict_shape_type_inference":
        "1: a contradiction in shapes or types is an error, not a warning",
    "session.allow_released_opsets_only": "1: an opset newer than the newest release is an error",
    "optimization.disable_specified_optimizers":
        "names of passes to leave out, separated by commas or semicolons",
    "optimization.constant_folding_max_output_size_in_bytes":
        "bytes one folded constant may take; 0: no bound",
    "ep.context_enable": "1: write the model with its compiled parts inside",
    "ep.context_file_path": "where to; beside the model as <name>_ctx.onnx where unset",
    "ep.context_embed_mode": "1: compiled parts are in the model; else beside it",
    "ep.context_node_name_prefix": "what the names of their nodes begin with",
    "ep.context_model_external_initializers_file_name":
        "data file for the tensors that are left, beside that model",
    "ep.context_sign": "a file with the private key that signs compiled parts",
    "ep.context_trust":
        "which compiled parts of the model may run, as they are machine code: none where unset, 1 for "
        "all, or the public keys that have to have signed them",
    "session.enable_profiling": "the prefix of a profile to write; empty: none",
    "session.graph_optimization_level":
        "disable_all, enable_basic, enable_extended, enable_layout or enable_all",
    "session.execution_mode": "sequential or parallel",
    "orthrus.dump":
        "folder that receives what orthrus.dump_what names, as ORTHRUS_DUMP for this session alone",
    "orthrus.watch": "names of values, as a JSON list, that `session.watch` shows while they are computed",
    "orthrus.dump_what": "as ORTHRUS_DUMP_WHAT: passes, parts, tensors, code or all; passes where unset",
    "orthrus.map_external_data":
        "0: read tensors outside the model file into memory instead of mapping them, as ORTHRUS_MAP=0 "
        "for this session alone",
    "session.qdq_matmulnbits_accuracy_level":
        "as the CPU provider's option qdq_matmulnbits_accuracy_level, which comes first",
    "session.intra_op_thread_affinities":
        "processors for each thread but the caller's, counted from 1, as 1,2;3-4; threads are the "
        "process's: the last session decides",
}
"""Key -> what it does."""

INERT: tuple[str, ...] = (
    "session.disable_prepacking", "session.use_env_allocators", "session.set_denormal_as_zero",
    "session.disable_quant_qdq", "session.disable_qdq_constant_folding",
    "session.disable_double_qdq_remover", "session.enable_quant_qdq_cleanup",
    "optimization.enable_gelu_approximation", "optimization.enable_cast_chain_elimination",
    "session.disable_aot_function_inlining", "optimization.memory_optimizer_config",
    "optimization.enable_memory_probe_recompute_config", "session.graph_optimizations_loop_level",
    "session.use_device_allocator_for_initializers", "session.inter_op.allow_spinning",
    "session.intra_op.allow_spinning", "session.intra_op.spin_duration_us",
    "session.inter_op.spin_duration_us", "session.intra_op.spin_backoff_max",
    "session.inter_op.spin_backoff_max", "session.use_ort_model_bytes_directly",
    "session.use_ort_model_bytes_for_initializers", "session.use_memory_mapped_ort_model",
    "session.qdqisint8allowed", "session.x64quantprecision", "optimization.minimal_build_optimizations",
    "session.enable_saved_runtime_optimizations", "session.dynamic_block_base",
    "session.force_spinning_stop", "session.node_partition_config_file",
    "session.debug_layout_transformation", "session.save_external_prepacked_constant_initializers",
    "session.collect_node_memory_stats_to_file", "session.resource_cuda_partitioning_settings",
    "session.layer_assignment_settings", "session.name_based_layer_assignment", "session.max_shape_override",
    "session.compile_only", "mlas.enable_gemm_fastmath_arm64_bfloat16", "mlas.use_lut_gemm",
    "mlas.disable_kleidiai", "mlas.kleidiai.conv_igemm_max_work",
    "mlas.nchwc_pointwise_conv_max_input_channel_batch", "session.qdq_matmulnbits_block_size",
    "session.enable_dq_matmulnbits_fusion",
    "session.disable_model_compile", "session.fail_on_suboptimal_compiled_model",
    "session.function_expansion_node_limit", "session.kernel_dispatch_policy",
    *(f"session.external_data_loader.{name}" for name in (
        "chunk_bytes", "min_size_bytes", "pinned_memory_bytes", "threads")),
    *(f"session.moe.offload.{name}" for name in (
        "allow_file_backing", "async_max_tokens", "budget_group", "cpu_execution", "cpu_threads",
        "derived_cache_dir", "device_expert_bytes", "device_working_bytes", "gpu_budget_bytes",
        "gpu_device_mem_limit", "host_expert_bytes", "host_working_bytes", "min_expert_weight", "mode",
        "node_overrides", "pinned_bytes", "placement", "popularity_file", "prefill_wave_experts",
        "reserve_device_bytes", "skip_tail_cold_only", "skip_zero_cold_doorbell", "source_root",
        "tail_substitution_min_rank", "tail_substitution_threshold")),
)

OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "ConstantFolding": ("fold_constants", "fold_shapes"),
    "CommonSubexpressionElimination": ("merge_common_subexpressions",),
    "EliminateIdentity": ("drop_identity",),
    "EliminateDropout": ("drop_identity",),
    "CastElimination": ("merge_casts",),
    "CastChainElimination": ("merge_casts",),
    "PreShapeNodeElimination": ("drop_cast_before_shape",),
    "DivMulFusion": ("fuse_div",),
    "FuseReluClip": ("fuse_relu_clip",),
    "NotWhereFusion": ("merge_not_where",),
    "ConvAddFusion": ("fuse_conv_add",),
    "ConvMulFusion": ("fuse_conv_mul",),
    "ConvBNFusion": ("fuse_conv_batch_normalization",),
    "Pad_Fusion": ("fuse_pad",),
    "MatMul_BatchNormalization_Fusion": ("fuse_matmul_batch_normalization",),
    "MatMulAddFusion": ("fuse_matmul_add", "fuse_gemm_add"),
    "GemmTransposeFusion": ("fuse_gemm_transpose",),
    "ReshapeFusion": ("merge_reshapes",),
    "GeluFusionL1": ("fuse_gelu", "fuse_gelu_tanh"),
    "GeluFusionL2": ("fuse_gelu", "fuse_gelu_tanh"),
    "FastGeluFusion": ("fuse_gelu_tanh",),
    "QuickGeluFusion": ("fuse_quick_gelu",),
    "LayerNormFusionL1": ("fuse_layer_normalization", "fuse_layer_normalization_shifted"),
    "LayerNormFusionL2": ("fuse_layer_normalization", "fuse_layer_normalization_shifted"),
    "SimplifiedLayerNormFusion": ("fuse_rms_normalization",),
    "SkipLayerNormFusion": ("fuse_skip_layer_normalization", "fuse_skip_rms_normalization"),
    "AttentionFusion": ("fuse_attention", "fuse_attention_past", "fuse_attention_heads"),
    "MatmulTransposeFusion": ("fuse_matmul_transpose", "fuse_second_transpose"),
    "MatMulScaleFusion": ("fuse_matmul_scale",),
    "TransposeOptimizer": (
        "merge_transposes", "push_transpose_unary", "push_transpose_clip", "push_transposes_binary",
        "push_transpose_constant", "push_transposes_concat", "push_transpose_softmax", "push_transpose_pad",
        "push_transpose_reduce"),
}
"""onnxruntime's names of optimizers -> the passes here that do their work; a pass's own name works as
well."""


def _read(key: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except ValueError as error:
        raise InvalidArgument(f"the value of configuration key {key!r} cannot be read: {error}", found=text,
                              expected=KEYS.get(key)) from None


def number(key: str, text: str) -> int:
    """The value of a key that is a whole number. Raises InvalidArgument."""
    return int(_read(key, text, int))


def settled(options: SessionOptions) -> SessionOptions:
    """`options` with every key that stands for a property put into that property. Raises InvalidArgument for
    a bad value, RuntimeError for a severity that is none."""
    given = options.__copy__()
    for key, (name, read) in _PROPERTIES.items():
        if key in options._entries:
            setattr(given, name, _read(key, options._entries[key], read))
    prefix = options._entries.get("session.enable_profiling")
    if prefix is not None:
        given.enable_profiling = bool(prefix)
        if prefix:
            given.profile_file_prefix = prefix
    severity = given.log_severity_level
    if not -1 <= severity <= 4:
        raise RuntimeError("Invalid session log severity level. Not a valid onnxruntime::logging::Severity "
                           f"value: {severity}")
    _pin(given)
    return given


def _pin(options: SessionOptions) -> None:
    """Keep the pool's threads on the processors that the options name."""
    key = "session.intra_op_thread_affinities"
    text, threads = options._entries.get(key), options.intra_op_num_threads
    if text and threads > 1 and len(groups := text.split(";")) != threads - 1:
        raise RuntimeError("Number of affinities does not equal to thread_pool_size minus one, affinities: "
                           f"{len(groups)}, thread_pool_size: {threads}")
    if text:
        cores = _read(key, text, _processors)
        from ..codegen.object import library
        from ..codegen.runtime.threads import pool

        if library.available() is None:
            pool().pin(cores)


def _processors(text: str) -> list[set[int]]:
    """`1,2;3-4` as sets of processors, counted from 0. Raises ValueError for another form."""
    found = []
    for group in text.split(";"):
        parts = [span.partition("-") for span in group.split(",")]
        spans = [(int(low), int(high if dash else low)) for low, dash, high in parts]
        if not all(0 < low <= high <= _PROCESSORS for low, high in spans):
            raise ValueError(f"{group!r}: processors are counted from 1")
        found.append({cpu - 1 for low, high in spans for cpu in range(low, high + 1)})
    return found


def report_keys(entries: Mapping[str, str]) -> None:
    """Say in the log which keys nobody knows, and which do nothing."""
    for key in entries:
        if key in KEYS or key.startswith("ep."):
            continue
        if key in INERT:
            log.info("configuration key %s has no effect", key)
        else:
            near = difflib.get_close_matches(key, (*KEYS, *INERT), 1)
            log.warning("unknown configuration key %r%s", key, f"; did you mean {near[0]!r}?" if near else "")


def to_shrink(text: str, known: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The devices whose arenas are to be shrunk behind a run, such as "cpu:0;gpu:0". Raises InvalidArgument
    for what is none, and, before one of them, for one that is none of those `known`; behind one these are
    passed over."""
    from ..errors import InvalidArgument

    found = list[tuple[str, int]]()
    listed = "; ".join(f"{kind}:{index}" for kind, index in known)
    for each in text.removesuffix(";").split(";") if text else ():
        kind, _, index = each.partition(":")
        if kind not in ("cpu", "gpu", *(name for name, _ in known)):
            raise InvalidArgument(f"Unsupported device specified in the memory arena shrink list: {kind}",
                                  expected=listed, cure="write cpu:0 or gpu:0")
        if not (index or "0").isdecimal():
            raise InvalidArgument(f"Unsupported device id in the memory arena shrink list: {index}",
                                  expected=listed, cure="write cpu:0 or gpu:0")
        if (kind, int(index or 0)) in known:
            found.append((kind, int(index or 0)))
        elif not found:
            raise InvalidArgument("Did not find an arena based allocator registered for device-id "
                                  f"combination in the memory arena shrink list: {each}",
                                  expected=listed or "none",
                                  cure="name a device that the session's providers keep memory of")
    return found


def skipped(names: Iterable[str], entries: Mapping[str, str]) -> frozenset[str]:
    """The passes that are to be left out, onnxruntime's names translated."""
    text = entries.get("optimization.disable_specified_optimizers", "")
    given = [*names, *(n.strip() for n in text.replace(";", ",").split(",") if n.strip())]
    return frozenset(p for name in given for p in OPTIMIZERS.get(name, (name,)))


def _reader(given: tuple[Callable[[str, OrtEpContextDataBuffer], None], int] | None
            ) -> Callable[[str], bytes] | None:
    """What gives the data of a compiled part by its name, by a user's function and how much it may be."""
    if given is None:
        return None
    from .metadata import OrtEpContextDataBuffer

    function, most = given

    def read(name: str) -> bytes:
        buffer = OrtEpContextDataBuffer._make(most)
        function(name, buffer)
        if buffer._data is None:
            raise ValueError("it allocated no buffer")
        return bytes(buffer._data)
    return read


def config(options: SessionOptions, providers: Sequence[Any], disabled: Iterable[str], limits: Any,
           fallback: str, source: Any) -> Any:
    """The engine's Config for settled options. Raises InvalidArgument for a value that cannot be read, Fail
    for what the model or the format does not have."""
    from ..limits import DEFAULT
    from ..run.config import Config

    entries = dict(options._entries)
    limits = limits or DEFAULT
    for key in ("session.load_model_format", "session.save_model_format"):
        if entries.get(key, "").upper() == "ORT":
            raise Fail("ORT model verification failed.", found=f"{key}=ORT", expected="an ONNX model",
                       cure="the ORT format is onnxruntime's own; use the ONNX model it was made from")
    key = "optimization.constant_folding_max_output_size_in_bytes"
    if key in entries:
        most = number(key, entries[key])
        limits = dataclasses.replace(limits, max_fold_bytes=most or limits.max_tensor_bytes)
    if fallback not in ("allow", "warn", "error"):
        raise ValueError(f"fallback is {fallback!r}; expected 'allow', 'warn' or 'error'")
    external = {name: v._array() for name, v in options._external.items()}
    if options._external or options._files:
        from .peek import external_arrays

        external = external_arrays(source, external, options._files)
    within, beside = threads_of(options)
    return Config(
        providers=list(providers), level=int(options.graph_optimization_level),
        skip=skipped(disabled, entries), limits=limits,
        free_dims=dict(options._dims_by_name),
        free_denotations=dict(options._dims_by_denotation),
        initializers={name: v._array() for name, v in options._initializers.items()},
        external_initializers=external,
        external_root=entries.get("session.model_external_initializers_file_folder_path"),
        parallel=options.execution_mode is ExecutionMode.ORT_PARALLEL,
        inter_op_threads=beside, intra_op_threads=within,
        fallback=fallback, optimized_model_path=options.optimized_model_filepath,
        memory_arena=options.enable_cpu_mem_arena, memory_pattern=options.enable_mem_pattern,
        memory_reuse=options.enable_mem_reuse, entries=entries,
        context_reader=_reader(options._context_reader))
