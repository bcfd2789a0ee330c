// LayerNorm of the columns of a feature-major matrix in 16 bits: y = (s - mean) / sqrt(variance + eps) * weight + bias, where s is
// x + x_bias + residual, rounded. Read once, held in registers, added up in float32.
//
// A block owns 16 columns, a thread eight neighbouring ones of every 256th feature, so that what all of them load is on its way at
// once: it is memory that takes the time. The sums of a column are made in the same order in every run.
#include "../../cuda/epilogue_math.cuh"
#include "../../cuda/hopper.cuh"
#include "../../cuda/pairs.cuh"

namespace layer_norm {

// norm/cuda_norm.py fills it in.
struct Arguments {
    const void* x;         // [d, m], rows `x_stride` elements apart
    const void* residual;  // likewise, or null
    const void* x_bias;    // [d]; types as `bias_at` has them
    const void* weight;
    const void* bias;
    void* sums;            // [d, m], contiguous, or null
    void* y;               // [d, m], contiguous
    long long x_stride, residual_stride;
    int x_bias_type, weight_type, bias_type, is_bfloat16;
    int d, m;              // m is a multiple of 8
    int pdl;
    float eps;
};

}  // namespace layer_norm

namespace {

using layer_norm::Arguments;

constexpr int THREADS = 512, WARPS = THREADS / 32;
constexpr int EIGHT = 8;                               // columns of a thread
constexpr int EIGHTS = 2, COLUMNS = EIGHTS * EIGHT;    // of a block: a sector of a row
constexpr int FEATURES_AT_A_TIME = THREADS / EIGHTS;
constexpr int MOST_FEATURES = 5 * FEATURES_AT_A_TIME;  // what registers hold of a column
static_assert(WARPS == COLUMNS);                       // each adds up a column

// A vector over the features as the threads of a block read it, in shared memory.
__device__ __forceinline__ void load_vector(float (&v)[MOST_FEATURES], const void* vector, int type, float otherwise, int d) {
#pragma unroll 1
    for (int feature = threadIdx.x; feature < d; feature += THREADS) v[feature] = type == 0 ? otherwise : bias_at(vector, type, feature);
}

template <typename T, int FEATURES>
__device__ __forceinline__ void load_rows(uint4 (&v)[FEATURES], const void* matrix, long long stride, int first, int column, bool exists,
                                          int d) {
    const T* place = static_cast<const T*>(matrix) + first * stride + column;
#pragma unroll
    for (int i = 0; i < FEATURES; ++i) {
        v[i] = make_uint4(0, 0, 0, 0);
        if (exists && first + i * FEATURES_AT_A_TIME < d) v[i] = *reinterpret_cast<const uint4*>(place);
        place += FEATURES_AT_A_TIME * stride;
    }
}

template <typename T>
__device__ __forceinline__ void store_row(const uint4& v, void* matrix, int feature, int column, int m) {
    *reinterpret_cast<uint4*>(static_cast<T*>(matrix) + static_cast<long long>(feature) * m + column) = v;
}

template <typename T>
__device__ __forceinline__ void widen(float (&v)[EIGHT], const uint4& words) {
    const uint32_t pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int pair = 0; pair < EIGHT / 2; ++pair) {
        const float2 two = unpacked<T>(pairs[pair]);
        v[2 * pair] = two.x, v[2 * pair + 1] = two.y;
    }
}

template <typename T>
__device__ __forceinline__ uint4 rounded(const float (&v)[EIGHT]) {
    return make_uint4(packed<T>(v[0], v[1]), packed<T>(v[2], v[3]), packed<T>(v[4], v[5]), packed<T>(v[6], v[7]));
}

// Ends what is done with a feature's numbers: they stay as words, and nothing of the next ones is loaded or widened ahead, which
// would take more registers than there are.
__device__ __forceinline__ void finish(uint4& words) {
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w)::"memory");
}

// The sum over all threads of a block that have the same columns.
__device__ __forceinline__ void sum_of_columns(float (&v)[EIGHT], float (&of_warps)[WARPS][COLUMNS + 1], float (&total)[COLUMNS]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, eight = lane % EIGHTS;
    // Of lanes that differ in one bit each keeps half of the columns, until it has one.
#pragma unroll
    for (int step = 0; step < 3; ++step) {
        const int count = EIGHT / 2 >> step;
        const bool upper = lane >> (step + 1) & 1;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const float kept = upper ? v[i + count] : v[i], given = upper ? v[i] : v[i + count];
            v[i] = kept + __shfl_xor_sync(~0u, given, EIGHTS << step);
        }
    }
    v[0] += __shfl_xor_sync(~0u, v[0], 16);
    const int column = (lane >> 1 & 1) * 4 + (lane >> 2 & 1) * 2 + (lane >> 3 & 1);
    if (lane < 16) of_warps[warp][eight * EIGHT + column] = v[0];
    __syncthreads();
    float sum = of_warps[lane % WARPS][warp];
#pragma unroll
    for (int step = 1; step < WARPS; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == 0) total[warp] = sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EIGHT; ++i) v[i] = total[eight * EIGHT + i];
}

