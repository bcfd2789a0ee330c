// A thread's copies of its rows, tile after tile, into its ring of shared memory.
#pragma once

#include "../../cuda/hopper.cuh"
#include "division.cuh"

namespace column_norm {

__device__ __forceinline__ char* kept(char* v) { return const_cast<char*>(::kept(static_cast<const char*>(v))); }
using ::kept;

// Where a thread's next copy is from: down the rows of a tile, then in the next tile of the cluster. An address for each row of
// a tile would take more registers than there are.
template <typename S>
struct Copies {
    const char *x, *residual;
    long long x_step, residual_step;  // bytes from one row of a thread to its next
    int column, m;

    __device__ __forceinline__ Copies(const Arguments& problem, int row, int tile, int first_column)
        : x_step(2 * S::ROWS * problem.x_stride), residual_step(2 * S::ROWS * problem.residual_stride),
          column(tile * S::COLUMNS + first_column), m(problem.m) {
        x = static_cast<const char*>(problem.x) + 2 * (row * problem.x_stride + column);
        residual = static_cast<const char*>(problem.residual) + 2 * (row * problem.residual_stride + column);
    }

    // A group of copies for each slot, so that the oldest is known by its number; what does not exist is not brought.
    __device__ __forceinline__ void start(uint32_t slot, bool exists) const {
        if (exists && column < m) {
            copy_16_bytes(slot, x, 16);
            if constexpr (S::RESIDUAL) copy_16_bytes(slot + S::SLOT_BYTES, residual, 16);
        }
        ::commit_copies();
    }

    __device__ __forceinline__ void advance(bool last_of_tile, int clusters) {
        x = kept(x + x_step);
        if constexpr (S::RESIDUAL) residual = kept(residual + residual_step);
        if (last_of_tile) {
            const int columns = S::COLUMNS * clusters;
            column += columns;
            x = kept(x + 2 * columns - S::VECTORS * x_step);
            if constexpr (S::RESIDUAL) residual = kept(residual + 2 * columns - S::VECTORS * residual_step);
        }
    }
};

}  // namespace column_norm
