// Ring buffer of pipeline stages in shared memory.
#pragma once

#include <cstdint>

namespace {

// Current slot and mbarrier phase parity.
struct Ring {
    int slot = 0;
    uint32_t phase = 0;

    __device__ __forceinline__ void advance(int stages) {
        if (++slot == stages) {
            slot = 0;
            phase ^= 1;
        }
    }
};

}  // namespace
