// Y[N, M] = activation(W[N, K] · X[K, M] + bias[N]) + residual for a gathered weight on CUDA cores, in
// float32 throughout, feature-major.
//
// A CTA computes one tile of 32, 64 or 128 outputs, which share their kept inputs, times BLOCK_M columns. Four producer warps load: a
// kept input is one bulk copy of BLOCK_M contiguous elements of X, and the weights of a stage are another. Four consumer warps each
// compute 32 outputs x 8 · COLUMNS columns, a thread 8 outputs x COLUMNS columns. If the columns need fewer than four warps,
// WARP_SPLIT_K of them share the inputs of a stage; in a small grid `splits` CTAs of a cluster share the inputs of a tile. Both reduce
// through shared memory in a fixed order. Without a reduction, a CTA continues with another tile, whose rows load meanwhile.
// Hierarchical blocking and double buffering: "NM-SpMM: Accelerating Matrix Multiplication Using N:M Sparsity with GPGPU",
// 2025. See ../README.md.
#include "simt.cuh"

namespace {

template <typename S>
__device__ __forceinline__ void consume(const Problem& problem, int work_tiles, uint32_t stages, uint32_t full, uint32_t empty) {
    __shared__ alignas(16) int all_outputs[WARPS][32];
    const Place<S> place;
    const int lane = threadIdx.x % 32;
    const bool signals = lane == 0;
    extern __shared__ __align__(128) float shared[];
    const int* outputs = all_outputs[threadIdx.x / 32 - WARPS];
    const uint32_t own_x = stages + 4 * (place.k_slice * S::BLOCK_M + place.column);
    const uint32_t own_w = stages + 4 * (S::X_FLOATS + place.k_slice * S::WIDTH + place.output);
    const bool in_registers = S::WARP_SPLIT_K == 1 && problem.splits == 1 && problem.activation == NONE;
    Ring ring;
    for (int index = blockIdx.x / problem.splits; index < work_tiles; index += gridDim.x / problem.splits) {
        const WorkTile<S> work_tile(problem, index);
        const Range range(problem, work_tile.tile, S::ROWS);
        const int k_blocks = range.count / S::ROWS, tail = range.count % S::ROWS;
        __syncwarp();
        if (lane < 8)  // outputs of this warp, for the epilogue
            copy_16_bytes(shared_address(outputs + 4 * lane),
                          problem.outputs + work_tile.tile * S::WIDTH + (place.output & ~31) + 4 * lane, 16);
        Sums<S> sums;
        Fragment<S> fragments[2];
        if (range.count > 0) barrier_wait(full + 8 * ring.slot, ring.phase);
        uint32_t x = own_x + ring.slot * S::STAGE_BYTES, w = own_w + ring.slot * S::STAGE_BYTES;
        fragments[0].load(w, x);
#pragma unroll 1
        for (int k_block = 0; k_block < k_blocks; ++k_block) {
            const Ring next = ring.next(problem.stages);
            const bool more = k_block + 1 < k_blocks || tail;
            const int at = (more ? next.slot : ring.slot) * S::STAGE_BYTES;
#pragma unroll
            for (int i = 0; i < S::WARP_ROWS; ++i) {
                if (i + 3 == S::WARP_ROWS && more) barrier_wait(full + 8 * next.slot, next.phase);
                if (i + 1 < S::WARP_ROWS) {
                    fragments[(i + 1) % 2].load(w + (i + 1) * S::W_STEP, x + (i + 1) * S::X_STEP);
                } else {
                    x = own_x + at, w = own_w + at;
                    fragments[0].load(w, x);
                }
                sums.add_products(fragments[i % 2].w, fragments[i % 2].x);
            }
            __syncwarp();  // all lanes have read the stage
            if (signals) barrier_arrive(empty + 8 * ring.slot);
            ring = next;
        }
#pragma unroll 1
        for (int row = place.k_slice; row < tail; row += S::WARP_SPLIT_K) {
            fragments[0].load(w, x);
            x += S::X_STEP, w += S::W_STEP;
            sums.add_products(fragments[0].w, fragments[0].x);
        }
        if (tail) {
            __syncwarp();  // all lanes have read the stage
            if (signals) barrier_arrive(empty + 8 * ring.slot);
            ring = ring.next(problem.stages);
        }
        wait_for_own_copies();
        __syncwarp();
        if (in_registers) {
            store_sums<S>(problem, place, work_tile, outputs, sums);
        } else {
            add_up_and_store<S>(problem, place, work_tile, outputs, shared, sums);
        }
    }
}

// Prefetches the list and weights of this CTA's first stages into L2, before the PDL wait.
template <typename S>
__device__ __forceinline__ void prefetch_first_stages(const Problem& problem) {
    const Range range(problem, WorkTile<S>(problem, blockIdx.x / problem.splits).tile, S::ROWS);
    const int count = min(range.count, STAGES_AHEAD * S::ROWS), line = threadIdx.x * 32;
    if (line < count) prefetch_line(problem.kept + range.first + line);
    if (threadIdx.x == 0 && count > 0) {
        prefetch_line(problem.kept + range.first + count - 1);
        prefetch_bulk(problem.panels + static_cast<long long>(range.first) * S::WIDTH, count * S::WIDTH * 4);
    }
}

// Warps fill the stages in turn, since issuing the copies of a stage takes about as long as its products; a lane copies a row. There
// are at least as many stages as warps: parities distinguish only consecutive rounds of the ring.
template <typename S>
__device__ __forceinline__ void produce(const Problem& problem, int work_tiles, uint32_t stages, uint32_t full, uint32_t empty) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = min(WARPS, problem.stages);
    if (problem.kept_of_each && warp == 0) prefetch_first_stages<S>(problem);
    __syncwarp();
    pdl_wait();
    Ring ring{warp, 0};
    int k_block = warp;  // within the work tile; other warps had those before it
    for (int index = blockIdx.x / problem.splits; index < work_tiles; index += gridDim.x / problem.splits) {
        const WorkTile<S> work_tile(problem, index);
        const Range range(problem, work_tile.tile, S::ROWS);
        const int k_blocks = (range.count + S::ROWS - 1) / S::ROWS;
        const int* list = problem.kept + range.first;
        const float* panel = problem.panels + static_cast<long long>(range.first) * S::WIDTH;
        const float* x = problem.x + work_tile.column;
        const uint32_t row_bytes = min(S::BLOCK_M, problem.m - work_tile.column) * 4;
        const auto input = [&](int of_k_block) {  // this lane's
            const int row = of_k_block * S::ROWS + lane;
            return lane < S::ROWS && row < range.count ? list[row] : -1;
        };
        int now = input(k_block), next = input(k_block + warps);
        for (; k_block < k_blocks; k_block += warps) {
            const int following = input(k_block + 2 * warps);
            const int rows = min(S::ROWS, range.count - k_block * S::ROWS);
            const uint32_t target = stages + ring.slot * S::STAGE_BYTES, ready = full + 8 * ring.slot;
            barrier_wait_idly(empty + 8 * ring.slot, ring.phase ^ 1);
            if (copies_bulk(lane)) {
                barrier_arrive_expect(ready, rows * (row_bytes + S::WIDTH * 4));
                copy_bulk(target + S::X_FLOATS * 4, panel + static_cast<long long>(k_block) * (S::ROWS * S::WIDTH),
                          rows * S::WIDTH * 4, ready, lane);
            }
            __syncwarp();
            if (now >= 0) copy_bulk(target + lane * S::BLOCK_M * 4, x + now * problem.x_stride, row_bytes, ready);
            arrive_issued_by_warp(ready, lane);
            now = next, next = following;
            ring.slot += warps;
            if (ring.slot >= problem.stages) ring.slot -= problem.stages, ring.phase ^= 1;
        }
        k_block -= k_blocks;
    }
}

