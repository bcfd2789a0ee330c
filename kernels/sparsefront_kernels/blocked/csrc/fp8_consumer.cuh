// The warpgroups that multiply, of the fp8 kernel. Tensor cores add up the 128 inputs of a k-block with few bits; k-blocks are added
// up in float32, each times the scale of its rows of X where k-blocks have scales of their own (GROUPED).
#pragma once

#include "fp8_store.cuh"

namespace {

// What has been read stays behind the wait for it.
template <int COUNT>
__device__ __forceinline__ void pin(float (&acc)[COUNT]) {
#pragma unroll
    for (float& v : acc) asm volatile("" : "+f"(v)::"memory");
}

// How many k-blocks the tensor cores add up: one that has scales of its own.
template <bool GROUPED>
constexpr int K_BLOCKS_ADDED_BY_TENSOR_CORES = GROUPED ? 1 : 2;

constexpr int STAGGER = 4;  // k-blocks
__device__ __forceinline__ void stagger_arrive() { asm volatile("bar.arrive 4, %0;" ::"n"(CONSUMERS) : "memory"); }
__device__ __forceinline__ void stagger_sync() { asm volatile("bar.sync 4, %0;" ::"n"(CONSUMERS) : "memory"); }

template <bool GROUPED, int COUNT>
__device__ __forceinline__ void promote(float* sums, const float (&acc)[COUNT], const float (&scales)[2]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = GROUPED ? fmaf(acc[i], scales[i / 2 % 2], sums[i]) : sums[i] + acc[i];
}

// A stage of the pipeline as a consumer warpgroup sees it.
template <bool GROUPED, bool SPLIT>
struct Stage {
    using S = Shape<SPLIT, GROUPED>;
    uint32_t shared;
    int slot;

    __device__ __forceinline__ uint32_t x(int group) const { return shared + slot * S::STAGE_BYTES + (SPLIT ? 0 : group * GROUP_BYTES); }
    __device__ __forceinline__ uint32_t panels() const { return shared + slot * S::STAGE_BYTES + S::X_BYTES; }

    // Of this thread's two rows of X.
    __device__ __forceinline__ void load_scales(float (&scales)[2]) const {
        if constexpr (GROUPED) {
            const int row = threadIdx.x % (2 * S::ROWS) / 32 * 16 + threadIdx.x % 32 / 4;
            const uint32_t own = shared + S::SCALES + slot * S::SCALE_BYTES + row * 4;
#pragma unroll
            for (int p = 0; p < 2; ++p) scales[p] = __uint_as_float(load_word(own + p * 32));
        }
    }

    // It may be filled again, by every block of the cluster, since each brings weights to all.
    __device__ __forceinline__ void release(int cluster) const {
        const int lane = threadIdx.x % 32;
        const uint32_t empty = shared + S::EMPTY + 8 * slot;
        __syncwarp();  // every lane has read its scales
        if (cluster == 1) {
            if (lane == 0) barrier_arrive(empty);
        } else if (lane < cluster) {
            barrier_arrive_in_cluster(empty, lane);
        }
    }
};

// Adds the products of a stage, of one of the halves or both, to the sums.
template <bool GROUPED, bool SPLIT>
__device__ __forceinline__ void add_halves(const Stage<GROUPED, SPLIT>& stage, int cluster, int group, float (&sums)[64]) {
    const uint32_t uses = warp_uniform(load_word(stage.shared + Shape<SPLIT, GROUPED>::WORDS + 4 * stage.slot));
    float scales[2];
    if (uses == 3) {
        float acc[64];
        multiply_k_block<128, true>(acc, stage.x(group), stage.panels());
        stage.load_scales(scales);
        wgmma_wait<0>();
        pin(acc);
        stage.release(cluster);
        promote<GROUPED>(sums, acc, scales);
    } else {
        float acc[32];
        multiply_k_block<64, true>(acc, stage.x(group), stage.panels() + (uses == 2 ? PANEL_BYTES : 0));
        stage.load_scales(scales);
        wgmma_wait<0>();
        pin(acc);
        stage.release(cluster);
        if (uses == 1) {
            promote<GROUPED>(sums, acc, scales);
        } else {
            promote<GROUPED>(sums + 32, acc, scales);
        }
    }
}

// Products of one or two stages, of both halves, that are under way.
template <bool GROUPED>
struct Flight {
    float acc[64], scales[2];

