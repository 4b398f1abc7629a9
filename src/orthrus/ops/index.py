"""Which module defines which operators; see `define.find`. `python -m orthrus.tools.index`
writes it."""

DEFINITIONS = {
    "contrib.attention": """
        com.microsoft::Attention com.microsoft::LinearAttention com.microsoft::MRotaryEmbedding
        com.microsoft::MultiHeadAttention com.microsoft::QAttention com.microsoft::RotaryEmbedding
    """,
    "contrib.data": """
        com.microsoft::CDist com.microsoft::CropAndResize com.microsoft::DynamicTimeWarping
        com.microsoft::ExpandDims com.microsoft::GatherBlockQuantized com.microsoft::GatherND
        com.microsoft::Inverse com.microsoft::MaxpoolWithMask com.microsoft::MurmurHash3
        com.microsoft::NGramRepeatBlock com.microsoft::Pad com.microsoft::Range com.microsoft::SampleOp
        com.microsoft::SparseToDenseMatMul com.microsoft::Trilu com.microsoft::UnfoldTensor
        com.microsoft::Unique
    """,
    "contrib.decoding": """
        com.microsoft::DecoderMaskedMultiHeadAttention com.microsoft::SparseAttention
    """,
    "contrib.diffusion": """
        com.microsoft::BiasSplitGelu com.microsoft::GroupNorm com.microsoft::SkipGroupNorm
    """,
    "contrib.experts": """
        com.microsoft::MoE com.microsoft::MoEGroupRouter com.microsoft::QMoE
    """,
    "contrib.fused": """
        SimplifiedLayerNormalization com.microsoft::BiasAdd com.microsoft::BiasGelu
        com.microsoft::BiasSoftmax com.microsoft::ConvTransposeWithDynamicPads
        com.microsoft::EmbedLayerNormalization com.microsoft::FastGelu com.microsoft::FusedConv
        com.microsoft::FusedGemm com.microsoft::FusedMatMul com.microsoft::Gelu
        com.microsoft::GemmFastGelu com.microsoft::GridSample com.microsoft::NhwcConv
        com.microsoft::QEmbedLayerNormalization com.microsoft::QuickGelu
        com.microsoft::SkipLayerNormalization com.microsoft::SkipSimplifiedLayerNormalization
        com.microsoft::TransposeMatMul
    """,
    "contrib.gates": """
        com.microsoft::BranchwiseRMSNorm com.microsoft::CausalConvWithState com.microsoft::EngramGate
        com.microsoft::GatedAdd com.microsoft::GatedRMSNorm com.microsoft::HyperConnectionPostMix
        com.microsoft::HyperConnectionPreMix com.microsoft::LinearAttentionGate com.microsoft::ScaledSiLU
    """,
    "contrib.grouped_query": """
        com.microsoft::GroupQueryAttention
    """,
    "contrib.packed": """
        com.microsoft::GatherPacked
    """,
    "contrib.quant": """
        com.microsoft::DequantizeLinear com.microsoft::DynamicQuantizeMatMul com.microsoft::MatMulBnb4
        com.microsoft::MatMulFpQ4 com.microsoft::MatMulInteger16 com.microsoft::MatMulIntegerToFloat
        com.microsoft::MatMulNBits com.microsoft::NhwcMaxPool com.microsoft::QGemm
        com.microsoft::QLinearAdd com.microsoft::QLinearAveragePool com.microsoft::QLinearConcat
        com.microsoft::QLinearConv com.microsoft::QLinearGlobalAveragePool com.microsoft::QLinearLeakyRelu
        com.microsoft::QLinearMul com.microsoft::QLinearSigmoid com.microsoft::QLinearSoftmax
        com.microsoft::QLinearWhere com.microsoft::QuantizeLinear
    """,
    "contrib.recurrence": """
        com.microsoft::GatedDeltaNet com.microsoft::VarlenCausalConvWithState
    """,
    "contrib.rnn": """
        com.microsoft::AttnLSTM com.microsoft::DynamicQuantizeLSTM
    """,
    "contrib.search.operators": """
        com.microsoft::BeamSearch com.microsoft::GreedySearch com.microsoft::Sampling
        com.microsoft::WhisperBeamSearch
    """,
    "contrib.text": """
        com.microsoft::Tokenizer
    """,
    "contrib.tokens": """
        com.microsoft::BifurcationDetector com.microsoft::NGramHashMapping
        com.microsoft::VarlenNGramHashMapping com.microsoft::WordConvEmbedding
    """,
    "control": """
        If Loop Scan
    """,
    "math.arithmetic": """
        Abs Acos Acosh Add And Asin Asinh Atan Atanh Ceil Clip Cos Cosh CumProd CumSum Div Equal Erf Exp
        Floor Greater Less Log Max Mean Min Mod Mul Neg Or Pow Reciprocal Round Sign Sin Sinh Sqrt Sub Sum
        Tan Tanh Xor
    """,
    "math.linalg": """
        Det Einsum Gemm MatMul
    """,
    "math.logic": """
        And BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Equal Greater GreaterOrEqual IsInf
        IsNaN Less LessOrEqual Not Or Where Xor
    """,
    "math.reduce": """
        ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
        ReduceProd ReduceSum ReduceSumSquare
    """,
    "math.signal": """
        DFT STFT
    """,
    "ml.encoders": """
        ai.onnx.ml::ArrayFeatureExtractor ai.onnx.ml::Binarizer ai.onnx.ml::CastMap
        ai.onnx.ml::CategoryMapper ai.onnx.ml::DictVectorizer ai.onnx.ml::FeatureVectorizer
        ai.onnx.ml::Imputer ai.onnx.ml::LabelEncoder ai.onnx.ml::Normalizer ai.onnx.ml::OneHotEncoder
        ai.onnx.ml::Scaler ai.onnx.ml::ZipMap
    """,
    "ml.linear": """
        ai.onnx.ml::LinearClassifier ai.onnx.ml::LinearRegressor ai.onnx.ml::SVMClassifier
        ai.onnx.ml::SVMRegressor
    """,
    "ml.trees": """
        ai.onnx.ml::TreeEnsemble ai.onnx.ml::TreeEnsembleClassifier ai.onnx.ml::TreeEnsembleRegressor
    """,
    "nn.activation": """
        Affine Celu Dropout Elu Gelu HardSigmoid HardSwish Hardmax LeakyRelu LogSoftmax Mish PRelu
        ParametricSoftplus Relu Scale ScaledTanh Selu Shrink Sigmoid Softmax Softplus Softsign SwiGLU
        Swish ThresholdedRelu
    """,
    "nn.attention": """
        Attention RotaryEmbedding ai.onnx.preview::FlexAttention orthrus::SoftmaxAttention
    """,
    "nn.conv": """
        CausalConvWithState Col2Im Conv ConvInteger ConvTranspose DeformConv QLinearConv
    """,
    "nn.linear_attention": """
        LinearAttention
    """,
    "nn.loss": """
        NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss
    """,
    "nn.norm": """
        BatchNormalization GroupNormalization ImageScaler InstanceNormalization LayerNormalization
        LpNormalization MeanVarianceNormalization RMSNormalization
    """,
    "nn.pool": """
        AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LRN LpPool MaxPool MaxUnpool
    """,
    "nn.resize": """
        Resize Upsample
    """,
    "nn.rnn": """
        GRU LSTM RNN
    """,
    "nn.roi": """
        MaxRoiPool RoiAlign
    """,
    "nn.sampling": """
        AffineGrid CenterCropPad GridSample NonMaxSuppression
    """,
    "nn.training": """
        ai.onnx.preview.training::Adagrad ai.onnx.preview.training::Adam
        ai.onnx.preview.training::Momentum
    """,
    "sequence": """
        ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct
        SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence
    """,
    "tensor.cast": """
        Cast CastLike
    """,
    "tensor.generate": """
        Bernoulli BlackmanWindow Constant ConstantOfShape EyeLike HammingWindow HannWindow MelWeightMatrix
        Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range
    """,
    "tensor.image": """
        ImageDecoder
    """,
    "tensor.index": """
        Gather GatherElements GatherND ReverseSequence Scatter ScatterElements ScatterND TensorScatter
    """,
    "tensor.movement": """
        Concat Crop DepthToSpace DynamicSlice Expand Flatten Identity MemcpyFromHost MemcpyToHost Pad
        Reshape Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze
    """,
    "tensor.quantize": """
        DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearMatMul QuantizeLinear
    """,
    "tensor.selection": """
        Compress NonZero OneHot TopK Unique
    """,
    "tensor.text": """
        RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer
    """,
    "type_rules": """
        Crop DynamicSlice Einsum GatherND MemcpyFromHost MemcpyToHost SequenceMap
        ai.onnx.preview::FlexAttention
    """,
}

ELEMENTWISE = {
    1: """
        Abs Acos Acosh Affine Asin Asinh Atan Atanh BitwiseNot Ceil Celu Clip Cos Cosh Elu Erf Exp Floor
        Gelu HardSigmoid HardSwish IsInf IsNaN LeakyRelu Log Mish Neg Not ParametricSoftplus Reciprocal
        Relu Round Scale ScaledTanh Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan
        Tanh ThresholdedRelu
    """,
    2: """
        Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual
        Max Mean Min Mod Mul Or PRelu Pow Sub Sum SwiGLU Xor
    """,
}
"""The operators of ONNX that compute so many tensors element by element; those of any number do
two, too."""
