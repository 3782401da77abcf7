// The memory of this process, now and at its peak.
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

// Peaks are counted from the start of the meter. A thread samples every ten milliseconds. Operations sample when they
// end, at most once a millisecond; a thread that sampled so often would cost 3 % of a training step on two cores.
void meter_start();
void meter_look();
MemoryUse meter_peak();
void meter_stop();

}  // namespace fb
