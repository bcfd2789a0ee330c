// Y = X · W^T + bias for a weight with single kept weights, or small blocks of them, and any number of rows of X.
//
// A thread owns rows of X: four or eight lanes of a warp cover 128 bytes of rows, which they read side by side from
// shared memory, so there are no bank conflicts, whichever inputs an output keeps. A warp multiplies by eight or four
// groups of BLOCK outputs at once; the outputs of a group keep the same inputs, so each load of X serves all of them. A
// group's kept inputs are a list (thread_per_row_list.cuh). The CTAs of a cluster split K. Each CTA goes over its
// k-blocks of 256 inputs in passes, with as many k-blocks per pass as fit into shared memory. Sums are added in a fixed
// order.
#pragma once

#include "thread_per_row_sums.cuh"

namespace thread_per_row {

constexpr int MOST_WARPS = 16;
constexpr int DISTINCT_K_BLOCKS = 65536 / K_BLOCK;  // k-blocks before 16-bit indices wrap around

struct Problem {
    Inputs inputs;
    Lists lists;
    Outputs outputs;
    int k_block_count;
    int sets;    // sets of TOGETHER groups per warp
    int splits;  // CTAs per cluster
    int k_blocks;   // k-blocks in shared memory at once, at most 7
    int dependent_launch;
};

// The k-blocks that are in shared memory during one pass.
struct Pass {
    int first, last;

    __device__ __forceinline__ Pass(const Problem& problem, int first, int end)
        : first(first), last(min(min(first + problem.k_blocks, end), (first / DISTINCT_K_BLOCKS + 1) * DISTINCT_K_BLOCKS)) {}
};

template <typename T>
__device__ __forceinline__ void bring(const Problem& problem, const Pass& pass, int first_row, uint8_t* slots) {
    for (int k_block = pass.first; k_block < pass.last; ++k_block) {
        const int count = min(K_BLOCK, problem.inputs.k - k_block * K_BLOCK);
        stage<T>(problem.inputs, k_block * K_BLOCK, count, first_row, slots + (k_block - pass.first) * K_BLOCK * SLOT_BYTES);
    }
}

// First entry of each k-block in the list at a position.
__device__ __forceinline__ const int* pointers_of(const Problem& problem, int position) {
    return problem.lists.pointers + static_cast<long long>(position) * (problem.k_block_count + 1);
}

// The entries of a list that belong to a pass; empty beyond the last group.
struct Range {
    int first = 0, beyond = 0;

    __device__ __forceinline__ Range() {}
    __device__ __forceinline__ Range(const Problem& problem, const Pass& pass, int position) {
        if (position >= problem.outputs.groups) return;
        const int* pointers = pointers_of(problem, position);
        first = pointers[pass.first];
        beyond = pointers[pass.last];
    }
};

// Touches the start of a list, to overlap the latency of loads that would otherwise be exposed one after the other.
template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ void ask_for(const Lists& lists, const Range& range) {
    constexpr int ENTRY = BLOCK * sizeof(T);
    const int first = range.first, beyond = range.beyond;
    touch<LANE_UNITS>(lists.values, static_cast<long long>(first) * ENTRY, static_cast<long long>(beyond) * ENTRY);
    touch<LANE_UNITS>(lists.values, static_cast<long long>(first) * ENTRY + GROUP_LANES<LANE_UNITS> * SECTOR_BYTES, static_cast<long long>(beyond) * ENTRY);
    touch<LANE_UNITS>(lists.indices, static_cast<long long>(first) * 2, static_cast<long long>(beyond) * 2);
}

// Prefetches this CTA's equal share of an array into L2, whichever CTAs read it, so that the weight arrives while the
// preceding kernel runs.
__device__ __forceinline__ void prefetch_share(const void* array, long long bytes) {
    constexpr int VECTOR = 16, MOST = 32768;
    const long long vectors = bytes / VECTOR, blocks = gridDim.x * gridDim.y, block = blockIdx.y * gridDim.x + blockIdx.x;
    const long long first = vectors * block / blocks, count = vectors * (block + 1) / blocks - first;
    streams::prefetch(static_cast<const uint8_t*>(array) + first * VECTOR, static_cast<uint32_t>(min(count * VECTOR, static_cast<long long>(MOST))));
}

template <typename T, int BLOCK>
__device__ __forceinline__ void prefetch_lists(const Problem& problem) {
    const long long entries = static_cast<long long>(problem.lists.quads) * QUAD;
    if (threadIdx.x == 0) prefetch_share(problem.lists.values, entries * BLOCK * sizeof(T));
    if (threadIdx.x == LANES / 2) prefetch_share(problem.lists.indices, entries * 2);
    if (threadIdx.x == LANES) prefetch_share(problem.lists.pointers, static_cast<long long>(problem.outputs.groups) * (problem.k_block_count + 1) * 4);
}

// How many quads the lists of a warp may advance together while their k-blocks have arrived: the minimum over lists,
// ignoring those with nothing left. If each list advanced on its own, lanes would diverge and wait for one another at
// every k-block.
__device__ __forceinline__ int together(int come, int start, int whole_end) {
    constexpr int ANY = 1 << 30;
    const int quads = __reduce_min_sync(~0u, come >= whole_end ? ANY : max(come - start, 0));
    return min(quads, max(whole_end - start, 0));
}

template <typename T, int BLOCK, int LANE_UNITS>
__device__ __forceinline__ void product(const Problem& problem) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    const int rank = blockIdx.x % problem.splits, of_block = TOGETHER<LANE_UNITS> * warps * problem.sets;
    const int first_group = blockIdx.x / problem.splits * of_block, first_row = blockIdx.y * ROWS<T>;
    const int begin = static_cast<int>(static_cast<long long>(problem.k_block_count) * rank / problem.splits);
    const int end = static_cast<int>(static_cast<long long>(problem.k_block_count) * (rank + 1) / problem.splits);
    const int resident = min(problem.k_blocks * K_BLOCK, problem.inputs.k);
    float* const sums_of_block = reinterpret_cast<float*>(shared + resident * SLOT_BYTES);
    if (problem.dependent_launch == streams::EARLY) streams::let_next_grid_start();
    if (problem.dependent_launch != streams::OFF) {
        prefetch_lists<T, BLOCK>(problem);
        streams::wait_for_grid_before();
    }

