// What a thread of the float32 kernel adds up: operands from shared memory, sums in registers, and their way to Y.
#pragma once
#include "../../cuda/epilogue_math.cuh"
#include "simt_work.cuh"

namespace {

// Where a thread's sums belong: groups of 4 outputs of the tile and of 4 columns of the block.
template <typename S>
struct Place {
    int output, column;  // the first
    int k_slice;
    int position;  // among the threads of a k-slice

    __device__ __forceinline__ Place() {
        const int warp = threadIdx.x / 32 - WARPS, lane = threadIdx.x % 32;
        output = warp % S::WARPS_ALONG_N * 32 + lane / S::LANES_ALONG_M * 4;
        column = warp / S::WARPS_ALONG_N % S::WARPS_ALONG_M * S::WARP_M + lane % S::LANES_ALONG_M * 4;
        k_slice = warp / (S::WARPS_ALONG_N * S::WARPS_ALONG_M);
        position = threadIdx.x % (CONSUMERS / S::WARP_SPLIT_K);
    }

    // Of the 32 of its warp, the thread's output number n.
    __device__ __forceinline__ int output_of(int n) const { return output % 32 + n / 4 * S::OUTPUT_STRIDE + n % 4; }
};

#define ADD_TO_PAIR(PRODUCTS) "{\n.reg .f32 a, b;\nmov.b64 {a, b}, %0;\n" PRODUCTS "mov.b64 %0, {a, b};\n}"

// Where a thread adds up. Registers lie in two banks, even and odd, each of which gives one operand a cycle; a product needs
// a sum, an element of X and a weight, which stays beside the multiplier for a whole row of sums. So sum and element should
// lie in different banks. 16-byte reads put elements 0, 2, ... into even registers. Sums are held as pairs of 64 bits, whose
// first halves lie in even registers, and pair p holds the sums of columns 2p + 1 and 2p + 2.
template <typename S>
struct Sums {
    static constexpr int PAIRS = S::COLUMNS / 2;
    uint64_t pairs[S::OUTPUTS][PAIRS] = {};

    // += weights · elements. Neighbouring rows go through the columns in opposite directions: the element where they turn
    // stays beside the multiplier while the next weight comes.
    __device__ __forceinline__ void add_products(const float (&w)[S::OUTPUTS], const float (&x)[S::COLUMNS]) {
#pragma unroll
        for (int n = 0; n < S::OUTPUTS; ++n) {
#pragma unroll
            for (int i = 0; i < PAIRS; ++i) {
                const int p = n % 2 ? PAIRS - 1 - i : i;
                const float low = x[2 * p + 1], high = x[(2 * p + 2) % S::COLUMNS];
                if (n % 2) {
                    asm(ADD_TO_PAIR("fma.rn.f32 b, %1, %3, b;\nfma.rn.f32 a, %1, %2, a;\n")
                        : "+l"(pairs[n][p]) : "f"(w[n]), "f"(low), "f"(high));
                } else {
                    asm(ADD_TO_PAIR("fma.rn.f32 a, %1, %2, a;\nfma.rn.f32 b, %1, %3, b;\n")
                        : "+l"(pairs[n][p]) : "f"(w[n]), "f"(low), "f"(high));
                }
            }
        }
    }

    // Of output n, columns m to m + 3; m a multiple of 4.
    __device__ __forceinline__ float4 four(int n, int m) const {
        float before, v[4], after;
        asm("mov.b64 {%0, %1}, %2;" : "=f"(before), "=f"(v[0]) : "l"(pairs[n][(m / 2 + PAIRS - 1) % PAIRS]));
        asm("mov.b64 {%0, %1}, %2;" : "=f"(v[1]), "=f"(v[2]) : "l"(pairs[n][m / 2]));
        asm("mov.b64 {%0, %1}, %2;" : "=f"(v[3]), "=f"(after) : "l"(pairs[n][m / 2 + 1]));
        return make_float4(v[0], v[1], v[2], v[3]);
    }
};

__device__ __forceinline__ void load_four(float* v, uint32_t address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(address));
}

// What a thread multiplies for one kept input.
template <typename S>
struct Fragment {
    float w[S::OUTPUTS], x[S::COLUMNS];

    // From addresses in shared memory.
    __device__ __forceinline__ void load(uint32_t weights, uint32_t row) {
#pragma unroll
        for (int i = 0; i < S::OUTPUTS / 4; ++i) load_four(w + 4 * i, weights + 4 * S::OUTPUT_STRIDE * i);
#pragma unroll
        for (int i = 0; i < S::COLUMNS / 4; ++i) load_four(x + 4 * i, row + 4 * S::COLUMN_STRIDE * i);
    }
};

