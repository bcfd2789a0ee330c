// Epilogue of two consumer warpgroups: takes the wgmma accumulators from registers to global memory, as Y =
// activation(sums + bias) + residual, feature-major or row-major.
#pragma once

#include "numbers.cuh"
#include "hopper.cuh"

constexpr int HALF = 64;  // outputs per consumer warpgroup
constexpr int CONSUMERS = 256;

// Parameters of the epilogue.
struct Epilogue {
    const int* outputs;    // [cta_tiles, 128]: output index, or -1 for padding
    const void* bias;      // [N]
    int bias_type;         // 0 none, 1 float, 2 half, 3 bfloat16
    int activation;
    float gelu[3];         // coefficients for `gelu_for_16_bits`, if the activation is a GELU
    const void* residual;  // same layout as Y, or null
    long long residual_stride;
    void* y;               // [N, m], or [m, N] if row-major; row stride `y_stride` in elements
    long long y_stride;
    int m;                 // a multiple of 8 unless Y is row-major
    // if set, each aligned group of eight `outputs` is eight consecutive columns of Y, or all -1
    int y_row_major;
};

// What a kernel instantiation includes. Code that is compiled in costs registers and time even if it never runs. Every
// kind adds the bias.
enum class EpilogueKind {
    FEATURE_MAJOR,
    ROW_MAJOR,
    FEATURE_MAJOR_RESIDUAL,  // accumulators are initialized with the residual; no activation
    ROW_MAJOR_RESIDUAL,
    FEATURE_MAJOR_ACTIVATED,  // residual, if any, added after the activation
    ROW_MAJOR_ACTIVATED,
};

constexpr __host__ __device__ bool stores_by_row(EpilogueKind kind) {
    return kind == EpilogueKind::ROW_MAJOR || kind == EpilogueKind::ROW_MAJOR_RESIDUAL || kind == EpilogueKind::ROW_MAJOR_ACTIVATED;
}

constexpr __host__ __device__ bool begins_with_residual(EpilogueKind kind) {
    return kind == EpilogueKind::FEATURE_MAJOR_RESIDUAL || kind == EpilogueKind::ROW_MAJOR_RESIDUAL;
}

constexpr __host__ __device__ bool activates(EpilogueKind kind) {
    return kind == EpilogueKind::FEATURE_MAJOR_ACTIVATED || kind == EpilogueKind::ROW_MAJOR_ACTIVATED;
}

// Transposes within each quad (four lanes). Before: a lane holds two columns of each of four 8-column blocks, as the
// accumulators are laid out. After: a lane holds all eight columns of one block. The operation is its own inverse.
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

// Transposes an 8 x 8 block of 16-bit values across the warp; each quad holds one row.
__device__ __forceinline__ uint32_t transposed_block(uint32_t v) {
    uint32_t t;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
    return t;
}

// The outputs and biases of a consumer thread's accumulators, loaded long before the epilogue uses them.
template <EpilogueKind KIND>
struct Rows {
    int output[2];
    float bias[2];
    int first_of_run;  // row-major Y: first of the eight outputs that this lane stores, or -1

    __device__ __forceinline__ void find(const Epilogue& epilogue, int cta_tile) {
        const int warp_row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;  // warp's first row within the 128-row CTA tile
        const int* outputs = epilogue.outputs + cta_tile * 2 * HALF + warp_row;
#pragma unroll
        for (int part = 0; part < 2; ++part) output[part] = outputs[lane / 4 + part * 8];
        if (stores_by_row(KIND)) first_of_run = outputs[lane % 2 * 8];
    }

    __device__ __forceinline__ void load_bias(const Epilogue& epilogue) {
        bias[0] = bias[1] = 0.0f;
        if (epilogue.bias_type == 0) return;
#pragma unroll
        for (int part = 0; part < 2; ++part)
            if (output[part] >= 0) bias[part] = bias_at(epilogue.bias, epilogue.bias_type, output[part]);
    }
};

// A warp finishes 16 outputs x 32 columns as two subtiles; each lane stores 16 bytes per subtile. If Y is [N, m], a
// subtile holds one of a thread's two outputs, and a lane stores eight columns of it. If Y is [m, N], a subtile holds
// 16 columns, and a lane stores eight neighboring outputs of one column, so that two lanes fill a 32-byte sector.
struct Place {
    bool exists;
    int row;  // row of Y
    int at;   // offset within the row