template <typename S>
__global__ void __launch_bounds__(THREADS, S::LEAST_BLOCKS) gathered_simt_kernel(const __grid_constant__ Problem problem) {
    const int work_tiles = problem.tile_count * ((problem.m + S::BLOCK_M - 1) / S::BLOCK_M);
    run_warps<S>(
        problem.stages,
        [&](uint32_t stages, uint32_t full, uint32_t empty) { produce<S>(problem, work_tiles, stages, full, empty); },
        [&](uint32_t stages, uint32_t full, uint32_t empty) { consume<S>(problem, work_tiles, stages, full, empty); });
}

template <int WIDTH, int WARP_SPLIT_K, int OUTPUTS, int COLUMNS>
cudaError_t launch(const Problem& problem, int num_sms, cudaStream_t stream) {
    using S = Shape<WIDTH, WARP_SPLIT_K, OUTPUTS, COLUMNS>;
    return launch_kernel<S>(gathered_simt_kernel<S>, problem, S::STAGE_BYTES, num_sms, stream);
}

}  // namespace

// Returns a cudaError_t. The caller checks shapes, alignment (16 bytes) and that m is a multiple of 4. Strides are in
// elements.
extern "C" int sparsefront_gathered_simt(const void* x, const void* panels, const void* kept, const void* tiles,
                                         const void* outputs, const void* bias, const void* residual, void* y,
                                         long long x_stride, long long y_stride, long long residual_stride, int kept_of_each,
                                         int bias_type, int activation, int m, int k, int tile_count, int width, int warp_split_k, int columns,
                                         int stages, int splits, int num_sms, void* stream) {
    if (stages < 2 || stages > MOST_STAGES || splits < 1 || splits > 8) return cudaErrorInvalidValue;
    const Problem problem{static_cast<const float*>(x),
                          static_cast<const float*>(panels),
                          static_cast<const int*>(kept),
                          static_cast<const int2*>(tiles),
                          kept_of_each,
                          static_cast<const int*>(outputs),
                          bias,
                          static_cast<const float*>(residual),
                          static_cast<float*>(y),
                          x_stride,
                          y_stride,
                          residual_stride,
                          bias_type,
                          activation,
                          m,
                          k,
                          tile_count,
                          stages,
                          splits};
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (width * 1000 + warp_split_k * 100 + columns) {
        case 32116: return launch<32, 1, 8, 16>(problem, num_sms, queue);
        case 32216: return launch<32, 2, 8, 16>(problem, num_sms, queue);
        case 32416: return launch<32, 4, 8, 16>(problem, num_sms, queue);
        case 32108: return launch<32, 1, 8, 8>(problem, num_sms, queue);
        case 32208: return launch<32, 2, 8, 8>(problem, num_sms, queue);
        case 32408: return launch<32, 4, 8, 8>(problem, num_sms, queue);
        case 64116: return launch<64, 1, 8, 16>(problem, num_sms, queue);
        case 64216: return launch<64, 2, 8, 16>(problem, num_sms, queue);
        case 64108: return launch<64, 1, 8, 8>(problem, num_sms, queue);
        case 64208: return launch<64, 2, 8, 8>(problem, num_sms, queue);
        case 128116: return launch<128, 1, 8, 16>(problem, num_sms, queue);
        case 128108: return launch<128, 1, 8, 8>(problem, num_sms, queue);
        default: return cudaErrorInvalidValue;
    }
}
