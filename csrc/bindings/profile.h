// What every bound operation reports: its duration and its arithmetic to a table, where the time of a step goes; and to
// the memory meter, which then takes a sample.
#pragma once
#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "host/meter.h"

namespace fb {

struct ProfileEntry {
    int64_t calls = 0;
    double seconds = 0, flops = 0;
};

extern bool profiling;
std::map<std::string, ProfileEntry>& profile_table();

// Times its own life; costs two branches when neither profile nor meter is on.
class Timed {
public:
    Timed(const char* name, double flops) : name_(name), flops_(flops) {
        if (profiling) start_ = Clock::now();
    }
    ~Timed() {
        meter_look();
        if (!profiling) return;
        static std::mutex table_lock;
        std::lock_guard<std::mutex> lock(table_lock);
        ProfileEntry& entry = profile_table()[name_];
        entry.calls++;
        entry.seconds += std::chrono::duration<double>(Clock::now() - start_).count();
        entry.flops += flops_;
    }

private:
    using Clock = std::chrono::steady_clock;
    const char* name_;
    double flops_;
    Clock::time_point start_;
};

}  // namespace fb
