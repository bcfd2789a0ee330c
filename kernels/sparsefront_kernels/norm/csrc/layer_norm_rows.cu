// LayerNorm or RMSNorm of the rows of a matrix in 16 bits: y = (s - mean) / sqrt(variance + eps) * weight + bias, where s is
// x + x_bias + residual, rounded; RMSNorm subtracts no mean and divides by the root mean square. Optionally also quantized to
// e4m3 with a scale per row, as in quantized/quantize.py.
//
// One to eight warps hold a row in registers, 16 bytes per lane at a time. Everything is read once, and all loads of a row are
// in flight before the first is used. Sums are in float32; the variance is computed around the mean.
#include <cuda_fp8.h>

#include "../../cuda/numbers.cuh"
#include "../../cuda/hopper.cuh"

namespace row_norm {

// norm/rows.py fills it in.
struct Arguments {
    const void* x;         // [m, d], rows `x_stride` elements apart
    const void* residual;  // likewise, or null
    const void* x_bias;    // [d]; types as `bias_at` has them
    const void* weight;
    const void* bias;
    void* sums;            // [m, d], contiguous, or null
    void* y;               // [m, d], contiguous, or null
    void* values;          // e4m3 [m, d], contiguous, or null
    float* scales;         // [m], where there are values
    long long x_stride, residual_stride;
    int x_bias_type, weight_type, bias_type, is_bfloat16;
    int m, d;              // d is a multiple of 8
    int rms, pdl;
    float eps;
};

constexpr int EIGHT = 8;  // elements of a lane at a time: sixteen bytes
constexpr float LARGEST = 448.0f, SMALLEST_SCALE = 0x1p-100f;  // largest e4m3; smallest scale

// Sixteen bytes that are read once.
__device__ __forceinline__ uint4 load_once(const void* source) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(source));
    return v;
}

// Division of rows: VECTORS times 16 bytes per lane, WARPS per row. BLOCKS: minimum per SM, which leaves the registers that the
// vectors need.
template <int VECTORS, int WARPS>
struct Shape {
    static constexpr int ROWS = WARPS < 3 ? 4 / WARPS : 1;  // per block
    static constexpr int THREADS = ROWS * WARPS * 32;
    static constexpr int BLOCKS = (VECTORS == 1 ? 1536 : VECTORS == 2 ? 1024 : 640) / THREADS;
};

// Position of a thread's vectors in a row.
template <int VECTORS, int WARPS>
struct Place {
    static constexpr int STEP = WARPS * 32 * EIGHT;
    int first, d;

    __device__ __forceinline__ int at(int i) const { return first + i * STEP; }
    __device__ __forceinline__ bool exists(int i) const { return at(i) < d; }
};

// A vector of parameters. SAME: they have x's type and are loaded early.
template <typename T, bool SAME, int VECTORS, int WARPS>
struct Parameters {
    const void* vector;
    int type;
    float absent;
    uint4 words[SAME ? VECTORS : 1];

    __device__ __forceinline__ Parameters(const void* vector, int type, float absent, const Place<VECTORS, WARPS>& place)
        : vector(vector), type(type), absent(absent) {
        if constexpr (SAME) {
            const uint32_t both = packed<T>(absent, absent);
#pragma unroll
            for (int i = 0; i < VECTORS; ++i) {
                words[i] = make_uint4(both, both, both, both);
                if (type != 0 && place.exists(i))
                    words[i] = __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(vector) + place.at(i)));
            }
        }
    }

    __device__ __forceinline__ void get(float (&v)[EIGHT], int i, const Place<VECTORS, WARPS>& place) const {
        if constexpr (SAME) {
            widen<T>(v, words[i]);
        } else {
#pragma unroll
            for (int c = 0; c < EIGHT; ++c) v[c] = type == 0 ? absent : bias_at(vector, type, place.at(i) + c);
        }
    }
};

// Sum over the lanes of all warps of a row, returned to all. memory: shared, one float per warp.
template <int WARPS, typename Combine>
__device__ __forceinline__ float over_row(float v, float* memory, Combine combine) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v = combine(v, __shfl_xor_sync(~0u, v, step));
    if constexpr (WARPS > 1) {
        const int warp = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0) memory[warp] = v;
        __syncthreads();
        v = memory[warp / WARPS * WARPS];
#pragma unroll
        for (int other = 1; other < WARPS; ++other) v = combine(v, memory[warp / WARPS * WARPS + other]);
    }
    return v;
}

__device__ __forceinline__ float sum_of(float a, float b) { return a + b; }
__device__ __forceinline__ float larger_of(float a, float b) { return fmaxf(a, b); }

