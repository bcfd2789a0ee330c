// The weight as the tensor-core kernels read it, in MMA tiles of 16 inputs x 64 outputs, and the product of one stage.
#pragma once

#include "../../cuda/pipeline.cuh"
#include "../../cuda/wgmma.cuh"

namespace {

constexpr int MMA_TILE = 16;         // rows of X of one tensor core instruction
constexpr int STAGE_MMA_TILES = 4;
constexpr int STAGE_ROWS = MMA_TILE * STAGE_MMA_TILES;
constexpr int ROW_BYTES = 128;      // of a swizzled row of 64 elements
constexpr int MMA_TILE_BYTES = MMA_TILE * ROW_BYTES;
constexpr int PANEL_BYTES = STAGE_ROWS * ROW_BYTES;  // of one half
constexpr int K_BLOCK_WORDS = STAGE_ROWS + 4;           // rows, uses, begins of panels, padding to 16 bytes

// acc (+)= the products of COUNT MMA tiles of a stage; the weights of used MMA tiles lie one after the other.
// Each COUNT has straight-line code: where a branch could part fence and product, the compiler makes the products wait
// for one another.
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
