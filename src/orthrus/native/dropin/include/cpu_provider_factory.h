/* Where onnxruntime declares OrtSessionOptionsAppendExecutionProvider_CPU. */
#pragma once
#include "onnxruntime_c_api.h"
