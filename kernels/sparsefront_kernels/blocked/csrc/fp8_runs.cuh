// Y from sums in shared memory, a run of eight outputs a thread: where blocks share the k-blocks of a tile.
#pragma once

#include "fp8_store.cuh"

namespace {

constexpr int ROW_FLOATS = OUTPUTS + 8;  // of sums in shared memory: rows of a warp's store begin in different banks
constexpr int RUN = 8, RUNS = OUTPUTS / RUN;  // a thread finishes runs of eight outputs

// Eight neighbouring outputs of a CTA tile, which a thread finishes in several rows.
struct Run {
    int number, output;  // among the tile's; the first one, or -1
    float4 scales[2];
    uint32_t stored_bias[RUN];

    __device__ __forceinline__ explicit Run(const Tile& tile) : number(threadIdx.x % RUNS), scales{}, stored_bias{} {
        const int first = tile.output(number * RUN / HALF);
        output = first < 0 ? -1 : first + number * RUN % HALF;
    }

    // What its outputs are multiplied by and added to.
    __device__ __forceinline__ void load(const Problem& problem) {
        if (output < 0) return;
#pragma unroll
        for (int four = 0; four < 2; ++four) scales[four] = load_early(reinterpret_cast<const float4*>(problem.w_scales + output) + four);
#pragma unroll
        for (int i = 0; i < RUN; ++i) stored_bias[i] = load_bias(problem.epilogue, output + i);
    }

    // Sums of a row become numbers of Y.
    __device__ __forceinline__ void finish(const Epilogue& epilogue, float x_scale, float (&v)[RUN]) const {
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            const float4& four = scales[i / 4];
            const float scale = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
            v[i] = fmaf(v[i] * x_scale, scale, bias_of(epilogue, stored_bias[i]));
        }
        if (epilogue.activation != NONE) activate_for_16_bits(v, epilogue);
    }
};

template <typename T>
__device__ __forceinline__ void store_run(const Problem& problem, const Run& run, int row, float (&v)[RUN]) {
    const bool exists = run.output >= 0 && row < problem.m;
    if constexpr (IS_QUANTIZED<T>) {
        float size = 0.0f;
#pragma unroll
        for (float value : v) size = fmaxf(size, fabsf(value));
        const float scale = scale_of(largest_size<RUNS, RUN>(size, v, 0, 2)), reciprocal = __frcp_rn(scale);
#pragma unroll
        for (float& value : v) value *= reciprocal;
        uint32_t words[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
            words[i] = packed_e4m3(v[4 * i], v[4 * i + 1]) | packed_e4m3(v[4 * i + 2], v[4 * i + 3]) << 16;
        if (!exists) return;
        uint8_t* y = static_cast<uint8_t*>(problem.epilogue.y) + row * problem.epilogue.y_stride + run.output;
        *reinterpret_cast<uint2*>(y) = make_uint2(words[0], words[1]);
        if (run.number == 0)
            problem.y_scales[static_cast<int64_t>(row) * (problem.n / OUTPUTS) + run.output / OUTPUTS] = scale;
    } else {
        if (!exists) return;
        uint32_t words[4];
        if (problem.epilogue.residual != nullptr) {
            const T* residual = static_cast<const T*>(problem.epilogue.residual) + row * problem.epilogue.residual_stride + run.output;
            const uint4 found = *reinterpret_cast<const uint4*>(residual);
            const uint32_t of[4] = {found.x, found.y, found.z, found.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 both = unpacked<T>(of[i]);
                v[2 * i] += both.x, v[2 * i + 1] += both.y;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = packed<T>(v[2 * i], v[2 * i + 1]);
        T* y = static_cast<T*>(problem.epilogue.y) + row * problem.epilogue.y_stride + run.output;
        *reinterpret_cast<uint4*>(y) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

}  // namespace
