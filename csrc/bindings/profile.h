// What every bound operation reports: its duration and arithmetic to a profile of the step, and its end to the memory
// meter, which then takes a sample.
#pragma once
#include <atomic>
#include <chrono>

#include "host/meter.h"

namespace fb {

extern std::atomic<bool> profiling;
void add_to_profile(const char* name, double seconds, double flops);

// Times its own lifetime if profiling was on when it began. Costs two branches if profile and meter are off.
class Timed {
public:
    Timed(const char* name, double flops) : name_(name), flops_(flops), timed_(profiling) {
        if (timed_) start_ = Clock::now();
    }
    ~Timed() {
        meter_look();
        if (timed_) add_to_profile(name_, std::chrono::duration<double>(Clock::now() - start_).count(), flops_);
    }

private:
    using Clock = std::chrono::steady_clock;
    const char* name_;
    double flops_;
    bool timed_;
    Clock::time_point start_;
};

}  // namespace fb