    template <EpilogueKind KIND>
    __device__ __forceinline__ Place(const Epilogue& epilogue, const Rows<KIND>& rows, int column, int subtile) {
        const int lane = threadIdx.x % 32;
        if (stores_by_row(KIND)) {
            row = column + (2 * subtile + lane % 4 / 2) * 8 + lane / 4, at = rows.first_of_run;
            exists = at >= 0 && row < epilogue.m;
        } else {
            row = rows.output[subtile], at = column + lane % 4 * 8;
            exists = row >= 0 && at < epilogue.m;
        }
    }
};

// Maps sum i of a subtile to its index among a thread's 16 accumulators for 32 columns. They are four blocks of eight
// columns; in each, a thread holds two columns of its first output, then the same two of its second.
template <EpilogueKind KIND>
__device__ __forceinline__ constexpr int sum_of_subtile(int subtile, int i) {
    return stores_by_row(KIND) ? (2 * subtile + i / 4) * 4 + i % 4 : i / 2 * 4 + subtile * 2 + i % 2;
}

// Which of the thread's two outputs sum i belongs to.
template <EpilogueKind KIND>
__device__ __forceinline__ constexpr int output_of_sum(int subtile, int i) {
    return stores_by_row(KIND) ? i / 2 % 2 : subtile;
}

// From accumulator order to memory order, in which each lane holds 16 contiguous bytes.
template <EpilogueKind KIND>
__device__ __forceinline__ void to_memory_order(uint32_t (&v)[4]) {
    if (stores_by_row(KIND)) {
#pragma unroll
        for (int block = 0; block < 4; ++block) v[block] = transposed_block(v[block]);
    }
    transpose_in_quad(v, threadIdx.x % 32);
}

// Inverse of to_memory_order.
template <EpilogueKind KIND>
__device__ __forceinline__ void from_memory_order(uint32_t (&v)[4]) {
    transpose_in_quad(v, threadIdx.x % 32);
    if (stores_by_row(KIND)) {
#pragma unroll
        for (int block = 0; block < 4; ++block) v[block] = transposed_block(v[block]);
    }
}

// Computes v (1 + tanh(v Q(v²))) / 2 with tanh.approx. Its error of 2^-11, in a sum of two terms of magnitude 1, is
// about the error of the rounding to 16 bits that follows. For the erf GELU, Q is fitted to atanh(erf(v / √2)) / v, so
// that v Φ(v) has an error of at most 3e-5. v² is clamped at 64, where the tanh is already ±1.
__device__ __forceinline__ float gelu_for_16_bits(float v, const float (&coefficients)[3]) {
    const float square = fminf(v * v, 64.0f), half = 0.5f * v;
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(v * fmaf(fmaf(coefficients[2], square, coefficients[1]), square, coefficients[0])));
    return fmaf(half, t, half);
}

constexpr float GELU_COEFFICIENTS[2][3] = {
    {7.975077819e-01f, 3.700564812e-02f, -3.515171048e-04f},
    {7.978845608e-01f, 3.567740814e-02f, 0.0f},
};

__device__ __forceinline__ void activate_for_16_bits(float (&v)[8], const Epilogue& epilogue) {
    if (epilogue.activation == RELU) {  // one branch for all eight values
#pragma unroll
        for (float& value : v) value = value > 0.0f || value != value ? value : 0.0f;  // NaN stays NaN, as in torch.relu
    } else {
#pragma unroll
        for (float& value : v) value = gelu_for_16_bits(value, epilogue.gelu);
    }
}

// Loads a lane's 16 bytes of the residual.
template <typename T>
__device__ __forceinline__ uint4 load_residual(const Epilogue& epilogue, const Place& place) {
    const T* residual = static_cast<const T*>(epilogue.residual) + place.row * epilogue.residual_stride + place.at;
    return place.exists ? *reinterpret_cast<const uint4*>(residual) : make_uint4(0, 0, 0, 0);
}

