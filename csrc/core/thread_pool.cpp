#include "core/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "host/system.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fb {
namespace {

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Kernels follow each other within microseconds, so a worker spins before it sleeps.
constexpr int kSpins = 4000;

thread_local bool in_unit = false;  // whether this thread computes units now

class Pool {
public:
    // If the system grants fewer threads than requested, the pool uses those.
    explicit Pool(int workers) {
        try {
            for (int i = 0; i < workers; i++) workers_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {
        }
    }

    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        for (auto& worker : workers_) worker.join();
    }

    int size() const { return int(workers_.size()) + 1; }

    void run(int64_t units, void (*task)(void*, int64_t), void* context) {
        if (units <= 1 || workers_.empty()) {
            for (int64_t u = 0; u < units; u++) task(context, u);
            return;
        }
        task_ = task;
        context_ = context;
        units_ = units;
        next_.store(0, std::memory_order_relaxed);
        busy_.store(int(workers_.size()), std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            generation_.fetch_add(1, std::memory_order_release);
        }
        if (sleepers_.load(std::memory_order_acquire) > 0) wake_.notify_all();
        drain();
        for (int spins = 0; busy_.load(std::memory_order_acquire) > 0; spins++) {
            if (spins < kSpins) relax();
            else std::this_thread::yield();
        }
        if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    }

private:
    // A unit that throws (no memory for scratch) ends the work. `run` rethrows once every thread has stopped.
    void drain() {
        try {
            for (int64_t unit; (unit = next_.fetch_add(1, std::memory_order_relaxed)) < units_;) task_(context_, unit);
        } catch (...) {
            next_.store(units_, std::memory_order_relaxed);
            std::lock_guard<std::mutex> lock(mutex_);
            if (!failure_) failure_ = std::current_exception();
        }
    }

    void work() {
        in_unit = true;
        uint64_t seen = 0;
        for (;;) {
            for (int spins = 0; generation_.load(std::memory_order_acquire) == seen; spins++) {
                if (spins < kSpins) {
                    relax();
                    continue;
                }
                std::unique_lock<std::mutex> lock(mutex_);
                sleepers_.fetch_add(1, std::memory_order_release);
                wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
                sleepers_.fetch_sub(1, std::memory_order_release);
            }
            seen = generation_.load(std::memory_order_acquire);
            if (stop_) return;
            drain();
            busy_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> generation_{0};
    std::atomic<int> sleepers_{0}, busy_{0};
    std::atomic<int64_t> next_{0};
    void (*task_)(void*, int64_t) = nullptr;
    void* context_ = nullptr;
    int64_t units_ = 0;
    std::exception_ptr failure_;
    bool stop_ = false;
};

// The pool, and the lock that serialises its users: several Python threads may call kernels, one at a time.
struct Service {
    std::mutex mutex;
    std::unique_ptr<Pool> pool = std::make_unique<Pool>(0);
};

// Never destroyed: a forked child replaces it, because its workers exist only in the parent; at exit the system frees
// it.
Service* service = nullptr;

Service& serve() {
    static std::once_flag once;
    std::call_once(once, [] {
        service = new Service;
        after_fork([] { service = new Service; });
    });
    return *service;
}

std::atomic<size_t> scratch_most{0};

}  // namespace

int threads() {
    if (in_unit) return 1;  // the pool is in use, and what a unit computes runs in its thread
    Service& s = serve();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.pool->size();
}

void set_threads(int count) {
    Service& s = serve();
    std::lock_guard<std::mutex> lock(s.mutex);
    if (count == s.pool->size()) return;
    s.pool.reset();
    s.pool = std::make_unique<Pool>(count > 1 ? count - 1 : 0);
}

void run_parallel(int64_t units, void (*task)(void*, int64_t), void* context) {
    if (in_unit) {
        for (int64_t u = 0; u < units; u++) task(context, u);
        return;
    }
    Service& s = serve();
    std::lock_guard<std::mutex> lock(s.mutex);
    struct Inside {
        Inside() { in_unit = true; }
        ~Inside() { in_unit = false; }
    } inside;
    s.pool->run(units, task, context);
}

void* thread_scratch(size_t bytes) {
    struct Buffer {
        void* data = nullptr;
        size_t size = 0;
        ~Buffer() { free(); }
        void free() { ::operator delete(data, std::align_val_t(64)); }
    };
    thread_local Buffer buffer;
    size_t most = scratch_most.load(std::memory_order_relaxed);
    while (bytes > most && !scratch_most.compare_exchange_weak(most, bytes, std::memory_order_relaxed)) {
    }
    if (bytes > buffer.size) {
        buffer.free();
        buffer.data = nullptr;
        buffer.size = 0;
        const size_t size = (bytes + 4095) / 4096 * 4096;
        buffer.data = ::operator new(size, std::align_val_t(64));
        buffer.size = size;
    }
    return buffer.data;
}

size_t scratch_peak() { return scratch_most.exchange(0); }

}  // namespace fb
