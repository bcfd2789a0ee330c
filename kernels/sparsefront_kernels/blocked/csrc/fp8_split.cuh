// Blocks of a cluster that share the k-blocks of a work tile of 64 rows of X, of which their warpgroups take turns; then each adds up
// and stores some of the rows.
#pragma once

#include "fp8_consumer.cuh"

namespace {

constexpr int ROW_FLOATS = OUTPUTS + 8;  // of sums in shared memory: rows of a warp's store begin in different banks
constexpr int SUM_BYTES = GROUP_ROWS * ROW_FLOATS * 4;
constexpr int RUN = 8, RUNS = OUTPUTS / RUN;  // a thread finishes runs of eight outputs

// Eight neighbouring outputs of a CTA tile, which a thread finishes in several rows.
struct Run {
    int number, output;  // among the tile's; the first one, or -1
    float4 scales[2];
    uint32_t stored_bias[RUN];

    __device__ __forceinline__ Run(const Problem& problem, const Tile& tile) : number(threadIdx.x % RUNS), scales{}, stored_bias{} {
        const int first = tile.output(number * RUN / HALF);
        output = first < 0 ? -1 : first + number * RUN % HALF;
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

// Adds eight sums of both warpgroups of one or two blocks: their loads are all under way together.
template <int BLOCKS>
__device__ __forceinline__ void add_run(uint32_t from, int first_block, float (&v)[RUN]) {
    float4 found[BLOCKS * 4];
#pragma unroll
    for (int i = 0; i < BLOCKS * 4; ++i)
        found[i] = load_from_cluster(from + i / 2 % 2 * SUM_BYTES + i % 2 * 16, first_block + i / 4);
#pragma unroll
    for (int i = 0; i < BLOCKS * 4; ++i) {
        float* four = v + i % 2 * 4;
        four[0] += found[i].x, four[1] += found[i].y, four[2] += found[i].z, four[3] += found[i].w;
    }
}

template <typename S, typename T, bool GROUPED, bool HALVES>
__device__ __forceinline__ void consume_part(const Problem& problem, int rank, uint32_t shared) {
    static_assert(S::GROUPS == 2 && 2 * SUM_BYTES <= S::OUT);
    const int group = warp_uniform(threadIdx.x / 128), cluster = static_cast<int>(blockIdx.x) / problem.splits;
    Tile tile(load_early(problem.first_work + cluster));
    tile.take_part(rank, problem.splits);
    const Run run(problem, tile);
    float sums[64] = {};
    int next = group;
    add_up<S, true, GROUPED, HALVES>(1, group, (tile.k_blocks + 1 - group) / 2, sums, [&] {
        const Stage<S, true, GROUPED> stage{shared, next % S::STAGES};
        barrier_wait(shared + S::FULL + 8 * stage.slot, next / S::STAGES & 1);
        next += 2;
        return stage;
    });
    asm volatile("bar.sync 3, %0;" ::"n"(CONSUMERS) : "memory");  // no stage is in use any more
    const int lane = threadIdx.x % 32, own_row = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 64; i += 2) {
        const uint32_t at = (own_row + i / 2 % 2 * 8) * ROW_FLOATS + i / 4 * 8 + lane % 4 * 2;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared + group * SUM_BYTES + at * 4), "f"(sums[i]), "f"(sums[i + 1])
                     : "memory");
    }
    cluster_sync();  // with the warps that load
    const int row_count = GROUP_ROWS / problem.splits;
    for (int in_part = threadIdx.x / RUNS; in_part < row_count; in_part += CONSUMERS / RUNS) {
        const int in_tile = rank * row_count + in_part, row = tile.row + in_tile;
        const float x_scale = !GROUPED && row < problem.m ? load_float_early(problem.x_scales + row) : 1.0f;
        const uint32_t from = shared + (in_tile * ROW_FLOATS + run.number * RUN) * 4;
        float v[RUN] = {};
        if (problem.splits == 1) {
            add_run<1>(from, 0, v);
        } else {
            for (int block = 0; block < problem.splits; block += 2) add_run<2>(from, block, v);
        }
        run.finish(problem.epilogue, x_scale, v);
        store_run<T>(problem, run, row, v);
    }
}

}  // namespace
