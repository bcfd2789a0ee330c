// The second kernel of a launch in which blocks share tiles: it adds up the sums of a tile's parts and stores Y.
#pragma once

#include "persistent_store.cuh"

namespace {

constexpr int HALF_THREADS = CONSUMERS / 2;  // that hold the sums of a half

struct SharedTiles {
    const int4* tiles;       // [count]: CTA tile, its first part, its number of parts, column and width as WorkTile has them
    const float4* partials;  // see Problem
    Epilogue epilogue;
    int count;
};

// A block adds up 64 columns of a half tile, part after part.
template <typename T, typename Y, int WIDEST>
__global__ void __launch_bounds__(HALF_THREADS) add_up_parts(const __grid_constant__ SharedTiles shared) {
    constexpr int QUARTERS = WIDEST / QUARTER, QUADS = QUARTER / 8;
    const int half = blockIdx.x % 2, quarter = blockIdx.x / 2 % QUARTERS;
    const int4 of_tile = shared.tiles[blockIdx.x / 2 / QUARTERS];
    WorkTile tile(of_tile);
    const int thread = half * HALF_THREADS + threadIdx.x, first_output = thread / 32 * 16 + threadIdx.x % 32 / 4;
    pdl_launch_dependents();
    pdl_wait();
    if (quarter * QUARTER >= tile.width) return;
    int outputs[2];
    float bias[2];
#pragma unroll
    for (int p = 0; p < 2; ++p) {
        outputs[p] = shared.epilogue.outputs[tile.cta_tile * 2 * HALF + first_output + p * 8];
        bias[p] = bias_of(shared.epilogue, load_bias(shared.epilogue, outputs[p]));
    }
    const float4* partial = shared.partials + static_cast<int64_t>(of_tile.y) * Block<WIDEST>::PARTIAL_QUADS +
                            quarter * QUADS * CONSUMERS + thread;
    float sums[QUARTER / 2]{};
    for (int part = 0; part < of_tile.z; ++part, partial += Block<WIDEST>::PARTIAL_QUADS) {
        float4 v[QUADS];
#pragma unroll
        for (int i = 0; i < QUADS; ++i) v[i] = __ldcs(partial + i * CONSUMERS);
#pragma unroll
        for (int i = 0; i < QUADS; ++i)
            sums[i * 4] += v[i].x, sums[i * 4 + 1] += v[i].y, sums[i * 4 + 2] += v[i].z, sums[i * 4 + 3] += v[i].w;
    }
    tile.column += quarter * QUARTER;
    Y::template store<QUARTER>(shared.epilogue, tile, sums, bias, outputs, true);
}

}  // namespace
