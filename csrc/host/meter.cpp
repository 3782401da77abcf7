#include "host/meter.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "host/memory.h"
#include "host/system.h"

namespace fb {
namespace {

std::atomic<int64_t> peak_footprint{0}, peak_resident{0};

void lift(std::atomic<int64_t>& peak, int64_t value) {
    int64_t before = peak.load(std::memory_order_relaxed);
    while (value > before && !peak.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
    }
}

void record(const MemoryUse& use) {
    lift(peak_footprint, use.footprint);
    lift(peak_resident, use.rss);
}

using Clock = std::chrono::steady_clock;

// Takes samples for operations and for the thread, at least a millisecond apart, whoever asks.
class Watch {
public:
    void look() {
        const int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start_).count();
        int64_t last = last_.load(std::memory_order_relaxed);
        if (now <= last || !last_.compare_exchange_strong(last, now, std::memory_order_relaxed)) return;
        // Occasionally read the full report, which also counts shared memory and swap.
        record(now / kFull > last / kFull ? memory_now() : memory_sample());
    }

private:
    static constexpr int64_t kFull = 16;  // milliseconds
    const Clock::time_point start_ = Clock::now();
    std::atomic<int64_t> last_{0};
};

std::atomic<bool> running{false};

// Never destroyed, because an operation may be sampling while another thread stops the meter.
Watch& watch() {
    static Watch* instance = new Watch;
    return *instance;
}

// Threads may start and stop the meter at the same time.
struct Sampling {
    std::mutex changing;
    std::thread thread;
    void stop() {  // called with `changing` held
        running = false;
        if (thread.joinable()) thread.join();
    }
};

// Also stopped when the process exits while the meter runs; never destroyed. A forked child begins with a new one,
// because the thread exists only in the parent and can neither be joined nor ended.
Sampling& sampling() {
    static Sampling* instance = nullptr;
    static std::once_flag once;
    std::call_once(once, [] {
        instance = new Sampling;
        std::atexit(meter_stop);
        after_fork([] {
            instance = new Sampling;
            running = false;
        });
    });
    return *instance;
}

}  // namespace

void meter_start() {
    Sampling& s = sampling();
    const std::lock_guard<std::mutex> lock(s.changing);
    s.stop();
    peak_footprint = 0;
    peak_resident = 0;
    record(memory_now());
    running = true;
    s.thread = std::thread([] {
        while (running.load(std::memory_order_relaxed)) {
            watch().look();
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    });
}

void meter_look() {
    if (running.load(std::memory_order_relaxed)) watch().look();
}

MemoryUse meter_peak() {
    record(memory_now());
    return {peak_footprint.load(), std::max(peak_resident.load(), peak_rss())};
}

void meter_stop() {
    Sampling& s = sampling();
    const std::lock_guard<std::mutex> lock(s.changing);
    s.stop();
}

}  // namespace fb
