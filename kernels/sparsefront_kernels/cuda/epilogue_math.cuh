// Y = activation(sum + bias) + residual per element, in float32. The codes match common/epilogue.py.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum Activation { NONE = 0, RELU = 1, GELU = 2, GELU_TANH = 3 };

// type: 0 none, 1 float, 2 half, 3 bfloat16.
__device__ __forceinline__ float bias_at(const void* bias, int type, int output) {
    switch (type) {
        case 1: return static_cast<const float*>(bias)[output];
        case 2: return __half2float(static_cast<const __half*>(bias)[output]);
        case 3: return __bfloat162float(static_cast<const __nv_bfloat16*>(bias)[output]);
        default: return 0.0f;
    }
}

__device__ __forceinline__ float activated(float v, int activation) {
    switch (activation) {
        case RELU: return v > 0.0f || v != v ? v : 0.0f;  // NaN stays NaN, as in torch.relu
        case GELU: return 0.5f * v * (1.0f + erff(v * 0.70710678f));
        case GELU_TANH: return 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
        default: return v;
    }
}
