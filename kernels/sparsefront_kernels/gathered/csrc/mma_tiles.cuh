// MMA tiles of 16 inputs x 64 outputs, the weight layout of the wgmma kernels, and the product of one pipeline stage.
#pragma once

#include "../../cuda/pipeline.cuh"
#include "../../cuda/wgmma.cuh"

namespace {

constexpr int MMA_TILE = 16;         // inputs (k) of one wgmma
constexpr int STAGE_MMA_TILES = 4;
constexpr int STAGE_ROWS = MMA_TILE * STAGE_MMA_TILES;
constexpr int ROW_BYTES = 128;      // swizzled row of 64 elements
constexpr int MMA_TILE_BYTES = MMA_TILE * ROW_BYTES;
constexpr int PANEL_BYTES = STAGE_ROWS * ROW_BYTES;  // one half of a CTA tile
constexpr int K_BLOCK_WORDS = STAGE_ROWS + 4;           // rows, uses, panel offsets, padding to 16 bytes

// acc (+)= the products of COUNT MMA tiles of a stage; the weights of the MMA tiles in use are contiguous. Each COUNT
// gets straight-line code: if a branch could separate the fence from a wgmma, the compiler would serialize the wgmmas.
template <typename T, int BLOCK_M, int COUNT>
__device__ __forceinline__ void multiply(float (&acc)[BLOCK_M / 2], uint32_t w, uint32_t x, uint32_t use, int add) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const uint32_t mma_tile = COUNT == STAGE_MMA_TILES ? i : __ffs(use) - 1;
        wgmma<T, BLOCK_M>(acc, operand_descriptor(w + i * (MMA_TILE_BYTES >> 4)),
                          operand_descriptor(x + mma_tile * (MMA_TILE_BYTES >> 4)), i == 0 ? add : 1);
        use &= use - 1;
    }
    wgmma_commit();
}

}  // namespace
