// From the sums that Hopper's tensor cores leave in the registers of two consumer warpgroups to Y in memory:
// Y = activation(sums + bias) + residual, feature-major or row-major.
#pragma once

#include "epilogue_math.cuh"
#include "hopper.cuh"

constexpr int HALF = 64;  // outputs of a consumer warpgroup
constexpr int CONSUMERS = 256;

// What is done to the sums, and where they go.
struct Epilogue {
    const int* outputs;    // [pairs, 128]: output, or -1
    const void* bias;      // [N]
    int bias_type;         // 0 none, 1 float, 2 half, 3 bfloat16
    int activation;
    const void* residual;  // of Y's layout, or null
    long long residual_stride;
    void* y;               // [N, m], or [m, N] where row-major; rows `y_stride` elements apart
    long long y_stride;
    int m;                 // a multiple of 8 unless Y is row-major
    int y_row_major;       // then a run of eight `outputs` from a multiple of 8 on is eight neighbours in Y's rows or -1
};

// What of it a kernel is compiled for: a kernel that may do everything is slower at doing little.
enum class Ending {
    FEATURE_MAJOR,  // bias
    ROW_MAJOR,      // bias
    ANY,            // either layout, bias, activation, residual
};

template <Ending ENDING>
__device__ __forceinline__ bool stores_by_row(const Epilogue& epilogue) {
    return ENDING == Ending::ROW_MAJOR || (ENDING == Ending::ANY && epilogue.y_row_major);
}

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

template <typename T>
__device__ __forceinline__ float2 unpacked(uint32_t both) {
    if constexpr (__is_same(T, __half)) {
        return __half22float2(*reinterpret_cast<const __half2*>(&both));
    } else {
        return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&both));
    }
}

template <typename T>
__device__ __forceinline__ void add_to(float (&sums)[8], const uint32_t (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 added = unpacked<T>(v[i]);
        sums[i * 2] += added.x, sums[i * 2 + 1] += added.y;
    }
}

// The four lanes of a quad hold two columns each of four blocks of eight; afterwards each holds one whole block. It is its
// own inverse.
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

// A block of 8 x 8 of which each quad holds a row becomes its transpose.
__device__ __forceinline__ uint32_t transposed_block(uint32_t v) {
    uint32_t t;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
    return t;
}

// The outputs that a consumer thread holds pieces of, loaded long before they are needed.
template <Ending ENDING>
struct Rows {
    int output[2];
    float bias[2];
    int first_of_run;  // where Y is row-major: of the eight outputs that this lane stores; -1 where there are none

    __device__ __forceinline__ Rows(const Epilogue& epilogue, int pair) {
        const int warp_row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;  // of the pair's 128
        const int* outputs = epilogue.outputs + pair * 2 * HALF + warp_row;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            output[part] = outputs[lane / 4 + part * 8];
            bias[part] = epilogue.bias_type && output[part] >= 0 ? bias_at(epilogue.bias, epilogue.bias_type, output[part])
                                                                 : 0.0f;
        }
        if (stores_by_row<ENDING>(epilogue)) first_of_run = outputs[lane % 2 * 8];
    }
};

// In place; as `activated`, in fewer instructions, with an error far below the rounding to 16 bits that follows: erf by
// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26 (absolute error 1.5e-7), and 0.5 (1 + tanh(u)) as
// 1 / (1 + exp(-2u)). One branch for all eight, since many branches between products cost much to compile.
__device__ __forceinline__ void activate_for_16_bits(float (&v)[8], int activation) {
    if (activation == RELU) {
#pragma unroll
        for (float& value : v) value = value > 0.0f || value != value ? value : 0.0f;  // NaN stays NaN, as in torch.relu
    } else if (activation == GELU) {
#pragma unroll
        for (float& value : v) {
            const float z = fabsf(value) * 0.70710678f;
            const float t = __fdividef(1.0f, fmaf(0.3275911f, z, 1.0f));
            float tail = fmaf(t, 1.061405429f, -1.453152027f);
            tail = fmaf(t, tail, 1.421413741f);
            tail = fmaf(t, tail, -0.284496736f);
            tail = fmaf(t, tail, 0.254829592f);
            tail *= t * __expf(-z * z);  // 1 - erf(z)
            value *= 0.5f * (value > 0.0f ? 2.0f - tail : tail);
        }
    } else if (activation == GELU_TANH) {
#pragma unroll
        for (float& value : v) {
            const float u = value * fmaf(-0.071354816f, value * value, -1.5957691f);  // -2 sqrt(2/pi) (v + 0.044715 v^3)
            value = __fdividef(value, 1.0f + __expf(u));
        }
    }
}

// 16 bytes of the residual, zeros where there are none.
template <typename T>
__device__ __forceinline__ void load_residual(const Epilogue& epilogue, uint32_t (&v)[4], bool exists, long long row, int at) {
    if (!exists) {
        v[0] = v[1] = v[2] = v[3] = 0;
        return;
    }
    const T* residual = static_cast<const T*>(epilogue.residual) + row * epilogue.residual_stride + at;
    const uint4 loaded = *reinterpret_cast<const uint4*>(residual);
    v[0] = loaded.x, v[1] = loaded.y, v[2] = loaded.z, v[3] = loaded.w;
}

