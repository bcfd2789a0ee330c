// Pieces of work tiles, which clusters share: each leaves its sums in memory, and a second kernel adds them up in a fixed order and
// finishes Y, so that equal operands give equal bits.
#pragma once

#include "../../cuda/shared_sums.cuh"
#include "fp8_runs.cuh"

namespace {

constexpr int EIGHTS = OUTPUTS / 8;               // of the outputs of a unit
constexpr int EIGHT_FLOATS = WARPGROUP * 4;       // a thread has four sums of each
constexpr int UNIT_FLOATS = EIGHTS * EIGHT_FLOATS;
constexpr int CUT_ROWS = GROUP_ROWS / 4;           // of a block that adds up pieces, those of a warp
constexpr int ADDING = EIGHTS * 32;               // threads of it, with four sums each

// Leaves a warpgroup's sums of a piece in memory, as the threads hold them.
__device__ __forceinline__ void leave_sums(float* sums, int unit, const float (&acc)[64]) {
    float* to = sums + static_cast<int64_t>(unit) * UNIT_FLOATS + threadIdx.x % WARPGROUP * 4;
#pragma unroll
    for (int eight = 0; eight < EIGHTS; ++eight) {
        const float* v = acc + eight * 4;
        *reinterpret_cast<float4*>(to + eight * EIGHT_FLOATS) = make_float4(v[0], v[1], v[2], v[3]);
    }
}

// Adds up the pieces of one of the cut tiles, in the order of their k-blocks, and finishes the rows that a warp had.
template <typename T>
__device__ __forceinline__ void finish_rows(const Problem& problem, int cut_tile, int first_row, float (&shared)[CUT_ROWS][ROW_FLOATS]) {
    const int4 place = load_early(problem.cut_tiles + cut_tile);
    const Tile tile(make_int4(place.x, 0, 0, place.y + first_row));
    Run run(tile);
    const int in_tile = static_cast<int>(threadIdx.x) / RUNS, row = tile.row + in_tile, lane = threadIdx.x % 32;
    const bool finishes = in_tile < CUT_ROWS;
    if (place.w > 0) pdl_wait();  // always; without the branch the compiler waits first and loads then
    const float x_scale = finishes && problem.x_groups == 1 && row < problem.m ? load_x_scale(problem.x_scales + row) : 1.0f;
    if (tile.row >= problem.m) return;
    const float* from = problem.sums + (static_cast<int64_t>(place.z) + first_row / GROUP_ROWS) * UNIT_FLOATS +
                        static_cast<int>(threadIdx.x) / 32 * EIGHT_FLOATS + (first_row % GROUP_ROWS / CUT_ROWS * 32 + lane) * 4;
    const float4 sums = add_pieces(from, place.w, static_cast<int64_t>(problem.piece_units) * UNIT_FLOATS, [&] { run.load(problem); });
    const int output = static_cast<int>(threadIdx.x) / 32 * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(&shared[lane / 4][output]) = make_float2(sums.x, sums.y);
    *reinterpret_cast<float2*>(&shared[lane / 4 + 8][output]) = make_float2(sums.z, sums.w);
    __syncthreads();
    if (!finishes) return;
    float v[RUN];
#pragma unroll
    for (int i = 0; i < RUN; ++i) v[i] = shared[in_tile][run.number * RUN + i];
    run.finish(problem.epilogue, x_scale, v);
    store_run<T>(problem, run, row, v);
}

}  // namespace