// Prefetches the residual of the tile's columns into L2.
template <typename T, int BLOCK_M, EpilogueKind KIND>
__device__ __forceinline__ void prefetch_residual(const Epilogue& epilogue, const Rows<KIND>& rows, int column) {
    if (!(begins_with_residual(KIND) || activates(KIND)) || epilogue.residual == nullptr) return;
    const int lane = threadIdx.x % 32;
    const T* residual = static_cast<const T*>(epilogue.residual);
    if (stores_by_row(KIND)) {
#pragma unroll
        for (int i = 0; i < BLOCK_M; i += 32) {
            const int row = column + i + lane;
            if (row < epilogue.m && rows.first_of_run >= 0)
                prefetch_line(residual + row * epilogue.residual_stride + rows.first_of_run);
        }
    } else {
#pragma unroll
        for (int part = 0; part < 2; ++part)
            if (lane % 4 == 0 && rows.output[part] >= 0)
                prefetch_bulk(residual + rows.output[part] * epilogue.residual_stride + column,
                              min(BLOCK_M, epilogue.m - column) * static_cast<int>(sizeof(T)));
    }
}

// Initializes the accumulators with the residual, so that the products accumulate on top of it. Before the main loop
// registers are free for many loads in flight; in the epilogue the loads would stall one another.
template <typename T, int BLOCK_M, EpilogueKind KIND>
__device__ __forceinline__ void begin_with_residual(const Epilogue& epilogue, const Rows<KIND>& rows, int column,
                                                    float (&acc)[BLOCK_M / 2]) {
    constexpr int AT_ONCE = BLOCK_M / 16 < 8 ? BLOCK_M / 16 : 8;
#pragma unroll
    for (int first = 0; first < BLOCK_M / 16; first += AT_ONCE) {
        uint4 loaded[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            loaded[i] = load_residual<T>(epilogue, Place(epilogue, rows, column + (first + i) / 2 * 32, (first + i) % 2));
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            uint32_t v[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
            from_memory_order<KIND>(v);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const float2 both = unpacked<T>(v[j / 2]);
                acc[(first + i) / 2 * 16 + sum_of_subtile<KIND>((first + i) % 2, j)] = j % 2 ? both.y : both.x;
            }
        }
    }
}

// Adds a lane's 16 loaded bytes of the residual to the sums of a subtile.
template <typename T, EpilogueKind KIND>
__device__ __forceinline__ void add_residual(float (&sums)[8], const uint4& loaded) {
    uint32_t v[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
    from_memory_order<KIND>(v);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 both = unpacked<T>(v[i]);
        sums[i * 2] += both.x, sums[i * 2 + 1] += both.y;
    }
}