// Two numbers as e4m3, the first in the lower byte; they are inside its range or NaN.
__device__ __forceinline__ uint32_t e4m3_of_two(float first, float second) {
    return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}

// Writes a row, already rounded to T, as e4m3 with its scale.
template <int VECTORS, int WARPS>
__device__ __forceinline__ void quantize_row(const Arguments& problem, float (&v)[VECTORS][EIGHT], int row, bool writes,
                                             const Place<VECTORS, WARPS>& place, float* memory) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!place.exists(i)) break;
#pragma unroll
        for (const float value : v[i])
            if (fabsf(value) < INFINITY) largest = fmaxf(largest, fabsf(value));
    }
    largest = over_row<WARPS>(largest, memory, larger_of);
    const float scale = largest == 0.0f ? 1.0f : fmaxf(__fmul_rn(largest, 1.0f / LARGEST), SMALLEST_SCALE);
    const float reciprocal = __fdiv_rn(1.0f, scale);
    if (!writes) return;
    if (place.first == 0) problem.scales[row] = scale;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!place.exists(i)) break;
#pragma unroll
        for (float& value : v[i])
            value = fabsf(value) < INFINITY ? fminf(fmaxf(__fmul_rn(value, reciprocal), -LARGEST), LARGEST) : NAN;
        const uint32_t low = e4m3_of_two(v[i][0], v[i][1]) | e4m3_of_two(v[i][2], v[i][3]) << 16;
        const uint32_t high = e4m3_of_two(v[i][4], v[i][5]) | e4m3_of_two(v[i][6], v[i][7]) << 16;
        *reinterpret_cast<uint2*>(static_cast<uint8_t*>(problem.values) + static_cast<long long>(row) * problem.d + place.at(i)) =
            make_uint2(low, high);
    }
}

// SAME: whether all given parameters have x's type.
template <typename T, int VECTORS, int WARPS, bool RESIDUAL, bool SAME>
__global__ void __launch_bounds__(Shape<VECTORS, WARPS>::THREADS, Shape<VECTORS, WARPS>::BLOCKS)
    layer_norm_rows_kernel(const __grid_constant__ Arguments problem) {
    constexpr int ROWS = Shape<VECTORS, WARPS>::ROWS;
    __shared__ float memory[3][ROWS * WARPS];
    const Place<VECTORS, WARPS> place{static_cast<int>(threadIdx.x % (WARPS * 32)) * EIGHT, problem.d};
    const int row = blockIdx.x * ROWS + threadIdx.x / (WARPS * 32);
    const bool exists = row < problem.m;
    pdl_wait();
    pdl_launch_dependents();
    if (WARPS == 1 && !exists) return;  // others meet at barriers
    uint4 words[VECTORS], more[RESIDUAL ? VECTORS : 1];
    const uint16_t* x = static_cast<const uint16_t*>(problem.x) + row * problem.x_stride;
    const uint16_t* residual = static_cast<const uint16_t*>(problem.residual) + row * problem.residual_stride;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        words[i] = make_uint4(0, 0, 0, 0);
        if (exists && place.exists(i)) words[i] = load_once(x + place.at(i));
        if constexpr (RESIDUAL) {
            more[i] = make_uint4(0, 0, 0, 0);
            if (exists && place.exists(i)) more[i] = load_once(residual + place.at(i));
        }
    }
    using Vector = Parameters<T, SAME, VECTORS, WARPS>;
    const Vector weight(problem.weight, problem.weight_type, 1.0f, place), bias(problem.bias, problem.bias_type, 0.0f, place);
    const Vector x_bias(problem.x_bias, RESIDUAL ? problem.x_bias_type : 0, 0.0f, place);
    const long long begin = static_cast<long long>(row) * problem.d;
    float v[VECTORS][EIGHT], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        widen<T>(v[i], words[i]);
        if constexpr (RESIDUAL) {
            float added[EIGHT];
            if (problem.x_bias_type != 0 && place.exists(i)) {
                x_bias.get(added, i, place);
#pragma unroll
                for (int c = 0; c < EIGHT; ++c) v[i][c] += added[c];
            }
            widen<T>(added, more[i]);
#pragma unroll
            for (int c = 0; c < EIGHT; ++c) v[i][c] += added[c];
            const uint4 rounded = narrowed<T>(v[i]);
            widen<T>(v[i], rounded);
            if (problem.sums != nullptr && exists && place.exists(i))
                *reinterpret_cast<uint4*>(static_cast<uint16_t*>(problem.sums) + begin + place.at(i)) = rounded;
        }
