// Blocks of a cluster that share the k-blocks of a work tile of 64 rows of X, of which their warpgroups take turns; then each adds up
// and stores some of the rows.
#pragma once

#include "fp8_consumer.cuh"
#include "fp8_runs.cuh"

namespace {

constexpr int SUM_BYTES = GROUP_ROWS * ROW_FLOATS * 4;

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
    Run run(tile);
    run.load(problem);
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
        const float x_scale = !GROUPED && row < problem.m ? load_x_scale(problem.x_scales + row) : 1.0f;
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