template <typename T, int FEATURES, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, 2) layer_norm_columns_kernel(const Arguments problem) {
    __shared__ float weight[MOST_FEATURES], bias[MOST_FEATURES], x_bias[MOST_FEATURES];
    __shared__ float of_warps[2][WARPS][COLUMNS + 1];
    __shared__ alignas(16) float total[2][COLUMNS];
    const int first = threadIdx.x / EIGHTS, column = blockIdx.x * COLUMNS + threadIdx.x % EIGHTS * EIGHT;
    const int d = problem.d, m = problem.m;
    const bool exists = column < m;
    const float part = 1.0f / static_cast<float>(d);
    pdl_wait();  // parameters too may have been written just now
    pdl_launch_dependents();
    uint4 s[FEATURES], residual[FEATURES];
    load_rows<T>(s, problem.x, problem.x_stride, first, column, exists, d);
    if constexpr (RESIDUAL) {
        load_rows<T>(residual, problem.residual, problem.residual_stride, first, column, exists, d);
        load_vector(x_bias, problem.x_bias, problem.x_bias_type, 0.0f, d);
    }
    load_vector(weight, problem.weight, problem.weight_type, 1.0f, d);
    load_vector(bias, problem.bias, problem.bias_type, 0.0f, d);
    if constexpr (RESIDUAL) __syncthreads();

    float sum[EIGHT] = {}, scale[EIGHT] = {};
#pragma unroll
    for (int i = 0; i < FEATURES; ++i) {
        const int feature = first + i * FEATURES_AT_A_TIME;
        if (feature >= d) break;
        float v[EIGHT];
        widen<T>(v, s[i]);
        if constexpr (RESIDUAL) {
            float added[EIGHT];
            widen<T>(added, residual[i]);
#pragma unroll
            for (int c = 0; c < EIGHT; ++c) v[c] = v[c] + x_bias[feature] + added[c];
            s[i] = rounded<T>(v);
            widen<T>(v, s[i]);
            if (problem.sums != nullptr && exists) store_row<T>(s[i], problem.sums, feature, column, m);
        }
#pragma unroll
        for (int c = 0; c < EIGHT; ++c) sum[c] += v[c];
        finish(s[i]);
    }
    sum_of_columns(sum, of_warps[0], total[0]);
#pragma unroll
    for (float& mean : sum) mean *= part;
#pragma unroll
    for (int i = 0; i < FEATURES; ++i) {
        if (first + i * FEATURES_AT_A_TIME >= d) break;
        float v[EIGHT];
        widen<T>(v, s[i]);
#pragma unroll
        for (int c = 0; c < EIGHT; ++c) scale[c] += (v[c] - sum[c]) * (v[c] - sum[c]);
        finish(s[i]);
    }
    sum_of_columns(scale, of_warps[1], total[1]);
#pragma unroll
    for (float& variance : scale) variance = rsqrtf(variance * part + problem.eps);
    if (!exists) return;
#pragma unroll
    for (int i = 0; i < FEATURES; ++i) {
        const int feature = first + i * FEATURES_AT_A_TIME;
        if (feature >= d) break;
        float v[EIGHT];
        widen<T>(v, s[i]);
#pragma unroll
        for (int c = 0; c < EIGHT; ++c) v[c] = (v[c] - sum[c]) * scale[c] * weight[feature] + bias[feature];
        store_row<T>(rounded<T>(v), problem.y, feature, column, m);
        finish(s[i]);
    }
}

template <typename T, int FEATURES>
cudaError_t launch(const Arguments& problem, cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3((problem.m + COLUMNS - 1) / COLUMNS);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = problem.pdl;
    const auto kernel = problem.residual == nullptr ? layer_norm_columns_kernel<T, FEATURES, false>
                                                    : layer_norm_columns_kernel<T, FEATURES, true>;
    return cudaLaunchKernelEx(&config, kernel, problem);
}

template <typename T>
cudaError_t launch(const Arguments& problem, cudaStream_t stream) {
    switch ((problem.d + FEATURES_AT_A_TIME - 1) / FEATURES_AT_A_TIME) {
        case 1: return launch<T, 1>(problem, stream);
        case 2: return launch<T, 2>(problem, stream);
        case 3: return launch<T, 3>(problem, stream);
        case 4: return launch<T, 4>(problem, stream);
        default: return launch<T, 5>(problem, stream);
    }
}

}  // namespace

// Returns a cudaError_t. The caller checks that d is between 1 and 1280, m a multiple of 8, all matrices begin at a multiple of 16
// bytes and rows are a multiple of 8 elements apart, and that there is a residual where there is x_bias or sums.
extern "C" int sparsefront_layer_norm_columns(const Arguments* arguments, void* stream) {
    if (arguments->d < 1 || arguments->d > MOST_FEATURES || arguments->m % EIGHT != 0) return cudaErrorInvalidValue;
    const auto queue = static_cast<cudaStream_t>(stream);
    return arguments->is_bfloat16 ? launch<__nv_bfloat16>(*arguments, queue) : launch<__half>(*arguments, queue);
}