    const int group_of_set = warp * TOGETHER<LANE_UNITS> + threadIdx.x % LANES / GROUP_LANES<LANE_UNITS>;  // index within the CTA
    int next = begin;
    do {
        const Pass pass(problem, next, end);
        next = pass.last;
        if (pass.first > begin) __syncthreads();  // all warps are done with X of the previous pass
        bring<T>(problem, pass, first_row, shared);
        const Origin origin = Origin::of_lane<LANE_UNITS>(pass.first % DISTINCT_K_BLOCKS * K_BLOCK);
        Range now(problem, pass, first_group + group_of_set);
        Range next_set = problem.sets > 1 ? Range(problem, pass, first_group + group_of_set + warps * TOGETHER<LANE_UNITS>) : Range();
        ask_for<T, BLOCK, LANE_UNITS>(problem.lists, now);
        for (int set = 0; set < problem.sets; ++set) {
            const int group = group_of_set + set * warps * TOGETHER<LANE_UNITS>, position = first_group + group;
            const bool own = position < problem.outputs.groups;
            const int first = now.first, beyond = now.beyond;
            if (set + 1 < problem.sets) ask_for<T, BLOCK, LANE_UNITS>(problem.lists, next_set);
            now = next_set;
            next_set = set + 2 < problem.sets ? Range(problem, pass, position + 2 * warps * TOGETHER<LANE_UNITS>) : Range();

            Sums<T, BLOCK, LANE_UNITS> sums = {};
            const int start = (first + QUAD - 1) / QUAD, whole_end = beyond / QUAD;
            int at = start;
            for (int k_block = set == 0 ? pass.first : pass.last - 1; k_block < pass.last; ++k_block) {  // the first set waits for each k-block
                int here = whole_end;
                if (set == 0) {
                    wait_for_copies(pass.last - 1 - k_block);
                    __syncthreads();
                    if (k_block + 1 < pass.last) here = start + together(own ? pointers_of(problem, position)[k_block + 1] / QUAD : whole_end, start, whole_end);
                }
                multiply_quads<T, BLOCK, LANE_UNITS>(sums, problem.lists, at, here, shared, origin);
                at = max(at, here);
            }
            if (first % QUAD != 0 || beyond % QUAD != 0) {  // quads that straddle the k-blocks before or after this pass
                Quad<T, BLOCK> quad;
                if (first % QUAD != 0 && first < beyond) {
                    quad.load_within(problem.lists, first / QUAD, first, beyond);
                    multiply<T, BLOCK, LANE_UNITS>(sums, quad, shared, origin);
                }
                if (beyond % QUAD != 0 && whole_end * QUAD >= first) {
                    quad.load_within(problem.lists, whole_end, first, beyond);
                    multiply<T, BLOCK, LANE_UNITS>(sums, quad, shared, origin);
                }
            }
            const bool finished = pass.last >= end;
            add_and_keep<T, BLOCK, LANE_UNITS>(sums, sums_of_block, group, pass.first > begin, !finished || problem.splits > 1);
            if (finished && set + 1 == problem.sets && problem.dependent_launch == streams::LATE) streams::let_next_grid_start();
            if (finished && problem.splits == 1 && own) write_group<T, BLOCK, LANE_UNITS>(problem.outputs, position, first_row, sums);
        }
    } while (next < end);
    if (problem.splits == 1) return;
    __syncwarp();
    streams::cluster_sync();
    add_up_and_write<T, BLOCK>(problem.outputs, sums_of_block, first_group, of_block, first_row, rank, problem.splits);
    __syncwarp();
    streams::cluster_sync();  // no CTA may exit while others read its shared memory
}

