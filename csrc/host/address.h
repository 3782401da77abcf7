// A word of memory on which threads sleep until another thread changes it.
#pragma once
#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif

namespace fb {

class Address {
public:
    std::atomic<uint32_t> word{0};

#if defined(__linux__)
    // Sleeps until it is woken, if the word still has this value. It may also return for no reason.
    void sleep(uint32_t value) { call(FUTEX_WAIT_PRIVATE, value); }
    // Wakes that many sleeping threads. A change of the word before this call is seen by all threads that sleep later.
    void wake(uint32_t count) { call(FUTEX_WAKE_PRIVATE, count); }

private:
    static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
    void call(int operation, uint32_t number) { syscall(SYS_futex, &word, operation, number, nullptr, nullptr, 0); }
#else
    void sleep(uint32_t value) {
        std::unique_lock<std::mutex> lock(mutex_);
        if (word.load() == value) woken_.wait(lock);
    }
    void wake(uint32_t count) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
        }  // no thread is between its look at the word and its sleep
        if (count == 1) woken_.notify_one();
        else woken_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable woken_;
#endif
};

}  // namespace fb
