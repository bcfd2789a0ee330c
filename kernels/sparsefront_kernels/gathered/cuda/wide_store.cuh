// Y of a work tile, from the sums that the tensor cores leave in registers: Y = activation(rounded sums + bias) + residual,
// feature-major or row-major, a quarter of the tile's columns at a time.
#pragma once

#include <type_traits>

#include "wide_work.cuh"

namespace {

template <typename T>
using Two = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;

template <typename T>
__device__ __forceinline__ uint32_t relu_of_two(uint32_t both) {
    const Two<T> v = __hmax2_nan(reinterpret_cast<const Two<T>&>(both), Two<T>{});  // NaN stays NaN, as in torch.relu
    return reinterpret_cast<const uint32_t&>(v);
}

// As gelu_for_16_bits; the argument of the tanh need not be more precise than the tanh.
template <typename T>
__device__ __forceinline__ uint32_t gelu_of_two(uint32_t both, const __half2 (&coefficients)[3]) {
    __half2 v;
    if constexpr (std::is_same_v<T, __half>) {
        v = reinterpret_cast<const __half2&>(both);
    } else {
        v = __float22half2_rn(unpacked<T>(both));
    }
    const __half2 square = __hmin2(__hmul2(v, v), __float2half2_rn(64.0f));
    const __half2 slope = __hfma2(__hfma2(coefficients[2], square, coefficients[1]), square, coefficients[0]);
    const __half2 argument = __hmul2(v, slope);
    uint32_t bits;
    asm("tanh.approx.f16x2 %0, %1;" : "=r"(bits) : "r"(reinterpret_cast<const uint32_t&>(argument)));
    const __half2 t = reinterpret_cast<const __half2&>(bits);
    if constexpr (std::is_same_v<T, __half>) {
        const __half2 half = __hmul2(v, __float2half2_rn(0.5f)), y = __hfma2(half, t, half);
        return reinterpret_cast<const uint32_t&>(y);
    } else {
        const float2 wide = unpacked<T>(both), of_v = __half22float2(t);
        return packed<T>(fmaf(0.5f * wide.x, of_v.x, 0.5f * wide.x), fmaf(0.5f * wide.y, of_v.y, 0.5f * wide.y));
    }
}

// Activation of rounded sums, two at a time.
template <typename T, int COUNT>
__device__ __forceinline__ void activate(uint32_t (&v)[COUNT], const Epilogue& epilogue) {
    if (epilogue.activation == NONE) return;
    if (epilogue.activation == RELU) {
#pragma unroll
        for (uint32_t& both : v) both = relu_of_two<T>(both);
        return;
    }
    const __half2 coefficients[3] = {__float2half2_rn(epilogue.gelu[0]), __float2half2_rn(epilogue.gelu[1]),
                                     __float2half2_rn(epilogue.gelu[2])};
#pragma unroll
    for (uint32_t& both : v) both = gelu_of_two<T>(both, coefficients);
}

template <typename T>
__device__ __forceinline__ uint32_t sum_of_two(uint32_t a, uint32_t b) {
    const Two<T> v = __hadd2(reinterpret_cast<const Two<T>&>(a), reinterpret_cast<const Two<T>&>(b));
    return reinterpret_cast<const uint32_t&>(v);
}

// A quarter of the columns of a thread, rounded: v[c * 8 + p * 4 + b]: two neighbouring columns of the eights b of the 32 columns
// c, of the thread's output p.
template <typename T>
struct Quarter {
    uint32_t v[16];

    // Where nothing was added up, the sums were never set.
    __device__ __forceinline__ Quarter(const float* acc, const float (&bias)[2], bool any, const Epilogue& epilogue) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int c = i / 8, p = i / 4 % 2, b = i % 4, d = c * 16 + b * 4 + p * 2;
            v[i] = any ? packed<T>(acc[d] + bias[p], acc[d + 1] + bias[p]) : packed<T>(bias[p], bias[p]);
        }
        activate<T>(v, epilogue);
    }
};

