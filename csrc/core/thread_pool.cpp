#include "core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "host/address.h"
#include "host/processors.h"
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

// A thread that waits spins for this long before it looks what the others do. Usually another kernel follows within
// this time, or another thread ends its last unit (docs/decisions/threads.md).
constexpr std::chrono::microseconds kSpin{100};

// Whether done() became true while this thread span.
template <class Done>
bool spin(const Done& done) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point end = Clock::now() + kSpin;
    do {
        for (int i = 0; i < 32; i++) {
            if (done()) return true;
            relax();
        }
    } while (Clock::now() < end);
    return false;
}

thread_local bool in_unit = false;  // whether this thread computes units now

// What the others see of a thread of the pool.
struct alignas(64) Seat {
    std::atomic<int> thread{0};      // its number
    std::atomic<bool> open{false};   // whether it has units that it has not reported
    std::atomic<int> processor{-1};  // where it is, as far as is known: where it took the first of them, or was moved
    std::atomic<int> home{-1};       // where it goes when it has reported them; -1: it stays
    std::atomic_flag moving = ATOMIC_FLAG_INIT;

    // To move a thread is to narrow its affinity and to restore it. Of two who move a thread at the same time, one
    // would restore what the other narrowed. So the second one does nothing.
    void move(int to) {
        if (moving.test_and_set(std::memory_order_acquire)) return;
        move_thread(thread.load(std::memory_order_relaxed), to);
        processor.store(to, std::memory_order_relaxed);
        moving.clear(std::memory_order_release);
    }
};

// Two words are the whole protocol (tests/engine/kernels/test_pool_protocol.py enumerates its interleavings).
//
// `left_`: units that no thread has taken. A thread takes one by decrementing it, and only then reads what the job is:
// while a taken unit is not reported, the job cannot end. Workers sleep on it while it is 0.
// `open_`: units that were not reported. A thread reports what it took once nothing is left. So the caller waits only
// for threads that took a unit. It sleeps on this word, with kAsleep set, until the last report.
class Pool {
public:
    // If the system grants fewer threads than requested, the pool uses those.
    explicit Pool(int workers) : seats_(size_t(workers) + 1) {
        try {
            for (int i = 1; i <= workers; i++) workers_.emplace_back([this, i] { work(seats_[size_t(i)]); });
        } catch (const std::system_error&) {
        }
    }

    ~Pool() {
        left_.word.store(kStop);
        left_.wake(kAll);
        for (auto& worker : workers_) worker.join();
    }

    int size() const { return int(workers_.size()) + 1; }

    void run(int64_t units, void (*task)(void*, int64_t), void* context) {
        if (units <= 1 || workers_.empty()) {
            for (int64_t u = 0; u < units; u++) task(context, u);
            return;
        }
        seats_[0].thread.store(this_thread(), std::memory_order_relaxed);
        task_ = task;
        context_ = context;
        for (first_ = 0; first_ < units && !failure_; first_ += kMostUnits)
            run_some(uint32_t(std::min(kMostUnits, units - first_)));
        if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    }

private:
    static constexpr int64_t kMostUnits = 1 << 30;  // in one job: words have 32 bits
    static constexpr uint32_t kStop = ~0u, kAll = 1 << 30, kAsleep = 1u << 31;

    void run_some(uint32_t units) {
        units_ = units;
        open_.word.store(units, std::memory_order_relaxed);
        left_.word.store(units);
        // Both this and the sleeper's side are sequentially consistent: either it is counted, or it sees the units.
        if (const uint32_t sleeping = sleeping_.load()) left_.wake(std::min(sleeping, units - 1));
        drain(seats_[0]);
        if (waited(seats_[0], [&] { return open_.word.load(std::memory_order_acquire) == 0; })) return;
        uint32_t open = open_.word.fetch_or(kAsleep, std::memory_order_acq_rel) | kAsleep;
        for (; open != kAsleep; open = open_.word.load(std::memory_order_acquire)) open_.sleep(open);
    }

