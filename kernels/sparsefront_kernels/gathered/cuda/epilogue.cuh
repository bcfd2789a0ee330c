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

// Four blocks of 8 x 8 into shared memory, each transposed: lanes 8 i to 8 i + 7 give the addresses of the 16-byte rows of
// block i.
__device__ __forceinline__ void store_blocks_transposed(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

__device__ __forceinline__ uint4 load_shared_16_bytes(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}

// The outputs that a consumer thread holds pieces of, loaded long before they are needed.
template <Ending ENDING>
struct Rows {
    int output[2];
    float bias[2];
    // Where Y is row-major, the first of the eight outputs that this lane stores, -1 where there are none: of those of its
    // warp, or, staged, of those of its half.
    int first_of_run, first_of_staged_run;

    __device__ __forceinline__ Rows(const Epilogue& epilogue, int pair) {
        const int warp_row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;  // of the pair's 128
        const int* outputs = epilogue.outputs + pair * 2 * HALF + warp_row;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            output[part] = outputs[lane / 4 + part * 8];
            bias[part] = epilogue.bias_type && output[part] >= 0 ? bias_at(epilogue.bias, epilogue.bias_type, output[part])
                                                                 : 0.0f;
        }
        if (stores_by_row<ENDING>(epilogue)) {
            first_of_run = outputs[lane % 2 * 8];
            first_of_staged_run = epilogue.outputs[(pair * 2 + threadIdx.x / 128) * HALF + threadIdx.x % 8 * 8];
        }
    }
};

// A warp's 16 outputs x 32 columns are finished in two pieces. Where Y is [N, m], a piece is one of a thread's two outputs,
// and a lane stores eight columns of it. Where Y is [m, N], a piece is 16 columns, and a lane stores eight neighbouring
// outputs of one of them, two lanes a sector of memory.
struct Place {
    bool exists;
    int row;  // of Y
    int at;   // within the row

    template <Ending ENDING>
    __device__ __forceinline__ Place(const Epilogue& epilogue, const Rows<ENDING>& rows, int column, int piece) {
        const int lane = threadIdx.x % 32;
        if (stores_by_row<ENDING>(epilogue)) {
            row = column + (2 * piece + lane % 4 / 2) * 8 + lane / 4, at = rows.first_of_run;
            exists = at >= 0 && row < epilogue.m;
        } else {
            row = piece ? rows.output[1] : rows.output[0], at = column + lane % 4 * 8;
            exists = row >= 0 && at < epilogue.m;
        }
    }
};

// d: four blocks of eight columns as the tensor cores left them.
template <Ending ENDING>
__device__ __forceinline__ void sums_of_piece(const Epilogue& epilogue, const Rows<ENDING>& rows, int piece, const float* d,
                                              float (&sums)[8]) {
    const bool by_row = stores_by_row<ENDING>(epilogue);
#pragma unroll
    for (int i = 0; i < 8; ++i)
        sums[i] = by_row ? d[(2 * piece + i / 4) * 4 + i % 4] + rows.bias[i / 2 % 2]
                         : d[i / 2 * 4 + piece * 2 + i % 2] + rows.bias[piece];
}

// From the order of memory, in which a lane holds 16 bytes, to that of the tensor cores, or back.
template <bool BACK>
__device__ __forceinline__ void rearrange(uint32_t (&v)[4], bool by_row) {
    if (BACK) transpose_in_quad(v, threadIdx.x % 32);
    if (by_row) {
#pragma unroll
        for (int block = 0; block < 4; ++block) v[block] = transposed_block(v[block]);
    }
    if (!BACK) transpose_in_quad(v, threadIdx.x % 32);
}

template <typename T>
__device__ __forceinline__ void store_piece(const Epilogue& epilogue, const Place& place, const float (&sums)[8], bool by_row) {
    uint32_t v[4];
#pragma unroll
    for (int block = 0; block < 4; ++block) v[block] = packed<T>(sums[block * 2], sums[block * 2 + 1]);
    rearrange<false>(v, by_row);
    T* y = static_cast<T*>(epilogue.y) + static_cast<long long>(place.row) * epilogue.y_stride + place.at;
    if (place.exists) *reinterpret_cast<uint4*>(y) = make_uint4(v[0], v[1], v[2], v[3]);
}

