#include "host/meter.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#if defined(__APPLE__)
#include <mach/mach.h>
#endif

namespace fb {
namespace {

#if defined(__linux__)

int64_t field_kb(const char* text, const char* name) {
    const char* at = std::strstr(text, name);
    return at ? std::atoll(at + std::strlen(name)) : 0;
}

// Reads all of /proc/self/status.
bool read_status(char* buffer, size_t size) {
    const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t n = read(file, buffer, size - 1);
    close(file);
    if (n <= 0) return false;
    buffer[n] = 0;
    return true;
}

// /proc/self/statm is far cheaper than status; its "shared" column is file pages plus shared memory.
class Sampler {
public:
    MemoryUse sample() {
        if (process_ != getpid()) return memory_now();  // a forked child: the open file is its parent's
        char buffer[128];
        const ssize_t n = file_ < 0 ? -1 : pread(file_, buffer, sizeof buffer - 1, 0);
        if (n <= 0) return {};
        buffer[n] = 0;
        long long size = 0, resident = 0, shared = 0;
        std::sscanf(buffer, "%lld %lld %lld", &size, &resident, &shared);
        return {(resident - shared) * page_, resident * page_};
    }

private:
    const int file_ = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    const int64_t page_ = sysconf(_SC_PAGESIZE);
    const pid_t process_ = getpid();
};

#else

class Sampler {
public:
    MemoryUse sample() { return memory_now(); }
};

#endif

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
        record(now / kFull > last / kFull ? memory_now() : sampler_.sample());
    }

private:
    static constexpr int64_t kFull = 16;  // milliseconds
    const Clock::time_point start_ = Clock::now();
    std::atomic<int64_t> last_{0};
    Sampler sampler_;
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
        pthread_atfork(nullptr, nullptr, [] {
            instance = new Sampling;
            running = false;
        });
    });
    return *instance;
}

}  // namespace

MemoryUse memory_now() {
#if defined(__linux__)
    char status[8192];
    if (!read_status(status, sizeof status)) return {};
    const int64_t anonymous = field_kb(status, "RssAnon:"), shared = field_kb(status, "RssShmem:");
    return {(anonymous + shared + field_kb(status, "VmSwap:")) * 1024, field_kb(status, "VmRSS:") * 1024};
#elif defined(__APPLE__)
    task_vm_info_data_t info;
    mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
    if (task_info(mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&info), &count) != KERN_SUCCESS)
        return {};
    return {int64_t(info.phys_footprint), int64_t(info.resident_size)};
#else
    return {};
#endif
}

int64_t peak_rss() {
#if defined(__linux__)
    char status[8192];
    return read_status(status, sizeof status) ? field_kb(status, "VmHWM:") * 1024 : 0;
#else
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return int64_t(usage.ru_maxrss);  // bytes on macOS
#endif
}

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