// Stores one subtile of a warp's 16 outputs x 32 columns, which begin at `column`. d: the thread's accumulators of
// these columns; residual: added after the activation if `adds`.
template <typename T, EpilogueKind KIND>
__device__ __forceinline__ void store_subtile(const Epilogue& epilogue, const Rows<KIND>& rows, int column, int subtile,
                                            const float* d, bool adds, const uint4& residual) {
    float sums[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
        sums[i] = d[sum_of_subtile<KIND>(subtile, i)] + rows.bias[output_of_sum<KIND>(subtile, i)];
    if constexpr (activates(KIND)) activate_for_16_bits(sums, epilogue);
    if (adds) add_residual<T, KIND>(sums, residual);
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = packed<T>(sums[i * 2], sums[i * 2 + 1]);
    to_memory_order<KIND>(v);
    const Place place(epilogue, rows, column, subtile);
    T* y = static_cast<T*>(epilogue.y) + place.row * epilogue.y_stride + place.at;
    // evict-first: this kernel never reads Y, but it rereads rows of X from cache
    if (place.exists) __stcs(reinterpret_cast<uint4*>(y), make_uint4(v[0], v[1], v[2], v[3]));
}

// Stores 32 columns, with the residual added if there is one.
template <typename T, EpilogueKind KIND>
__device__ __forceinline__ void store_columns_with_residual(const Epilogue& epilogue, const Rows<KIND>& rows, int column,
                                                            const float* d) {
    const bool adds = epilogue.residual != nullptr;
#pragma unroll
    for (int subtile = 0; subtile < 2; ++subtile) {
        uint4 residual{};
        if (adds) residual = load_residual<T>(epilogue, Place(epilogue, rows, column, subtile));
        store_subtile<T, KIND>(epilogue, rows, column, subtile, d, adds, residual);
    }
}

// Stores all columns of the tile. Here the residual is added only if it follows an activation.
template <typename T, int BLOCK_M, EpilogueKind KIND>
__device__ __forceinline__ void store(const Epilogue& epilogue, const Rows<KIND>& rows, int column,
                                      const float (&acc)[BLOCK_M / 2]) {
    constexpr int SUBTILES = BLOCK_M / 16;
    const bool adds = activates(KIND) && epilogue.residual != nullptr;
    const auto load = [&](int subtile) {
        return load_residual<T>(epilogue, Place(epilogue, rows, column + subtile / 2 * 32, subtile % 2));
    };
    uint4 next{};
#pragma unroll
    for (int subtile = 0; subtile < SUBTILES; ++subtile) {
        uint4 residual = next;
        if (adds) {  // once registers are free, prefetches the next subtile's residual while this one is finished
            if (subtile < 2) residual = load(subtile);
            if (subtile >= 1 && subtile + 1 < SUBTILES) next = load(subtile + 1);
        }
        store_subtile<T, KIND>(epilogue, rows, column + subtile / 2 * 32, subtile % 2, acc + subtile / 2 * 16, adds, residual);
    }
}

// Split-K reduction across a cluster of `splits` CTAs, then store. Ownership of the 32-column subtiles of each warp
// rotates over the CTAs; each CTA sends its accumulators of the other subtiles to their owners, into shared memory of
// pipeline stages that are no longer in use.
//
// Args:
//     shared: in each CTA, SUBTILE_BYTES * (splits - 1) * ceil(BLOCK_M / 32 / splits) bytes.
//     received: mbarrier in each CTA, initialized for one arrival, at the same offset in all of them.
template <typename T, int BLOCK_M, EpilogueKind KIND>
__device__ __forceinline__ void reduce_and_store(const Epilogue& epilogue, const Rows<KIND>& rows, int column, int splits,
                                                 uint32_t shared, uint32_t received, float (&acc)[BLOCK_M / 2]) {
    constexpr int SUBTILES = BLOCK_M / 32, LOAD_BYTES = CONSUMERS * 16, SUBTILE_BYTES = 4 * LOAD_BYTES;
    const int part = rank_in_cluster(), warp = threadIdx.x / 32;
    const uint32_t place = shared + threadIdx.x * 16;
    if (threadIdx.x == 0) {
        int owned = 0;  // subtiles that this CTA owns, over all warps
        for (int subtile = 0; subtile < SUBTILES; ++subtile)
            for (int of_warp = 0; of_warp < CONSUMERS / 32; ++of_warp) owned += (subtile + of_warp) % splits == part;
        barrier_arrive_expect(received, owned * (splits - 1) * (SUBTILE_BYTES / (CONSUMERS / 32)));
    }
    cluster_sync_relaxed();  // all CTAs have finished reading their pipeline stages
#pragma unroll
    for (int subtile = 0; subtile < SUBTILES; ++subtile) {
        const int owner = (subtile + warp) % splits;
        if (owner == part) continue;
        const int sender = part < owner ? part : part - 1;
        const uint32_t there =
            address_in_cluster(place + (subtile / splits * (splits - 1) + sender) * SUBTILE_BYTES, owner);
        const uint32_t barrier = address_in_cluster(received, owner);
#pragma unroll
        for (int i = 0; i < 4; ++i) store_in_cluster(there + i * LOAD_BYTES, acc + subtile * 16 + i * 4, barrier);
    }
    barrier_wait(received, 0);
#pragma unroll
    for (int subtile = 0; subtile < SUBTILES; ++subtile) {
        if ((subtile + warp) % splits != part) continue;
        float* d = acc + subtile * 16;
        for (int sender = 0; sender < splits - 1; ++sender) {
            const uint32_t sent = place + (subtile / splits * (splits - 1) + sender) * SUBTILE_BYTES;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 v = load_16_bytes(sent + i * LOAD_BYTES);
                d[i * 4] += v.x, d[i * 4 + 1] += v.y, d[i * 4 + 2] += v.z, d[i * 4 + 3] += v.w;
            }
        }
        store_columns_with_residual<T, KIND>(epilogue, rows, column + subtile * 32, d);
    }
}