// v P(v), where P rises from 0 to 1 and is odd about (0, 1/2): a polynomial of v^2 times v, fitted up to |v| = 4.2, where P
// is 0 or 1 to 2e-5. The coefficients are immediate operands.
template <bool TANH>
__device__ __forceinline__ float gelu_for_16_bits(float v) {
    constexpr float C[10] = {TANH ? 3.989064097e-01f : 3.988755643e-01f,   TANH ? -6.669095159e-02f : -6.625133008e-02f,
                             TANH ? 1.006856933e-02f : 9.720937349e-03f,   TANH ? -1.183546265e-03f : -1.064510900e-03f,
                             TANH ? 1.057956906e-04f : 8.236240683e-05f,   TANH ? -6.881546142e-06f : -3.996870419e-06f,
                             TANH ? 3.054888964e-07f : 8.043676303e-08f,   TANH ? -8.433947762e-09f : 2.347836370e-09f,
                             TANH ? 1.224798735e-10f : -1.662865401e-10f, TANH ? -6.044078541e-13f : 2.700622061e-12f};
    const float near = fminf(fmaxf(v, -4.2f), 4.2f), square = near * near;
    float p = C[9];
#pragma unroll
    for (int i = 8; i >= 0; --i) p = fmaf(p, square, C[i]);
    return v * __saturatef(fmaf(p, near, 0.5f));
}

