/* The keys of config entries under onnxruntime's names. A key is read where it means something here; others
 * are kept and have no effect. */
#pragma once

static const char* const kOrtSessionOptionsConfigDisablePrepacking = "session.disable_prepacking";
static const char* const kOrtSessionOptionsConfigUseEnvAllocators = "session.use_env_allocators";
static const char* const kOrtSessionOptionsConfigLoadModelFormat = "session.load_model_format";
static const char* const kOrtSessionOptionsConfigSaveModelFormat = "session.save_model_format";
static const char* const kOrtSessionOptionsConfigSetDenormalAsZero = "session.set_denormal_as_zero";
static const char* const kOrtSessionOptionsDisableQuantQDQ = "session.disable_quant_qdq";
static const char* const kOrtSessionOptionsDisableDoubleQDQRemover = "session.disable_double_qdq_remover";
static const char* const kOrtSessionOptionsEnableQuantQDQCleanup = "session.enable_quant_qdq_cleanup";
static const char* const kOrtSessionOptionsEnableGeluApproximation = "optimization.enable_gelu_approximation";
static const char* const kOrtSessionOptionsDisableAheadOfTimeFunctionInlining =
    "session.disable_aot_function_inlining";
static const char* const kOrtSessionOptionsDisableSpecifiedOptimizers =
    "optimization.disable_specified_optimizers";
static const char* const kOrtSessionOptionsUseDeviceAllocatorForInitializers =
    "session.use_device_allocator_for_initializers";
static const char* const kOrtSessionOptionsConfigAllowInterOpSpinning = "session.inter_op.allow_spinning";
static const char* const kOrtSessionOptionsConfigAllowIntraOpSpinning = "session.intra_op.allow_spinning";
static const char* const kOrtSessionOptionsConfigUseORTModelBytesDirectly =
    "session.use_ort_model_bytes_directly";
static const char* const kOrtSessionOptionsConfigUseORTModelBytesForInitializers =
    "session.use_ort_model_bytes_for_initializers";
static const char* const kOrtSessionOptionsQDQIsInt8Allowed = "session.qdqisint8allowed";
static const char* const kOrtSessionOptionsAvx2PrecisionMode = "session.x64quantprecision";
static const char* const kOrtSessionOptionsConfigMinimalBuildOptimizations =
    "optimization.minimal_build_optimizations";
static const char* const kOrtSessionOptionsConfigNnapiEpPartitioningStopOps =
    "ep.nnapi.partitioning_stop_ops";
static const char* const kOrtSessionOptionsConfigDynamicBlockBase = "session.dynamic_block_base";
static const char* const kOrtSessionOptionsConfigForceSpinningStop = "session.force_spinning_stop";
static const char* const kOrtSessionOptionsConfigStrictShapeTypeInference =
    "session.strict_shape_type_inference";
static const char* const kOrtSessionOptionsConfigStrictAllowReleasedOpsetsOnly =
    "session.allow_released_opsets_only";
static const char* const kOrtSessionOptionsConfigIntraOpThreadAffinities =
    "session.intra_op_thread_affinities";
static const char* const kOrtSessionOptionsDisableCPUEPFallback = "session.disable_cpu_ep_fallback";
static const char* const kOrtSessionOptionsOptimizedModelExternalInitializersFileName =
    "session.optimized_model_external_initializers_file_name";
static const char* const kOrtSessionOptionsOptimizedModelExternalInitializersMinSizeInBytes =
    "session.optimized_model_external_initializers_min_size_in_bytes";
static const char* const kOrtSessionOptionsModelExternalInitializersFileFolderPath =
    "session.model_external_initializers_file_folder_path";
static const char* const kOrtSessionOptionsSavePrePackedConstantInitializers =
    "session.save_external_prepacked_constant_initializers";
static const char* const kOrtSessionOptionsCollectNodeMemoryStatsToFile =
    "session.collect_node_memory_stats_to_file";
static const char* const kOrtSessionOptionsResourceCudaPartitioningSettings =
    "session.resource_cuda_partitioning_settings";
static const char* const kOrtSessionOptionsEpContextModelExternalInitializersFileName =
    "ep.context_model_external_initializers_file_name";
static const char* const kOrtSessionOptionsMlasGemmFastMathArm64Bfloat16 =
    "mlas.enable_gemm_fastmath_arm64_bfloat16";
static const char* const kOrtSessionOptionsQDQMatMulNBitsAccuracyLevel =
    "session.qdq_matmulnbits_accuracy_level";
static const char* const kOrtSessionOptionEpContextEnable = "ep.context_enable";
static const char* const kOrtSessionOptionEpContextFilePath = "ep.context_file_path";
static const char* const kOrtSessionOptionEpContextEmbedMode = "ep.context_embed_mode";
static const char* const kOrtSessionOptionEpContextNodeNamePrefix = "ep.context_node_name_prefix";
static const char* const kOrtSessionOptionShareEpContexts = "ep.share_ep_contexts";
static const char* const kOrtEpDynamicOptionsWorkloadType = "ep.dynamic.workload_type";
static const char* const kNodePartitionConfigFile = "session.node_partition_config_file";
static const char* const kDebugLayoutTransformation = "session.debug_layout_transformation";