    template <bool FIRST, typename StageOf>
    __device__ __forceinline__ void begin(const StageOf& stage, int group) {
        multiply_k_block<128, FIRST>(acc, stage.x(group), stage.panels());
        stage.load_scales(scales);
    }

    __device__ __forceinline__ void end(float (&sums)[64]) {
        pin(acc);
        promote<GROUPED>(sums, acc, scales);
    }
};

// Adds up `count` k-blocks. next(): the stage of the next one, once it is filled. The next one's products are always under way, but where
// halves differ: instructions of two widths leave too few registers.
template <bool GROUPED, bool HALVES, bool SPLIT, typename Next>
__device__ __forceinline__ void add_up(int cluster, int group, int count, float (&sums)[64], const Next& next) {
    if constexpr (HALVES) {
        for (; count > 0; --count) add_halves(next(), cluster, group, sums);
    } else {
        if (count <= 0) return;
        Flight<GROUPED> a, b;
        Stage<GROUPED, SPLIT> stage = next();
        a.template begin<true>(stage, group);
        // the next products, into the same accumulators or others; those before have ended then
        const auto continue_with = [&](auto& flight, auto first) {
            const Stage<GROUPED, SPLIT> before = stage;
            stage = next();
            flight.template begin<decltype(first)::value>(stage, group);
            wgmma_wait<1>();
            before.release(cluster);
        };
        const auto ends_with = [&](auto& flight) {
            if (--count > 0) return false;
            wgmma_wait<0>();
            stage.release(cluster);
            flight.end(sums);
            return true;
        };
        while (true) {
            if (ends_with(a)) return;
            if constexpr (K_BLOCKS_ADDED_BY_TENSOR_CORES<GROUPED> == 2) {
                continue_with(a, std::false_type{});
                if (ends_with(a)) return;
            }
            continue_with(b, std::true_type{});
            a.end(sums);
            if (ends_with(b)) return;
            if constexpr (K_BLOCKS_ADDED_BY_TENSOR_CORES<GROUPED> == 2) {
                continue_with(b, std::false_type{});
                if (ends_with(b)) return;
            }
            continue_with(a, std::true_type{});
            b.end(sums);
        }
    }
}

template <typename T, bool GROUPED, bool HALVES>
__device__ __forceinline__ void consume(const Problem& problem, int rank, uint32_t shared) {
    using S = Shape<false, GROUPED>;
    const int group = warp_uniform(threadIdx.x / 128), cluster = static_cast<int>(blockIdx.x) / problem.cluster;
    const auto row_of = [&](const Tile& tile) { return tile.row + rank * S::ROWS + group * GROUP_ROWS; };
    Store<T, S> store(shared, group);
    const int4* next = problem.work + __ldg(problem.work_begin + cluster);
    const int4* const end = problem.work + __ldg(problem.work_begin + cluster + 1);
    if (next == end) return;
    // what a tile needs is read while those before are computed
    int4 ahead[2];
    ahead[0] = ahead[1] = load_early(next);
    if (next + 1 < end) ahead[1] = load_early(next + 1);
    Scales<GROUPED> next_scales;
    next_scales.load(problem, Tile(ahead[0]), row_of(Tile(ahead[0])));
    Ring ring;
    bool together = STAGGER > 0;  // the second warpgroup begins behind the first, so that one multiplies while the other stores
    for (; next < end; ++next) {
        const Tile tile(ahead[0]);
        const Scales<GROUPED> scales = next_scales;
        ahead[0] = ahead[1];
        if (next + 2 < end) ahead[1] = load_early(next + 2);
        const int row = row_of(tile);
        store.begin(problem, tile, row);
        float sums[64] = {};
        if (together && group == 1) stagger_sync(), together = false;
        add_up<GROUPED, HALVES, false>(problem.cluster, group, tile.k_blocks, sums, [&] {
            if (together && ring.slot == STAGGER) stagger_arrive(), together = false;
            const Stage<GROUPED, false> stage{shared, ring.slot};
            barrier_wait(shared + S::FULL + 8 * ring.slot, ring.phase);
            ring.advance(S::STAGES);
            return stage;
        });
        if (together) stagger_arrive(), together = false;
        next_scales.load(problem, Tile(ahead[0]), row_of(Tile(ahead[0])));  // once more where there is no next tile
        store.end(problem, tile, row, sums, scales);
    }
    store.leave();
}

}  // namespace