template <typename T>
__device__ __forceinline__ void store_16_bytes(const Epilogue& epilogue, const uint32_t (&v)[4], long long row, int at) {
    *reinterpret_cast<uint4*>(static_cast<T*>(epilogue.y) + row * epilogue.y_stride + at) = make_uint4(v[0], v[1], v[2], v[3]);
}

// As `store_columns`, where Y is [N, m]: a lane stores eight columns of one output.
template <typename T, Ending ENDING>
__device__ __forceinline__ void store_by_output(const Epilogue& epilogue, const Rows<ENDING>& rows, int column,
                                                const float* d) {
    const int lane = threadIdx.x % 32;
    const int at = column + lane % 4 * 8;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        const bool exists = rows.output[part] >= 0 && at < epilogue.m;
        float sums[8];  // two columns each of four blocks of eight
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] = d[i / 2 * 4 + part * 2 + i % 2] + rows.bias[part];
        uint32_t v[4];
        if constexpr (ENDING == Ending::ANY) {
            activate_for_16_bits(sums, epilogue.activation);
            if (epilogue.residual != nullptr) {
                load_residual<T>(epilogue, v, exists, rows.output[part], at);
                transpose_in_quad(v, lane);
                add_to<T>(sums, v);
            }
        }
#pragma unroll
        for (int block = 0; block < 4; ++block) v[block] = packed<T>(sums[block * 2], sums[block * 2 + 1]);
        transpose_in_quad(v, lane);
        if (exists) store_16_bytes<T>(epilogue, v, rows.output[part], at);
    }
}

// As `store_columns`, where Y is [m, N]: a lane stores eight neighbouring outputs of one column, and two lanes a sector.
template <typename T, Ending ENDING>
__device__ __forceinline__ void store_by_row(const Epilogue& epilogue, const Rows<ENDING>& rows, int column, const float* d) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < 4; first += 2) {
        const int row = column + (first + lane % 4 / 2) * 8 + lane / 4;
        const bool exists = rows.first_of_run >= 0 && row < epilogue.m;
        float sums[8];  // of two blocks of eight columns, and of each the first eight and the last eight outputs
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] = d[(first + i / 4) * 4 + i % 4] + rows.bias[i / 2 % 2];
        uint32_t v[4];
        if constexpr (ENDING == Ending::ANY) {
            activate_for_16_bits(sums, epilogue.activation);
            if (epilogue.residual != nullptr) {
                load_residual<T>(epilogue, v, exists, row, rows.first_of_run);
                transpose_in_quad(v, lane);
#pragma unroll
                for (int block = 0; block < 4; ++block) v[block] = transposed_block(v[block]);
                add_to<T>(sums, v);
            }
        }
#pragma unroll
        for (int block = 0; block < 4; ++block)
            v[block] = transposed_block(packed<T>(sums[block * 2], sums[block * 2 + 1]));
        transpose_in_quad(v, lane);
        if (exists) store_16_bytes<T>(epilogue, v, row, rows.first_of_run);
    }
}

// Writes 32 columns from `column` on of a warp's 16 outputs; d: four blocks of eight columns as the tensor cores left them.
template <typename T, Ending ENDING>
__device__ __forceinline__ void store_columns(const Epilogue& epilogue, const Rows<ENDING>& rows, int column, const float* d) {
    if (stores_by_row<ENDING>(epilogue)) {
        store_by_row<T, ENDING>(epilogue, rows, column, d);
    } else {
        store_by_output<T, ENDING>(epilogue, rows, column, d);
    }
}

// Adds up what `splits` blocks of the cluster hold, in shared memory that the stages no longer need, and stores it. The
// traffic between the blocks is what takes time, so each takes the same share: every splits-th of the pieces that a warp
// stores at once.
template <typename T, int BLOCK_M, Ending ENDING>
__device__ __forceinline__ void reduce_and_store(const Epilogue& epilogue, const Rows<ENDING>& rows, int column, int splits, int share,
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
    const int warp = threadIdx.x / 32;
#pragma unroll 1
    for (int group = 0; group < BLOCK_M / 32; ++group) {
        if ((group * (CONSUMERS / 32) + warp) % splits != part) continue;
        float d[16] = {};
#pragma unroll 2
        for (int other = 0; other < splits; ++other) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 v = load_from_cluster(mine + (group * 4 + i) * BLOCK_BYTES, first + other * share);
                d[i * 4] += v.x, d[i * 4 + 1] += v.y, d[i * 4 + 2] += v.z, d[i * 4 + 3] += v.w;
            }
        }
        store_columns<T, ENDING>(epilogue, rows, column + group * 32, d);
    }
    cluster_sync();  // nobody ends while another reads
}
