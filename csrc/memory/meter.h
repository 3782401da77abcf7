// How much memory this process holds, and the most it ever held.
#pragma once
#include <cstdint>

namespace fb {

struct MemoryUse {
    int64_t footprint =
        0;            // bytes only this process can free: anonymous + shared memory + swap (macOS: phys_footprint)
    int64_t rss = 0;  // resident bytes, file pages included
};

MemoryUse memory_now();  // exact, from the kernel's full report
int64_t peak_rss();      // the kernel's own high-water mark (VmHWM; macOS: ru_maxrss)

// A sampling thread; peaks are over everything since start.
void meter_start(int interval_microseconds);
MemoryUse meter_peak();
void meter_stop();

}  // namespace fb
