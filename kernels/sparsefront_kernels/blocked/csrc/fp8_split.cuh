// Blocks of a cluster that share the k-blocks of a work tile of 64 rows of X, of which their warpgroups take turns; then each adds up
// and stores some of the rows.
#pragma once

#include "fp8_consumer.cuh"

namespace {

constexpr int ROW_FLOATS = OUTPUTS + 8;  // of sums in shared memory: rows of a warp's store begin in different banks
constexpr int SUM_BYTES = GROUP_ROWS * ROW_FLOATS * 4;
constexpr int RUN = 8, RUNS = OUTPUTS / RUN;  // a thread finishes runs of eight outputs

// Eight neighbouring outputs of a row, finished.
template <typename T>
__device__ __forceinline__ void finish_run(const Problem& problem, const Tile& tile, int row, int run, float x_scale, float (&v)[RUN]) {
    const int first = tile.output(run * RUN / HALF), output = first + run * RUN % HALF;
    const bool exists = first >= 0 && row < problem.m;
    if (exists) {
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            const float bias = bias_of(problem.epilogue, load_bias(problem.epilogue, output + i));
            v[i] = fmaf(v[i] * x_scale, __ldg(problem.w_scales + output + i), bias);
        }
    }
    if (problem.epilogue.activation != NONE) activate_for_16_bits(v, problem.epilogue);
    if constexpr (IS_QUANTIZED<T>) {
        float size = 0.0f;
#pragma unroll
        for (float value : v) size = fmaxf(size, fabsf(value));
        const Quantizer quantized(largest_size<RUNS, RUN>(size, v, 0, 2));
#pragma unroll
        for (float& value : v) value *= quantized.lift();
        uint32_t words[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
            words[i] = packed_e4m3(quantized(v[4 * i]), quantized(v[4 * i + 1])) |
                       packed_e4m3(quantized(v[4 * i + 2]), quantized(v[4 * i + 3])) << 16;
        if (!exists) return;
        uint8_t* y = static_cast<uint8_t*>(problem.epilogue.y) + row * problem.epilogue.y_stride + output;
        *reinterpret_cast<uint2*>(y) = make_uint2(words[0], words[1]);
        if (run == 0) problem.y_scales[static_cast<int64_t>(row) * (problem.n / OUTPUTS) + output / OUTPUTS] = quantized.scale;
    } else {
        if (!exists) return;
        uint32_t words[4];
        if (problem.epilogue.residual != nullptr) {
            const T* residual = static_cast<const T*>(problem.epilogue.residual) + row * problem.epilogue.residual_stride + output;
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
        T* y = static_cast<T*>(problem.epilogue.y) + row * problem.epilogue.y_stride + output;
        *reinterpret_cast<uint4*>(y) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

template <typename T, bool GROUPED, bool HALVES>
__device__ __forceinline__ void consume_part(const Problem& problem, int rank, uint32_t shared) {
    using S = Shape<true, GROUPED>;
    static_assert(2 * SUM_BYTES <= S::OUT);
    const int group = warp_uniform(threadIdx.x / 128), cluster = static_cast<int>(blockIdx.x) / problem.splits;
    Tile tile(load_early(problem.work + __ldg(problem.work_begin + cluster)));
    tile.take_part(rank, problem.splits);
    float sums[64] = {};
    int next = group;
    add_up<GROUPED, HALVES, true>(1, group, (tile.k_blocks + 1 - group) / 2, sums, [&] {
        const Stage<GROUPED, true> stage{shared, next % S::STAGES};
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
    const int row_count = GROUP_ROWS / problem.splits, run = threadIdx.x % RUNS;
    for (int in_part = threadIdx.x / RUNS; in_part < row_count; in_part += CONSUMERS / RUNS) {
        const int in_tile = rank * row_count + in_part, row = tile.row + in_tile;
        const float x_scale = !GROUPED && row < problem.m ? __ldg(problem.x_scales + row) : 1.0f;
        const uint32_t from = shared + (in_tile * ROW_FLOATS + run * RUN) * 4;
        float v[RUN] = {};
        for (int of = 0; of < 2 * problem.splits; ++of) {
#pragma unroll
            for (int four = 0; four < RUN; four += 4) {
                const float4 found = load_from_cluster(from + of % 2 * SUM_BYTES + four * 4, of / 2);
                v[four] += found.x, v[four + 1] += found.y, v[four + 2] += found.z, v[four + 3] += found.w;
            }
        }
        finish_run<T>(problem, tile, row, run, x_scale, v);
    }
}

}  // namespace
