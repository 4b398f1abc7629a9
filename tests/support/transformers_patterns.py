"""Names of onnxruntime.transformers' fusions that are left out here: steps of its matching, which rules
replace. In: nothing. Out: reason → names, those of a class's members behind the class."""

from __future__ import annotations

_STEPS = {
    "fusion_attention.AttentionMask": "set_mask_indice get_first_mask process_mask",
    "fusion_attention.FusionAttention":
        "get_num_heads_and_hidden_size_from_concat get_num_heads_and_hidden_size get_add_qk_str "
        "reshape_add_qk concat_kv split_kv create_combined_qkv_bias create_packed_qkv_matmul_node "
        "create_multihead_attention_node create_attention_node",
    "fusion_attention_clip.FusionAttentionClip": "get_num_heads_and_hidden_size fuse",
    "fusion_attention_sam2.FusionMultiHeadAttentionSam2":
        "get_decoder_num_heads get_encoder_num_heads get_hidden_size get_num_heads_and_hidden_size "
        "create_attention_node fuse match_attention_subgraph fuse_sam_encoder_pattern "
        "match_sam_encoder_attention_subgraph create_mha_node",
    "fusion_attention_unet.FusionAttentionUnet":
        "get_num_heads get_hidden_size get_num_heads_and_hidden_size create_attention_node "
        "create_attention_node_lora fuse match_qkv_torch1 match_qkv_torch2 match_qkv_torch1_lora "
        "match_qkv_torch2_lora match_lora_path fuse_a1111_fp16 match_qkv_a1111",
    "fusion_attention_vae.FusionAttentionVae": "get_num_heads_and_hidden_size create_attention_node fuse",
    "fusion_bart_attention.FusionBartAttention": "fuse",
    "fusion_bias_add.FusionBiasAdd": "fuse",
    "fusion_biassplitgelu.FusionBiasSplitGelu": "fuse",
    "fusion_conformer_attention.FusionConformerAttention": "fuse",
    "fusion_constant_fold.FusionConstantFold": "fuse_1 fuse_2",
    "fusion_embedlayer.FusionEmbedLayerNoMask":
        "match_two_gather check_attention_subgraph match_position_embedding_distilbert "
        "match_position_embedding_roberta match_position_embedding_bert match_position_embedding "
        "check_embedding cast_to_int32 create_fused_node finish_fusion is_skip_layer_norm_with_sum_output "
        "fuse_gpt2 fuse_distilbert fuse_bert",
    "fusion_embedlayer.FusionEmbedLayerNormalization": "replace_mask",
    "fusion_fastgelu.FusionFastGelu": "fuse fuse_1 fuse_2 fuse_3 fuse_4",
    "fusion_gelu.FusionGelu": "fuse fuse_1 fuse_2 fuse_3",
    "fusion_gemmfastgelu.FusionGemmFastGelu": "get_dimensions_from_tensor_proto get_dimensions",
    "fusion_gpt_attention.FusionGptAttention": "create_attention_node fuse",
    "fusion_gpt_attention_megatron.FusionGptAttentionMegatron": "fuse_attention_node match_mask fuse",
    "fusion_gpt_attention_no_past.FusionGptAttentionNoPast": "create_attention_node fuse",
    "fusion_group_norm.FusionGroupNorm": "fuse",
    "fusion_mha_dit.FusionMultiHeadAttentionDiT":
        "get_scale_from_mul get_data_input_of_mul detect_num_heads detect_num_heads_from_input_shape "
        "detect_num_heads_from_output reshape_to_3d transpose_bnsh_to_bsnh transpose_bnhs_to_bnsh "
        "create_multihead_attention_node",
    "fusion_mha_mmdit.FusionMultiHeadAttentionMMDit":
        "get_num_heads get_num_heads_from_k reshape_to_3d adjust_query_from_bnsh_to_bsd_no_concat "
        "adjust_query_from_bnsh_to_bsd update_unsqueeze_axes_1_to_2 update_unsqueeze_axes "
        "adjust_flux_query_from_bnsh_to_bsd adjust_flux_single_query_from_bnsh_to_bsd "
        "transpose_reshape_bnsh_to_bsd create_multihead_attention_node",
    "fusion_nhwc_conv.FusionNhwcConv": "create_transpose_node fuse",
    "fusion_reshape.FusionReshape": "replace_reshape_node fuse",
    "fusion_rotary_attention.FusionRotaryAttention":
        "create_mha_node check_runtime_shape_paths_for_function check_runtime_shape_paths_for_nodes fuse",
    "fusion_rotary_attention.FusionRotaryEmbeddings":
        "reassign_extra_outputs create_rotary_embeddings_from_function "
        "create_rotary_embeddings_from_nodes create_cos_sin_cache_from_on_the_fly_rope",
    "fusion_shape.FusionShape": "get_dimensions_from_tensor_proto get_dimensions fuse",
    "fusion_skip_group_norm.FusionSkipGroupNorm":
        "create_transpose_node get_skip_index has_multiple_consumers remove_if_safe is_bias_1d "
        "match_bias_path match_transpose_from_nhwc",
    "fusion_skiplayernorm.FusionSkipLayerNormalization": "get_skip_index",
    "fusion_transpose.FusionTranspose": "fuse",
    "onnx_model_bert_keras.BertOnnxModelKeras":
        "match_mask_path check_attention_input skip_reshape fuse_embedding process_embedding fuse_mask "
        "remove_extra_reshape remove_extra_reshape_2",
    "onnx_model_bert_tf.BertOnnxModelTF":
        "match_mask_path get_2d_initializers_from_parent_subgraphs find_segment_ids find_input_ids "
        "find_mask_input create_embedding_subgraph process_embedding check_attention_input skip_reshape "
        "remove_reshape_before_first_attention",
    "onnx_model_t5.FusionT5Attention": "make_attention_node create_mha_node fuse_t5_encoder fuse_t5_decoder",
    "onnx_model_t5.T5OnnxModel":
        "adjust_rel_pos_bis_length_input remove_extended_mask_decoder_init remove_extended_mask_decoder",
    "onnx_model_tnlr.FusionTnlrAttention": "create_attention_node fuse",
}
"""Class → members that match one exporter's pattern, or serve those that do."""