    // Computes units until none is left. A unit that throws (no memory for scratch) ends the job. `run` rethrows once
    // every thread has stopped.
    void drain(Seat& me) {
        uint32_t taken = 0;
        for (uint32_t left = left_.word.load(std::memory_order_relaxed); left != 0 && left != kStop;) {
            if (!left_.word.compare_exchange_weak(left, left - 1, std::memory_order_acquire, std::memory_order_relaxed))
                continue;
            if (!taken++) {
                me.processor.store(this_processor(), std::memory_order_relaxed);
                me.open.store(true, std::memory_order_relaxed);
            }
            try {
                task_(context_, first_ + (units_ - left));
            } catch (...) {
                taken += left_.word.exchange(0, std::memory_order_relaxed);
                std::lock_guard<std::mutex> lock(mutex_);
                if (!failure_) failure_ = std::current_exception();
            }
            left = left_.word.load(std::memory_order_relaxed);
        }
        if (!taken) return;
        me.open.store(false, std::memory_order_relaxed);
        if (open_.word.fetch_sub(taken, std::memory_order_acq_rel) == (taken | kAsleep)) open_.wake(1);
    }

    void work(Seat& me) {
        in_unit = true;
        me.thread.store(this_thread(), std::memory_order_relaxed);
        while (left_.word.load(std::memory_order_relaxed) != kStop) {
            drain(me);
            if (const int home = me.home.exchange(-1, std::memory_order_relaxed); home >= 0) me.move(home);
            if (waited(me, [&] { return left_.word.load(std::memory_order_relaxed) != 0; })) continue;
            sleeping_.fetch_add(1);
            left_.sleep(0);
            sleeping_.fetch_sub(1);
        }
    }

    // Waits for as long as other threads compute. Returns whether done() became true; if not, the thread should sleep.
    template <class Done>
    bool waited(Seat& me, const Done& done) {
        do {
            if (spin(done)) return true;
        } while (others_compute(me));
        return false;
    }

    // Whether a thread that has units computes. If it has no processor, it gets this one, because a program of someone
    // else may keep the other's for milliseconds, and this thread only waits.
    bool others_compute(Seat& me) {
        const Seat* const caller = &seats_[0];
        for (Seat& other : seats_) {
            if (!other.open.load(std::memory_order_relaxed)) continue;
            if (!stands_still(other.thread.load(std::memory_order_relaxed))) return true;
            if (!other.open.load(std::memory_order_relaxed)) continue;
            const int here = this_processor();
            int there = other.processor.load(std::memory_order_relaxed);
            if (there == here) there = unused_processor(here);
            // A worker takes the other's place. The caller stays, because it goes on sooner here. So the other returns.
            if (&me == caller) other.home.store(there, std::memory_order_relaxed);
            other.move(here);
            if (&me != caller) me.move(there);
            return false;
        }
        return false;
    }

    // A processor other than `here` on which no thread of the pool is, or `here`. So many others are not all in use,
    // because one thread is here.
    int unused_processor(int here) const {
        int next = here;
        for (size_t i = 0; i < seats_.size(); i++) {
            next = processor_after(next);
            if (std::none_of(seats_.begin(), seats_.end(), [&](const Seat& seat) { return seat.processor == next; }))
                return next;
        }
        return here;
    }

    alignas(64) Address left_;
    alignas(64) Address open_;
    std::atomic<uint32_t> sleeping_{0};  // workers that sleep, or are about to
    // Written while no unit is open, read by threads that have taken one.
    alignas(64) void (*task_)(void*, int64_t) = nullptr;
    void* context_ = nullptr;
    int64_t first_ = 0;
    uint32_t units_ = 0;
    std::mutex mutex_;
    std::exception_ptr failure_;
    std::vector<Seat> seats_;           // the caller's first
    std::vector<std::thread> workers_;  // last: they use what stands before
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
    try {
        s.pool = std::make_unique<Pool>(count > 1 ? count - 1 : 0);
    } catch (...) {
        s.pool = std::make_unique<Pool>(0);  // the system has no more threads
        throw;
    }
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
