// The warpgroups that multiply, of the fp8 kernel. Tensor cores add up the 128 inputs of a k-block with few bits; k-blocks are added
// up in float32, each times the scale of its rows of X where k-blocks have scales of their own (GROUPED).
#pragma once

#include "fp8_pieces.cuh"

namespace {

// How many k-blocks the tensor cores add up: one that has scales of its own.
template <bool GROUPED>
constexpr int ADDED_AT_ONCE = GROUPED ? 1 : 2;

template <bool GROUPED, int COUNT>
__device__ __forceinline__ void promote(float* sums, const float (&acc)[COUNT], const float (&scales)[2]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = GROUPED ? fmaf(acc[i], scales[i / 2 % 2], sums[i]) : sums[i] + acc[i];
}

// A stage of the pipeline as a consumer warpgroup sees it.
template <typename S, bool SPLIT, bool GROUPED>
struct Stage {
    uint32_t shared;
    int slot;

    __device__ __forceinline__ uint32_t x(int group) const { return shared + slot * S::STAGE_BYTES + (SPLIT ? 0 : group * GROUP_BYTES); }
    __device__ __forceinline__ uint32_t panels() const { return shared + slot * S::STAGE_BYTES + S::X_BYTES; }

    // Of this thread's two rows of X.
    __device__ __forceinline__ void load_scales(float (&scales)[2]) const {
        if constexpr (GROUPED) {
            const int row = (SPLIT ? threadIdx.x % WARPGROUP : threadIdx.x) / 32 * 16 + threadIdx.x % 32 / 4;
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
template <typename S, bool SPLIT, bool GROUPED>
__device__ __forceinline__ void add_halves(const Stage<S, SPLIT, GROUPED>& stage, int cluster, int group, float (&sums)[64]) {
    const uint32_t uses = warp_uniform(load_word(stage.shared + S::WORDS + 4 * stage.slot));
    float scales[2];
    if (uses == 3) {
        float acc[64];
        multiply_k_block<128, true>(acc, stage.x(group), stage.panels());
        stage.load_scales(scales);
        wgmma_wait<0>();
        fence_sums(acc);
        stage.release(cluster);
        promote<GROUPED>(sums, acc, scales);
    } else {
        float acc[32];
        multiply_k_block<64, true>(acc, stage.x(group), stage.panels() + (uses == 2 ? PANEL_BYTES : 0));
        stage.load_scales(scales);
        wgmma_wait<0>();
        fence_sums(acc);
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
        fence_sums(acc);
        promote<GROUPED>(sums, acc, scales);
    }
};

// Adds up `count` k-blocks. next(): the stage of the next one, once it is filled. Of two warpgroups each has the next one's products
// always under way, but where halves differ: instructions of two widths leave too few registers. Of three, others multiply meanwhile.
template <typename S, bool SPLIT, bool GROUPED, bool HALVES, typename Next>
__device__ __forceinline__ void add_up(int cluster, int group, int count, float (&sums)[64], const Next& next) {
    if constexpr (HALVES) {
        for (; count > 0; --count) add_halves(next(), cluster, group, sums);
    } else if constexpr (S::GROUPS > 2) {
        while (count > 0) {
            Flight<GROUPED> a;
            Stage<S, SPLIT, GROUPED> stage = next();
            a.template begin<true>(stage, group);
            if (ADDED_AT_ONCE<GROUPED> == 2 && count > 1) {
                const Stage<S, SPLIT, GROUPED> before = stage;
                stage = next();
                a.template begin<false>(stage, group);
                wgmma_wait<1>();
                before.release(cluster);
                --count;
            }
            wgmma_wait<0>();
            stage.release(cluster);
            a.end(sums);
            --count;
        }
    } else {
        if (count <= 0) return;
        Flight<GROUPED> a, b;
        Stage<S, SPLIT, GROUPED> stage = next();
        a.template begin<true>(stage, group);
        // the next products, into the same accumulators or others; those before have ended then
        const auto continue_with = [&](auto& flight, auto first) {
            const Stage<S, SPLIT, GROUPED> before = stage;
            stage = next();
            flight.template begin<decltype(first)::value>(stage, group);
            wgmma_wait<1>();
            before.release(cluster);
        };
        const auto ends_with = [&](auto& flight) {
            if (--count > 0) return false;
            wgmma_wait<0>();
            fence_sums(flight.acc);
            stage.release(cluster);
            flight.end(sums);
            return true;
        };
        while (true) {
            if (ends_with(a)) return;
            if constexpr (ADDED_AT_ONCE<GROUPED> == 2) {
                continue_with(a, std::false_type{});
                if (ends_with(a)) return;
            }
            continue_with(b, std::true_type{});
            a.end(sums);
            if (ends_with(b)) return;
            if constexpr (ADDED_AT_ONCE<GROUPED> == 2) {
                continue_with(b, std::false_type{});
                if (ends_with(b)) return;
            }
            continue_with(a, std::true_type{});
            b.end(sums);
        }
    }
}

template <typename S, typename T, bool GROUPED, bool HALVES>
__device__ __forceinline__ void consume(const Problem& problem, int rank, uint32_t shared) {
    const int group = warp_uniform(threadIdx.x / 128), cluster = static_cast<int>(blockIdx.x) / problem.cluster;
    const auto row_of = [&](const Tile& tile) { return tile.row + rank * S::ROWS + group * GROUP_ROWS; };
    Store<T, S> store(shared, group);
    const int4* next = problem.work + __ldg(problem.work_begin + cluster);
    const int4* const end = problem.work + __ldg(problem.work_begin + cluster + 1);
    // what a tile needs is read while those before are computed
    int4 ahead[2];
    ahead[0] = ahead[1] = load_early(problem.first_work + cluster);
    if (next + 1 < end) ahead[1] = load_early(next + 1);
    Scales<GROUPED> next_scales;
    next_scales.load(problem, Tile(ahead[0]), row_of(Tile(ahead[0])));
    const int* next_unit = problem.units == nullptr ? nullptr : problem.units + (next - problem.work);
    Ring ring;
    for (; next < end; ++next) {
        const int unit = next_unit == nullptr ? -1 : __ldg(next_unit++);
        const Tile tile(ahead[0]);
        const Scales<GROUPED> scales = next_scales;
        ahead[0] = ahead[1];
        if (next + 2 < end) ahead[1] = load_early(next + 2);
        const int row = row_of(tile);
        if (unit < 0) store.begin(problem, tile, row);
        float sums[64] = {};
        add_up<S, false, GROUPED, HALVES>(problem.cluster, group, tile.k_blocks, sums, [&] {
            const Stage<S, false, GROUPED> stage{shared, ring.slot};
            barrier_wait(shared + S::FULL + 8 * ring.slot, ring.phase);
            ring.advance(S::STAGES);
            return stage;
        });
        next_scales.load(problem, Tile(ahead[0]), row_of(Tile(ahead[0])));  // once more where there is no next tile
        if (unit < 0) {
            store.end(problem, tile, row, sums, scales);
        } else if (row < problem.m) {
            leave_sums(problem.sums, unit + rank * S::GROUPS + group, sums);
        }
    }
    store.leave();
}

}  // namespace