// Feature-major: a lane stores eight columns of an output after an exchange within its quad.
template <typename T>
struct FeatureMajor {
    static constexpr bool ROW_MAJOR = false;

    template <int WIDTH>
    __device__ __forceinline__ static void store(const Problem& problem, const WorkTile& tile, const float (&acc)[WIDTH / 2],
                                                 const float (&bias)[2], const int (&outputs)[2], bool any, uint32_t) {
        uint4 residual[2][4];  // of a quarter and of the next, whose loads are under way
        load_residual<0>(problem.epilogue, tile, outputs, residual[0]);
        store_quarter<0, WIDTH>(problem.epilogue, tile, acc, bias, outputs, any, residual);
    }

    template <int Q>
    __device__ __forceinline__ static void load_residual(const Epilogue& epilogue, const WorkTile& tile, const int (&outputs)[2],
                                                         uint4 (&residual)[4]) {
        if (epilogue.residual == nullptr) return;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = tile.column + Q * QUARTER + i / 2 * 32 + threadIdx.x % 4 * 8, output = outputs[i % 2];
            residual[i] = make_uint4(0, 0, 0, 0);
            if (output >= 0 && at < epilogue.m)
                residual[i] = *reinterpret_cast<const uint4*>(static_cast<const T*>(epilogue.residual) +
                                                              output * epilogue.residual_stride + at);
        }
    }

    template <int Q, int WIDTH>
    __device__ __forceinline__ static void store_quarter(const Epilogue& epilogue, const WorkTile& tile,
                                                         const float (&acc)[WIDTH / 2], const float (&bias)[2],
                                                         const int (&outputs)[2], bool any, uint4 (&residual)[2][4]) {
        if constexpr ((Q + 1) * QUARTER < WIDTH) load_residual<Q + 1>(epilogue, tile, outputs, residual[(Q + 1) % 2]);
        const Quarter<T> quarter(acc + Q * 32, bias, any, epilogue);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = tile.column + Q * QUARTER + i / 2 * 32 + threadIdx.x % 4 * 8, output = outputs[i % 2];
            uint32_t v[4] = {quarter.v[i * 4], quarter.v[i * 4 + 1], quarter.v[i * 4 + 2], quarter.v[i * 4 + 3]};
            transpose_in_quad(v, threadIdx.x % 32);
            if (epilogue.residual != nullptr) {
                const uint4& more = residual[Q % 2][i];
                v[0] = sum_of_two<T>(v[0], more.x), v[1] = sum_of_two<T>(v[1], more.y);
                v[2] = sum_of_two<T>(v[2], more.z), v[3] = sum_of_two<T>(v[3], more.w);
            }
            uint4* y = reinterpret_cast<uint4*>(static_cast<T*>(epilogue.y) + output * epilogue.y_stride + at);
            if (output >= 0 && at < epilogue.m) __stcs(y, make_uint4(v[0], v[1], v[2], v[3]));
        }
        if constexpr ((Q + 1) * QUARTER < WIDTH)
            store_quarter<Q + 1, WIDTH>(epilogue, tile, acc, bias, outputs, any, residual);
    }
};

// Row-major. Where a tile's outputs lie in runs of eight neighbours, blocks of 8 x 8 are transposed in registers. Else 64 columns
// of all 128 outputs meet in shared memory, and a lane stores a run of eight neighbouring outputs in row after row of Y: outputs
// that are pruned hold the bias alone, those of a run that belong to another pair are left alone.
template <typename T>
struct RowMajor {
    static constexpr bool ROW_MAJOR = true;