// In place, with an error below a tenth of the rounding to 16 bits that follows. One branch for all eight.
__device__ __forceinline__ void activate_for_16_bits(float (&v)[8], int activation) {
    if (activation == RELU) {
#pragma unroll
        for (float& value : v) value = value > 0.0f || value != value ? value : 0.0f;  // NaN stays NaN, as in torch.relu
    } else if (activation == GELU) {
#pragma unroll
        for (float& value : v) value = gelu_for_16_bits<false>(value);
    } else if (activation == GELU_TANH) {
#pragma unroll
        for (float& value : v) value = gelu_for_16_bits<true>(value);
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

// 16 bytes of the residual.
template <typename T>
__device__ __forceinline__ uint4 load_residual(const Epilogue& epilogue, const Place& place) {
    const T* residual = static_cast<const T*>(epilogue.residual) + static_cast<long long>(place.row) * epilogue.residual_stride + place.at;
    return place.exists && epilogue.residual != nullptr ? *reinterpret_cast<const uint4*>(residual) : make_uint4(0, 0, 0, 0);
}

// Brings the residual of a block's columns into L2.
template <typename T, int BLOCK_M, Ending ENDING>
__device__ __forceinline__ void prefetch_residual(const Epilogue& epilogue, const Rows<ENDING>& rows, int column) {
    if (ENDING != Ending::ANY || epilogue.residual == nullptr) return;
    const int lane = threadIdx.x % 32;
    const T* residual = static_cast<const T*>(epilogue.residual);
    if (stores_by_row<ENDING>(epilogue)) {
#pragma unroll
        for (int row = column + lane; row < column + BLOCK_M; row += 32)
            if (row < epilogue.m && rows.first_of_run >= 0)
                prefetch_line(residual + row * epilogue.residual_stride + rows.first_of_run);
    } else {
        const int at = column + lane % 4 * 64;  // 128 bytes
#pragma unroll
        for (int part = 0; part < 2; ++part)
            if (lane % 4 < BLOCK_M / 64 && at < epilogue.m && rows.output[part] >= 0)
                prefetch_line(residual + rows.output[part] * epilogue.residual_stride + at);
    }
}

// Writes 32 columns from `column` on of a warp's 16 outputs. residual: of the first piece; afterwards of the first piece at
// column `next`, unless that is negative: it is loaded while this one is worked on.
template <typename T, Ending ENDING>
__device__ __forceinline__ void store_columns(const Epilogue& epilogue, const Rows<ENDING>& rows, int column, const float* d,
                                              uint4& residual, int next) {
    const bool by_row = stores_by_row<ENDING>(epilogue);
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
        const Place place(epilogue, rows, column, piece);
        float sums[8];
        sums_of_piece(epilogue, rows, piece, d, sums);
        if constexpr (ENDING == Ending::ANY) {
            uint32_t v[4] = {residual.x, residual.y, residual.z, residual.w};
            if (piece == 0) residual = load_residual<T>(epilogue, Place(epilogue, rows, column, 1));
            if (piece == 1 && next >= 0) residual = load_residual<T>(epilogue, Place(epilogue, rows, next, 0));
            activate_for_16_bits(sums, epilogue.activation);
            if (epilogue.residual != nullptr) {
                rearrange<true>(v, by_row);
                add_to<T>(sums, v);
            }
        }
        store_piece<T>(epilogue, place, sums, by_row);
    }
}

template <typename T, Ending ENDING>
__device__ __forceinline__ void store_columns(const Epilogue& epilogue, const Rows<ENDING>& rows, int column, const float* d) {
    uint4 residual{};
    if (ENDING == Ending::ANY) residual = load_residual<T>(epilogue, Place(epilogue, rows, column, 0));
    store_columns<T, ENDING>(epilogue, rows, column, d, residual, -1);
}

// Writes a block's columns into the rows of Y, through shared memory, where the four warps of a half put 16 columns together:
// so a row of Y gets the 128 bytes of 64 outputs at once, four times what one warp has of it.
template <typename T, int BLOCK_M>
__device__ __forceinline__ void store_staged(const Epilogue& epilogue, const Rows<Ending::ROW_MAJOR>& rows, int column,
                                             const float (&acc)[BLOCK_M / 2]) {
    constexpr int COLUMNS = 16, ROW_BYTES_STAGED = HALF * sizeof(T), STAGE = COLUMNS * ROW_BYTES_STAGED;
    __shared__ alignas(128) uint8_t staged[CONSUMERS / 128][2][STAGE];  // two, so that one barrier for each is enough
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
    // 16 bytes number c of row r lie at place c ^ (r % 8): so neither the warps' blocks nor the rows collide in the banks
    const int write_row = lane / 16 * 8 + lane % 8, write_chunk = warp * 2 + lane / 8 % 2;
    const int read_row = threadIdx.x % 128 / 8, read_chunk = lane % 8, at = rows.first_of_staged_run;
    const uint32_t base = shared_address(staged[half]);
    const uint32_t target = base + write_row * ROW_BYTES_STAGED + (write_chunk ^ (write_row % 8)) * 16;
    const uint32_t source = base + read_row * ROW_BYTES_STAGED + (read_chunk ^ (read_row % 8)) * 16;
    T* y = static_cast<T*>(epilogue.y) + static_cast<long long>(column + read_row) * epilogue.y_stride + at;
#pragma unroll
    for (int done = 0; done < BLOCK_M; done += COLUMNS) {
        const float* d = acc + done / 2;
        const uint32_t stage = done / COLUMNS % 2 * STAGE;
        store_blocks_transposed(target + stage, packed<T>(d[0] + rows.bias[0], d[1] + rows.bias[0]),
                                packed<T>(d[2] + rows.bias[1], d[3] + rows.bias[1]),
                                packed<T>(d[4] + rows.bias[0], d[5] + rows.bias[0]),
                                packed<T>(d[6] + rows.bias[1], d[7] + rows.bias[1]));
        asm volatile("bar.sync %0, 128;" ::"r"(2 + half) : "memory");
        const uint4 run = load_shared_16_bytes(source + stage);
        if (at >= 0 && column + done + read_row < epilogue.m) *reinterpret_cast<uint4*>(y + done * epilogue.y_stride) = run;
    }
}

// Writes a block's columns; acc is lost.
template <typename T, int BLOCK_M, Ending ENDING>
__device__ __forceinline__ void store(const Epilogue& epilogue, const Rows<ENDING>& rows, int column,
                                      float (&acc)[BLOCK_M / 2]) {
    if constexpr (ENDING == Ending::ANY) {
        // A loop, which moves the sums along the registers: in a row, the instructions of all columns come from far away
        // each time.
        uint4 residual = load_residual<T>(epilogue, Place(epilogue, rows, column, 0));
#pragma unroll 1
        for (int done = 0; done < BLOCK_M; done += 32) {
            store_columns<T, ENDING>(epilogue, rows, column + done, acc, residual,
                                     done + 32 < BLOCK_M ? column + done + 32 : -1);
#pragma unroll
            for (int i = 0; i < BLOCK_M / 2 - 16; ++i) acc[i] = acc[i + 16];
        }
    } else if constexpr (ENDING == Ending::ROW_MAJOR) {
        store_staged<T, BLOCK_M>(epilogue, rows, column, acc);
    } else {
#pragma unroll
        for (int group = 0; group < BLOCK_M / 32; ++group)
            store_columns<T, ENDING>(epilogue, rows, column + group * 32, acc + group * 16);
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
        if ((group + warp) % splits != part) continue;
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
    cluster_sync_relaxed();  // nobody ends while another reads
}