// Same field order as in common/thread_per_row.py.
struct Arguments {
    const void *x, *values, *indices, *pointers, *order, *bias;
    void* y;
    long long row_stride, input_stride;  // strides in elements
    int vectors;
    int type, bias_type;  // 1 float, 2 half, 3 bfloat16; bias_type 0: none
    int m, k, groups, block, quads, k_block_count;
    // lane_units: 1, or 2 for single weights
    int sets, warps, splits, k_blocks, lane_units, shared_bytes, dependent_launch;
};

// rows: rows of X per CTA; together: groups that a warp multiplies by at once.
template <typename Kernel>
cudaError_t launch(Kernel kernel, const Problem& problem, int rows, int together, const Arguments& given, cudaStream_t stream) {
    cudaLaunchAttribute attributes[2]{};
    int count = 0;
    if (given.splits > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {static_cast<unsigned>(given.splits), 1, 1};
    }
    if (given.dependent_launch != streams::OFF) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    const int of_block = together * given.warps * given.sets;
    config.gridDim = dim3((given.groups + of_block - 1) / of_block * given.splits, (given.m + rows - 1) / rows);
    config.blockDim = dim3(LANES * given.warps);
    config.dynamicSmemBytes = given.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    if (given.warps > MOST_WARPS || given.splits < 1 || given.splits > MOST_SPLITS || given.sets < 1 || given.k_blocks < 1 || config.gridDim.y > 65535)
        return cudaErrorInvalidValue;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, given.shared_bytes);
    return error == cudaSuccess ? cudaLaunchKernelEx(&config, kernel, problem) : error;
}

template <typename Kernels, typename T>
cudaError_t launch_block(const Problem& problem, const Arguments& given, cudaStream_t stream) {
    if (given.block == 1 && given.lane_units == 2)
        return launch(Kernels::template kernel<T, 1, 2>(), problem, ROWS<T>, TOGETHER<2>, given, stream);
    if (given.lane_units != 1) return cudaErrorInvalidValue;
    if (given.block == 1) return launch(Kernels::template kernel<T, 1, 1>(), problem, ROWS<T>, TOGETHER<1>, given, stream);
    if constexpr (Kernels::BLOCKS) {
        if (given.block == 2) return launch(Kernels::template kernel<T, 2, 1>(), problem, ROWS<T>, TOGETHER<1>, given, stream);
        if (given.block == 4) return launch(Kernels::template kernel<T, 4, 1>(), problem, ROWS<T>, TOGETHER<1>, given, stream);
    }
    return cudaErrorInvalidValue;
}

// Kernels: kernel<T, BLOCK, LANE_UNITS>() returns a __global__ function; BLOCKS: whether blocks of 2 and 4 exist too.
template <typename Kernels>
cudaError_t launch_any(const Arguments& given, void* stream) {
    const Problem problem{{given.x, given.row_stride, given.input_stride, given.m, given.k, given.vectors},
                          {given.values, static_cast<const uint16_t*>(given.indices), static_cast<const int*>(given.pointers), given.quads},
                          {given.y, given.bias, given.bias_type, static_cast<const int*>(given.order), given.m, given.groups},
                          given.k_block_count,
                          given.sets,
                          given.splits,
                          given.k_blocks,
                          given.dependent_launch};
    const auto queue = static_cast<cudaStream_t>(stream);
    switch (given.type) {
        case 1: return launch_block<Kernels, float>(problem, given, queue);
        case 2: return launch_block<Kernels, __half>(problem, given, queue);
        case 3: return launch_block<Kernels, __nv_bfloat16>(problem, given, queue);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace thread_per_row