// Writes four neighbouring columns of an output.
__device__ __forceinline__ void store(const Problem& problem, int output, int column, float4 v) {
    if (output < 0 || column >= problem.m) return;
    if (problem.residual) {
        const float4 r = *reinterpret_cast<const float4*>(problem.residual + output * problem.residual_stride + column);
        v.x += r.x, v.y += r.y, v.z += r.z, v.w += r.w;
    }
    *reinterpret_cast<float4*>(problem.y + output * problem.y_stride + column) = v;
}

// Straight from the registers, where nothing is to be added up and no activation to be computed.
template <typename S>
__device__ __forceinline__ void store_sums(const Problem& problem, const Place<S>& place, const WorkTile<S>& work_tile,
                                           const int* outputs, const Sums<S>& sums) {
#pragma unroll
    for (int n = 0; n < S::OUTPUTS; ++n) {
        const int output = outputs[place.output_of(n)];
        const float bias = output >= 0 ? bias_at(problem.bias, problem.bias_type, output) : 0.0f;
#pragma unroll
        for (int i = 0; i < S::COLUMNS / 4; ++i) {
            const float4 v = sums.four(n, 4 * i);
            store(problem, output, work_tile.column + place.column + S::COLUMN_STRIDE * i,
                  make_float4(v.x + bias, v.y + bias, v.z + bias, v.w + bias));
        }
    }
}

__device__ __forceinline__ void consumers_sync() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// Adds up what the k-slices hold, and then the blocks of the cluster, in shared memory that the stages no longer need; each
// k-slice of each block finishes its share.
template <typename S>
__device__ __forceinline__ void add_up_and_store(const Problem& problem, const Place<S>& place, const WorkTile<S>& work_tile,
                                                 const int* outputs, float* shared, const Sums<S>& sums) {
    constexpr int GROUPS = S::COLUMNS / 4, PARTS = S::OUTPUTS * GROUPS;  // of 4 columns
    constexpr int POSITIONS = CONSUMERS / S::WARP_SPLIT_K;
    float4* all = reinterpret_cast<float4*>(shared);  // [k_slices, parts, positions]
    consumers_sync();                                  // all have read all stages
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
        all[(place.k_slice * PARTS + part) * POSITIONS + place.position] = sums.four(part / GROUPS, part % GROUPS * 4);
    consumers_sync();
    const auto sum_of_k_slices = [&](int part) {
        float4 v = all[part * POSITIONS + place.position];
#pragma unroll
        for (int k_slice = 1; k_slice < S::WARP_SPLIT_K; ++k_slice) {
            const float4 other = all[(k_slice * PARTS + part) * POSITIONS + place.position];
            v.x += other.x, v.y += other.y, v.z += other.z, v.w += other.w;
        }
        return v;
    };
    if (problem.splits > 1) {
        for (int part = place.k_slice; S::WARP_SPLIT_K > 1 && part < PARTS; part += S::WARP_SPLIT_K)
            all[part * POSITIONS + place.position] = sum_of_k_slices(part);
        cluster_sync();
    }
#pragma unroll 1
    for (int part = rank_in_cluster() * S::WARP_SPLIT_K + place.k_slice; part < PARTS; part += problem.splits * S::WARP_SPLIT_K) {
        float4 v;
        if (problem.splits == 1) {
            v = sum_of_k_slices(part);
        } else {
            const uint32_t own = shared_address(all + part * POSITIONS + place.position);
            v = load_from_cluster(own, 0);
#pragma unroll 4
            for (int rank = 1; rank < problem.splits; ++rank) {
                const float4 other = load_from_cluster(own, rank);
                v.x += other.x, v.y += other.y, v.z += other.z, v.w += other.w;
            }
        }
        const int output = outputs[place.output_of(part / GROUPS)];
        const float bias = output >= 0 ? bias_at(problem.bias, problem.bias_type, output) : 0.0f;
        v = make_float4(activated(v.x + bias, problem.activation), activated(v.y + bias, problem.activation),
                        activated(v.z + bias, problem.activation), activated(v.w + bias, problem.activation));
        store(problem, output, work_tile.column + place.column + part % GROUPS * S::COLUMN_STRIDE, v);
    }
    if (problem.splits > 1) cluster_sync_relaxed();  // no block ends while another reads its memory
}

}  // namespace
