// The smallest right programs in which shared memory is filled again and again, and only mbarriers or __syncwarp order the writes
// before the reads and those before the next writes, as in our kernels. What racecheck reports here it reports falsely.
// Prints the name of each program; exits with 1 where a number is wrong.
#include "../../../kernels/sparsefront_kernels/cuda/hopper.cuh"

#include <cstdio>
#include <vector>

namespace {

constexpr int LANES = 32, WARPS = 4, STAGES = 2, BYTES = LANES * 4, PIECES = 4;

__device__ __forceinline__ bool first_lane() { return threadIdx.x % LANES == 0; }

// Warp 0 fills a ring by bulk copies, and says beside each slot what is in it; the others add up what they read.
__global__ void ring_kernel(const int* source, int* sums, int rounds) {
    __shared__ alignas(16) int slots[STAGES][LANES];
    __shared__ int said[STAGES];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < STAGES; ++slot) {
            barrier_init(shared_address(full + slot), 1);
            barrier_init(shared_address(empty + slot), WARPS - 1);
        }
        fence_barrier_init();
    }
    __syncthreads();
    int sum = 0;
    for (int round = 0, slot = 0, phase = 0; round < rounds; ++round) {
        if (threadIdx.x == 0) {
            barrier_wait(shared_address(empty + slot), phase ^ 1);
            store_word(shared_address(said + slot), round);
            barrier_arrive_expect(shared_address(full + slot), BYTES);
            copy_bulk(shared_address(slots[slot]), source + round * LANES, BYTES, shared_address(full + slot));
        } else if (threadIdx.x >= LANES) {
            barrier_wait(shared_address(full + slot), phase);
            sum += warp_uniform(load_word(shared_address(said + slot))) + slots[slot][threadIdx.x % LANES];
            __syncwarp();
            if (first_lane()) barrier_arrive(shared_address(empty + slot));
        }
        if (++slot == STAGES) slot = 0, phase ^= 1;
    }
    sums[threadIdx.x] = sum;
}

// Each warp fills a ring of its own by bulk copies, and a slot again once all of its lanes have read it.
__global__ void own_ring_kernel(const int* source, int* sums, int rounds) {
    __shared__ alignas(16) int slots[WARPS][STAGES][LANES];
    __shared__ uint64_t barriers[WARPS][STAGES];
    const int warp = threadIdx.x / LANES;
    uint64_t* there = barriers[warp];
    const auto fill = [&](int round) {
        const int slot = round % STAGES;
        barrier_arrive_expect(shared_address(there + slot), BYTES);
        copy_bulk(shared_address(slots[warp][slot]), source + round * LANES, BYTES, shared_address(there + slot));
    };
    if (first_lane()) {
        for (int slot = 0; slot < STAGES; ++slot) barrier_init(shared_address(there + slot), 1);
        fence_barrier_init();
        for (int round = 0; round < STAGES && round < rounds; ++round) fill(round);
    }
    __syncwarp();
    int sum = 0;
    for (int round = 0; round < rounds; ++round) {
        const int slot = round % STAGES;
        barrier_wait(shared_address(there + slot), round / STAGES & 1);
        sum += round + slots[warp][slot][threadIdx.x % LANES];
        __syncwarp();
        if (first_lane() && round + STAGES < rounds) fill(round + STAGES);
    }
    sums[threadIdx.x] = warp == 0 ? 0 : sum;
}

// A warp's part of a piece.
__device__ __forceinline__ void bring(int* piece, const int* source) { piece[threadIdx.x] = source[threadIdx.x]; }

// All warps bring pieces, each ahead of the one that is read, with a barrier to a piece; all pieces are brought anew in each round.
__global__ void pieces_kernel(const int* source, int* sums, int rounds) {
    __shared__ int pieces[PIECES][WARPS * LANES];
    __shared__ uint64_t there[PIECES];
    if (threadIdx.x == 0) {
        for (int piece = 0; piece < PIECES; ++piece) barrier_init(shared_address(there + piece), WARPS);
        fence_barrier_init();
    }
    int sum = 0;
    for (int round = 0; round < rounds; ++round) {
        __syncthreads();  // barriers are initialized; all have read the round before
        for (int piece = -1; piece < PIECES; ++piece) {
            if (piece + 1 < PIECES) {
                bring(pieces[piece + 1], source);
                __syncwarp();
                if (first_lane()) barrier_arrive(shared_address(there + piece + 1));
            }
            if (piece < 0) continue;
            barrier_wait(shared_address(there + piece), round & 1);
            sum += pieces[piece][WARPS * LANES - 1 - threadIdx.x];
        }
    }
    sums[threadIdx.x] = sum;
}

template <typename Kernel, typename Expected>
bool right(const char* name, Kernel kernel, const int* source, int* sums, int rounds, Expected expected) {
    kernel<<<1, WARPS * LANES>>>(source, sums, rounds);
    std::vector<int> found(WARPS * LANES);
    const cudaError_t failed = cudaMemcpy(found.data(), sums, found.size() * sizeof(int), cudaMemcpyDeviceToHost);
    bool same = failed == cudaSuccess;
    for (int thread = 0; thread < WARPS * LANES; ++thread) same = same && found[thread] == expected(thread);
    std::printf("%s: %s\n", name, failed != cudaSuccess ? cudaGetErrorString(failed) : same ? "right" : "wrong");
    return same;
}

}  // namespace

int main() {
    constexpr int ROUNDS = 64;
    std::vector<int> numbers(ROUNDS * LANES);
    for (int i = 0; i < ROUNDS * LANES; ++i) numbers[i] = i * 7 % 1000;
    int *source, *sums;
    cudaMalloc(&source, numbers.size() * sizeof(int));
    cudaMalloc(&sums, WARPS * LANES * sizeof(int));
    cudaMemcpy(source, numbers.data(), numbers.size() * sizeof(int), cudaMemcpyHostToDevice);
    const auto of_ring = [&](int thread) {
        int sum = 0;
        for (int round = 0; round < ROUNDS && thread >= LANES; ++round) sum += round + numbers[round * LANES + thread % LANES];
        return sum;
    };
    const auto of_pieces = [&](int thread) { return ROUNDS * PIECES * numbers[WARPS * LANES - 1 - thread]; };
    bool all = right("ring", ring_kernel, source, sums, ROUNDS, of_ring);
    all &= right("own ring", own_ring_kernel, source, sums, ROUNDS, of_ring);
    all &= right("pieces", pieces_kernel, source, sums, ROUNDS, of_pieces);
    return all ? 0 : 1;
}
