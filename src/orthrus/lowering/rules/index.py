"""Which module has the rules of which operators; see `rule_sets`. `python -m orthrus.tools.index`
writes it."""

RULES_BY_MODULE = {
    "attention": """
        Attention RotaryEmbedding com.microsoft::MultiHeadAttention com.microsoft::RotaryEmbedding
        orthrus::SoftmaxAttention
    """,
    "attention_contrib": """
        com.microsoft::Attention com.microsoft::QAttention
    """,
    "contrib.decoding": """
        com.microsoft::DecoderMaskedMultiHeadAttention com.microsoft::GroupQueryAttention
        com.microsoft::MRotaryEmbedding com.microsoft::SparseAttention
    """,
    "contrib.diffusion": """
        com.microsoft::BiasAdd com.microsoft::BiasSplitGelu com.microsoft::GroupNorm
        com.microsoft::SkipGroupNorm
    """,
    "contrib.embedding": """
        com.microsoft::EmbedLayerNormalization
    """,
    "contrib.experts": """
        com.microsoft::MoE com.microsoft::QMoE
    """,
    "contrib.gates": """
        com.microsoft::BranchwiseRMSNorm com.microsoft::CausalConvWithState com.microsoft::GatedRMSNorm
        com.microsoft::HyperConnectionPostMix com.microsoft::HyperConnectionPreMix
        com.microsoft::LinearAttentionGate
    """,
    "contrib.hashing": """
        com.microsoft::MurmurHash3 com.microsoft::NGramRepeatBlock
    """,
    "conv": """
        Conv ConvTranspose com.microsoft::FusedConv com.microsoft::NhwcConv
    """,
    "einsum": """
        Einsum
    """,
    "elementwise": """
        BatchNormalization Cast CastLike Div Dropout Identity MemcpyFromHost MemcpyToHost Mod
    """,
    "few_bits": """
        com.microsoft::GatherBlockQuantized com.microsoft::MatMulBnb4 com.microsoft::MatMulFpQ4
        com.microsoft::MatMulNBits
    """,
    "gather": """
        CumProd CumSum DepthToSpace Gather GatherElements GatherND Pad Scatter ScatterElements ScatterND
        SpaceToDepth Tile com.microsoft::Pad
    """,
    "grid_sample": """
        DeformConv GridSample MaxRoiPool RoiAlign com.microsoft::GridSample
    """,
    "linear": """
        ai.onnx.ml::ArrayFeatureExtractor ai.onnx.ml::LinearClassifier ai.onnx.ml::LinearRegressor
        ai.onnx.ml::Normalizer ai.onnx.ml::Scaler
    """,
    "matmul": """
        Gemm MatMul com.microsoft::FusedGemm com.microsoft::FusedMatMul com.microsoft::TransposeMatMul
        steps::product steps::product_then
    """,
    "move": """
        Concat Expand Flatten Reshape Slice Split Squeeze Transpose Unsqueeze
    """,
    "norm": """
        GroupNormalization InstanceNormalization LRN
    """,
    "places": """
        Col2Im MaxUnpool ReverseSequence TensorScatter
    """,
    "pool": """
        AveragePool LpPool MaxPool
    """,
    "quantized.int8_movement": """
        on_bytes::Concat on_bytes::DepthToSpace on_bytes::Expand on_bytes::Flatten on_bytes::Gather
        on_bytes::GatherElements on_bytes::GatherND on_bytes::GlobalMaxPool on_bytes::Identity
        on_bytes::MaxPool on_bytes::Reshape on_bytes::Resize on_bytes::Slice on_bytes::SpaceToDepth
        on_bytes::Split on_bytes::Squeeze on_bytes::Tile on_bytes::Transpose on_bytes::Unsqueeze
        on_bytes::Upsample
    """,
    "quantized.int8_operators": """
        ConvInteger DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul
        com.microsoft::DynamicQuantizeMatMul com.microsoft::MatMulIntegerToFloat com.microsoft::QGemm
        com.microsoft::QLinearConv
    """,
    "quantized.qlinear": """
        QuantizeLinear com.microsoft::NhwcMaxPool com.microsoft::QLinearAdd
        com.microsoft::QLinearAveragePool com.microsoft::QLinearConcat
        com.microsoft::QLinearGlobalAveragePool com.microsoft::QLinearLeakyRelu com.microsoft::QLinearMul
        com.microsoft::QLinearSigmoid com.microsoft::QLinearSoftmax
    """,
    "quantized.quantize": """
        DequantizeLinear QuantizeLinear com.microsoft::DequantizeLinear com.microsoft::QuantizeLinear
    """,
    "reduce": """
        ArgMax ArgMin GlobalAveragePool GlobalLpPool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum
        ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare steps::fold
    """,
    "resize": """
        Resize Upsample
    """,
    "rnn": """
        GRU LSTM RNN com.microsoft::DynamicQuantizeLSTM
    """,
    "rows": """
        Hardmax LayerNormalization LogSoftmax LpNormalization MeanVarianceNormalization RMSNormalization
        SimplifiedLayerNormalization Softmax com.microsoft::SkipLayerNormalization
        com.microsoft::SkipSimplifiedLayerNormalization steps::rows
    """,
    "selection": """
        EyeLike OneHot TopK Trilu com.microsoft::Trilu
    """,
    "solve": """
        Det com.microsoft::Inverse
    """,
    "tree_ensemble": """
        ai.onnx.ml::TreeEnsemble ai.onnx.ml::TreeEnsembleClassifier ai.onnx.ml::TreeEnsembleRegressor
    """,
}