    template <int WIDTH>
    __device__ __forceinline__ static void store(const Problem& problem, const WorkTile& tile, const float (&acc)[WIDTH / 2],
                                                 const float (&bias)[2], const int (&outputs)[2], bool any, uint32_t staging) {
        if (problem.whole_runs) {
#pragma unroll
            for (int q = 0; q < WIDTH / QUARTER; ++q)
                store_transposed(problem.epilogue, Quarter<T>(acc + q * 32, bias, any, problem.epilogue), outputs,
                                 tile.column + q * QUARTER);
            return;
        }
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, matrix = lane / 8;
        const uint32_t place = staging + (matrix / 2 * 8 + lane % 8) * STAGING_PITCH + (warp * 16 + matrix % 2 * 8) * 2;
        const int2 begin = __ldg(problem.runs_begin + tile.pair);
        const int end = __ldg(&problem.runs_begin[tile.pair + 1].x);
#pragma unroll
        for (int q = 0; q < WIDTH / QUARTER; ++q) {
            const Quarter<T> quarter(acc + q * 32, bias, any, problem.epilogue);
            meet();  // the quarter before has been read
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                const uint32_t* v = quarter.v + t / 2 * 8 + t % 2 * 2;
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(place + t * 16 * STAGING_PITCH),
                    "r"(v[0]), "r"(v[4]), "r"(v[1]), "r"(v[5])
                    : "memory");
            }
            meet();
            store_runs(problem, staging, begin.x, begin.y - begin.x, tile.column + q * QUARTER);
            store_shared_runs(problem, staging, begin.y, end, tile.column + q * QUARTER);
        }
    }

    // A lane stores eight neighbouring outputs of one row of Y, two lanes a sector of memory.
    __device__ __forceinline__ static void store_transposed(const Epilogue& epilogue, const Quarter<T>& quarter,
                                                            const int (&outputs)[2], int column) {
        const int lane = threadIdx.x % 32;
        const int runs[2] = {__shfl_sync(~0u, outputs[0], 0), __shfl_sync(~0u, outputs[1], 0)};
        const int first = lane % 2 ? runs[1] : runs[0];
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // 16 columns
            const uint32_t* of_columns = quarter.v + i / 2 * 8 + i % 2 * 2;
            uint32_t v[4] = {transposed_block(of_columns[0]), transposed_block(of_columns[4]), transposed_block(of_columns[1]),
                             transposed_block(of_columns[5])};
            transpose_in_quad(v, lane);
            const long long row = column + (2 * i + lane % 4 / 2) * 8 + lane / 4;
            if (first < 0 || row >= epilogue.m) continue;
            add_residual_run(v, epilogue, row, first);
            __stcs(reinterpret_cast<uint4*>(static_cast<T*>(epilogue.y) + row * epilogue.y_stride + first),
                   make_uint4(v[0], v[1], v[2], v[3]));
        }
    }

    __device__ __forceinline__ static void add_residual_run(uint32_t (&v)[4], const Epilogue& epilogue, long long row, int first) {
        if (epilogue.residual == nullptr) return;
        const uint4 more = *reinterpret_cast<const uint4*>(static_cast<const T*>(epilogue.residual) +
                                                           row * epilogue.residual_stride + first);
        v[0] = sum_of_two<T>(v[0], more.x), v[1] = sum_of_two<T>(v[1], more.y);
        v[2] = sum_of_two<T>(v[2], more.z), v[3] = sum_of_two<T>(v[3], more.w);
    }

    // Zeros behind the rows of the staging memory, which stand for outputs that are not in the tile.
    __device__ __forceinline__ static void clear_padding(uint32_t staging) {
        if (threadIdx.x < QUARTER)
            asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(staging + threadIdx.x * STAGING_PITCH + 2 * HALF * 2), "r"(0)
                         : "memory");
        meet();
    }

    // Waits for both consumer warpgroups.
    __device__ __forceinline__ static void meet() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

    // Where the eight outputs of a run are in a staged row, in bytes, and the bias of those that are pruned.
    struct Places {
        uint32_t at[8], constants[4], ours = 0;

        __device__ __forceinline__ Places(const Epilogue& epilogue, const int4& run) {
            load_bias_run(constants, epilogue, run.x);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const uint32_t place = static_cast<uint32_t>(i < 4 ? run.y : run.z) >> (i % 4 * 8) & 0xFF;
                at[i] = min(place, PRUNED) * 2;
                ours |= (place != NOT_OURS) << i;
                if (place != PRUNED) constants[i / 2] &= i % 2 ? 0x0000FFFF : 0xFFFF0000;
            }
            activate<T>(constants, epilogue);  // zero stays zero
        }

        __device__ __forceinline__ void gather(uint32_t (&v)[4], uint32_t staged) const {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                v[i] = __byte_perm(load_staged(staged + at[2 * i]), load_staged(staged + at[2 * i + 1]), 0x5410) | constants[i];
        }
    };

    // Eight rows of Y by each warp. Lanes share the runs of a row, and a few runs of several rows.
    __device__ __forceinline__ static void store_runs(const Problem& problem, uint32_t staging, int begin, int count, int column) {
        const Epilogue& epilogue = problem.epilogue;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        for (int first = 0; first < count; first += 32) {
            const int left = count - first, at_once = left <= 4 ? 8 : left <= 8 ? 4 : left <= 16 ? 2 : 1, lanes = 32 / at_once;
            if (lane % lanes >= left) continue;
            const int4 run = __ldg(reinterpret_cast<const int4*>(problem.runs) + begin + first + lane % lanes);
            const Places places(epilogue, run);
#pragma unroll 2
            for (int row = warp * 8 + lane / lanes; row < warp * 8 + 8; row += at_once) {
                const long long at = column + row;
                if (at >= epilogue.m) continue;
                uint32_t v[4];
                places.gather(v, staging + row * STAGING_PITCH);
                add_residual_run(v, epilogue, at, run.x);
                *reinterpret_cast<uint4*>(static_cast<T*>(epilogue.y) + at * epilogue.y_stride + run.x) =
                    make_uint4(v[0], v[1], v[2], v[3]);
            }
        }
    }

    // Runs whose other outputs are another pair's, of all 64 rows: one by one.
    __device__ __forceinline__ static void store_shared_runs(const Problem& problem, uint32_t staging, int begin, int end,
                                                             int column) {
        const Epilogue& epilogue = problem.epilogue;
        const int row = threadIdx.x % QUARTER;
        const long long at = column + row;
        if (at >= epilogue.m) return;
        for (int index = begin + threadIdx.x / QUARTER; index < end; index += CONSUMERS / QUARTER) {
            const int4 run = __ldg(reinterpret_cast<const int4*>(problem.runs) + index);
            const Places places(epilogue, run);
            uint32_t v[4];
            places.gather(v, staging + row * STAGING_PITCH);
            store_own(epilogue, at, run.x, places.ours, v, static_cast<T*>(epilogue.y) + at * epilogue.y_stride + run.x);
        }
    }

    // The bias of eight neighbouring outputs, rounded as Y is.
    __device__ __forceinline__ static void load_bias_run(uint32_t (&v)[4], const Epilogue& epilogue, int first) {
        constexpr int own = std::is_same_v<T, __half> ? 2 : 3;
        if (epilogue.bias_type == own && reinterpret_cast<uint64_t>(epilogue.bias) % 16 == 0) {
            const uint4 bias = __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(epilogue.bias) + first));
            v[0] = bias.x, v[1] = bias.y, v[2] = bias.z, v[3] = bias.w;
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[i] = 0;
            if (epilogue.bias_type != 0)
                v[i] = packed<T>(bias_at(epilogue.bias, epilogue.bias_type, first + 2 * i),
                                 bias_at(epilogue.bias, epilogue.bias_type, first + 2 * i + 1));
        }
    }

    __device__ __forceinline__ static uint32_t load_staged(uint32_t address) {
        uint16_t v;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
        return v;
    }

    // The outputs of a run that is shared with another pair, one by one.
    __device__ __forceinline__ static void store_own(const Epilogue& epilogue, long long row, int first, uint32_t ours,
                                                     const uint32_t (&v)[4], T* y) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (!(ours >> i & 1)) continue;
            const uint16_t bits = v[i / 2] >> (i % 2 * 16);
            T own = reinterpret_cast<const T&>(bits);
            if (epilogue.residual != nullptr)
                own = __hadd(own, static_cast<const T*>(epilogue.residual)[row * epilogue.residual_stride + first + i]);
            y[i] = own;
        }
    }
};

}  // namespace
