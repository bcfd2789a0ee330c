// From the sums that Hopper's tensor cores leave in the registers of two consumer warpgroups to Y in memory.
#pragma once

#include "epilogue_math.cuh"
#include "hopper.cuh"

constexpr int HALF = 64;  // outputs of a consumer warpgroup
constexpr int CONSUMERS = 256;

// What is done to the sums, and where they go.
struct Epilogue {
    const int* outputs;  // [pairs, 128]: row of Y, or -1
    const void* bias;
    int bias_type;       // 0 none, 1 float, 2 half, 3 bfloat16
    void* y;             // [N, m], rows `y_stride` elements apart
    long long y_stride;
    int m;
};

template <typename T>
__device__ __forceinline__ uint32_t packed(float low, float high) {
    if constexpr (__is_same(T, __half)) {
        const __half2 both = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&both);
    } else {
        const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&both);
    }
}

// The four lanes of a quad hold two columns each of four blocks of eight; afterwards each holds one whole block.
__device__ __forceinline__ void transpose_in_quad(uint32_t (&v)[4], int lane) {
    const bool odd = lane & 1, upper = lane & 2;
    const uint32_t a = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1);
    const uint32_t b = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
    if (odd) {
        v[0] = a, v[2] = b;
    } else {
        v[1] = a, v[3] = b;
    }
    const uint32_t c = __shfl_xor_sync(~0u, upper ? v[0] : v[2], 2);
    const uint32_t d = __shfl_xor_sync(~0u, upper ? v[1] : v[3], 2);
    if (upper) {
        v[0] = c, v[1] = d;
    } else {
        v[2] = c, v[3] = d;
    }
}

// The two rows of Y that a consumer thread holds pieces of, loaded long before they are needed.
struct Rows {
    int output[2];
    float bias[2];

    __device__ __forceinline__ Rows(const Epilogue& epilogue, int pair) {
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;  // of the pair's 128
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            output[part] = epilogue.outputs[pair * 2 * HALF + row + part * 8];
            bias[part] = epilogue.bias_type && output[part] >= 0 ? bias_at(epilogue.bias, epilogue.bias_type, output[part]) : 0.0f;
        }
    }
};

// Writes 32 columns from `column` on of the two rows; d: four blocks of eight columns as the tensor cores left them.
template <typename T>
__device__ __forceinline__ void store_columns(const Epilogue& epilogue, const Rows& rows, int column, const float* d) {
    const int lane = threadIdx.x % 32;
    const int at = column + lane % 4 * 8;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        T* y = static_cast<T*>(epilogue.y) + rows.output[part] * epilogue.y_stride;
        const float bias = rows.bias[part];
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = packed<T>(d[i * 4 + part * 2] + bias, d[i * 4 + part * 2 + 1] + bias);
        transpose_in_quad(v, lane);
        if (rows.output[part] >= 0 && at < epilogue.m)
            *reinterpret_cast<uint4*>(y + at) = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

// Adds up what the blocks of the cluster hold, in shared memory that the stages no longer need, and stores it; each block
// does this for every splits-th group of 32 columns.
template <typename T, int BLOCK_M>
__device__ __forceinline__ void reduce_and_store(const Epilogue& epilogue, const Rows& rows, int column, int splits, int share,
                                                 uint32_t shared, const float (&acc)[BLOCK_M / 2]) {
    const int part = rank_in_cluster() / share, first = rank_in_cluster() % share;  // blocks of our columns are `share` apart
    const uint32_t mine = shared + threadIdx.x * 16;
    constexpr int BLOCK_BYTES = CONSUMERS * 16;  // of eight columns
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");  // both halves have read all stages
#pragma unroll
    for (int block = 0; block < BLOCK_M / 8; ++block) {
        const float* d = acc + block * 4;
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(mine + block * BLOCK_BYTES), "f"(d[0]), "f"(d[1]),
                     "f"(d[2]), "f"(d[3])
                     : "memory");
    }
    cluster_sync();
#pragma unroll 1
    for (int group = part; group < BLOCK_M / 32; group += splits) {
        float d[16] = {};
        for (int other = 0; other < splits; ++other) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 v = load_from_cluster(mine + (group * 4 + i) * BLOCK_BYTES, first + other * share);
                d[i * 4] += v.x, d[i * 4 + 1] += v.y, d[i * 4 + 2] += v.z, d[i * 4 + 3] += v.w;
            }
        }
        store_columns<T>(epilogue, rows, column + group * 32, d);
    }
    cluster_sync();  // nobody ends while another reads
}