_CLASSES = (
    "fusion_gpt_attention.FusionGptAttentionPastBase fusion_gpt_attention_megatron.is_close "
    "fusion_layernorm.FusionLayerNormalizationNCHW fusion_transpose.FusionInsertTranspose "
    "onnx_model_bart.FusionBartReshape onnx_model_phi.ProcessGemmWFunc "
    "onnx_model_phi.ProcessMatMulQFunc onnx_model_phi.ProcessMatMulKFunc "
    "onnx_model_phi.ProcessMatMulVFunc onnx_model_phi.ProcessBiasQFunc onnx_model_phi.ProcessBiasKFunc "
    "onnx_model_phi.ProcessBiasVFunc onnx_model_phi.ProcessRotCacheFunc onnx_model_phi.Fission "
    "onnx_model_phi.Phi2PreProcessor onnx_model_phi.FissionTransformerEmbeddingPhi "
    "onnx_model_phi.FissionTransformerLayerNormPhi onnx_model_phi.FissionTransformerCausalLMHeadPhi "
    "onnx_model_phi.FissionTransformerBlockPhi onnx_model_t5.FusionRelativePositionBiasBlock "
)

PATTERNS = {
    "matches one exporter's pattern, which rules over one normal form replace":
        [f"{kind}.{member}" for kind, members in _STEPS.items() for member in members.split()]
        + _CLASSES.split(),
    "writes operators on ordered bytes, which only a GPU computes":
        ["fusion_qordered_attention", "fusion_qordered_gelu",
         "fusion_qordered_layernorm", "fusion_qordered_matmul",
         "onnx_model_bert.BertOnnxModel.fuse_qordered_mamtul"],
    "sizes are fixed by orthrus.tools.make_dynamic_shape_fixed, and folded by optimize_model":
        ["shape_optimizer"],
    "a path of its installation": ["shape_infer_helper.file_path"],
}