#pragma unroll
        for (const float value : v[i]) sum += value;  // 0 where nothing is
    }
    const float mean = problem.rms ? 0.0f : over_row<WARPS>(sum, memory[0], sum_of) / problem.d;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!place.exists(i)) break;
#pragma unroll
        for (const float value : v[i]) squares = fmaf(value - mean, value - mean, squares);
    }
    const float scale = rsqrtf(over_row<WARPS>(squares, memory[1], sum_of) / problem.d + problem.eps), shift = -mean * scale;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!place.exists(i)) break;
        float factor[EIGHT], added[EIGHT];
        weight.get(factor, i, place), bias.get(added, i, place);
#pragma unroll
        for (int c = 0; c < EIGHT; ++c) v[i][c] = fmaf(fmaf(v[i][c], scale, shift), factor[c], added[c]);
        const uint4 y = narrowed<T>(v[i]);
        if (problem.y != nullptr && exists)
            *reinterpret_cast<uint4*>(static_cast<uint16_t*>(problem.y) + begin + place.at(i)) = y;
        if (problem.values != nullptr) widen<T>(v[i], y);
    }
    if (problem.values != nullptr) quantize_row<VECTORS, WARPS>(problem, v, row, exists, place, memory[2]);
}

template <typename T, bool RESIDUAL, int VECTORS, int WARPS>
cudaError_t launch(const Arguments& problem, cudaStream_t stream) {
    using Shape = Shape<VECTORS, WARPS>;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3((problem.m + Shape::ROWS - 1) / Shape::ROWS);
    config.blockDim = dim3(Shape::THREADS);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = problem.pdl && has_pdl();
    const int own = problem.is_bfloat16 ? 3 : 2;
    const auto fits = [own](int type) { return type == 0 || type == own; };
    const bool same = fits(problem.weight_type) && fits(problem.bias_type) && fits(problem.x_bias_type);
    return cudaLaunchKernelEx(&config, same ? layer_norm_rows_kernel<T, VECTORS, WARPS, RESIDUAL, true>
                                            : layer_norm_rows_kernel<T, VECTORS, WARPS, RESIDUAL, false>,
                              problem);
}

// Measured on an H200 at 1024 features: with a residual, more warps with less to load each are 5 % faster than one that has a row,
// without one 15 % slower.
template <typename T>
cudaError_t launch(const Arguments& problem, cudaStream_t stream) {
    const int lines = (problem.d + 32 * EIGHT - 1) / (32 * EIGHT);  // vectors per lane with one warp per row
    if (problem.residual != nullptr) {
        if (lines <= 1) return launch<T, true, 1, 1>(problem, stream);
        if (lines <= 2) return launch<T, true, 1, 2>(problem, stream);
        if (lines <= 3) return launch<T, true, 1, 3>(problem, stream);
        if (lines <= 4) return launch<T, true, 1, 4>(problem, stream);
        if (lines <= 8) return launch<T, true, 2, 4>(problem, stream);
        if (lines <= 16) return launch<T, true, 2, 8>(problem, stream);
        if (lines <= 32) return launch<T, true, 4, 8>(problem, stream);
        return cudaErrorInvalidValue;
    }
    if (lines <= 1) return launch<T, false, 1, 1>(problem, stream);
    if (lines <= 2) return launch<T, false, 2, 1>(problem, stream);
    if (lines <= 3) return launch<T, false, 3, 1>(problem, stream);
    if (lines <= 4) return launch<T, false, 4, 1>(problem, stream);
    if (lines <= 8) return launch<T, false, 4, 2>(problem, stream);
    if (lines <= 16) return launch<T, false, 4, 4>(problem, stream);
    if (lines <= 32) return launch<T, false, 4, 8>(problem, stream);
    return cudaErrorInvalidValue;
}

}  // namespace row_norm

// Returns a cudaError_t. The caller checks that d is a multiple of 8, that matrices and vectors begin at a multiple of 16 bytes and
// rows are a multiple of 8 elements apart, and that there is a residual where there is x_bias or sums. More than 8192 features are an
// error.
extern "C" int sparsefront_layer_norm_rows(const row_norm::Arguments* arguments, void* stream) {
    using namespace row_norm;
    if (arguments->d < 1 || arguments->m < 1 || arguments->d % EIGHT != 0) return cudaErrorInvalidValue;
    const auto queue = static_cast<cudaStream_t>(stream);
    return arguments->is_bfloat16 ? launch<__nv_bfloat16>(*arguments, queue) : launch<__half>(*arguments, queue);
}
