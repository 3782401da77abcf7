#include "host/processors.h"

#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace fb {
namespace {

int64_t nanoseconds(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// On a machine with more than 1,024 processors the system may refuse this size of a set. Then nothing is moved.
bool may_run(int thread, cpu_set_t* set) { return sched_getaffinity(thread, sizeof *set, set) == 0; }

}  // namespace

int this_thread() { return int(syscall(SYS_gettid)); }

int this_processor() { return sched_getcpu(); }

int processor_after(int processor) {
    cpu_set_t allowed;
    if (!may_run(0, &allowed)) return processor;
    for (int i = 1; i < CPU_SETSIZE; i++) {
        const int next = (processor + i) % CPU_SETSIZE;
        if (CPU_ISSET(next, &allowed)) return next;
    }
    return processor;
}

bool stands_still(int thread) {
    // The clock of the processor time that a thread has used. pthread_getcpuclockid returns the same number, but the
    // thread must not have ended.
    const clockid_t used = clockid_t(~unsigned(thread) << 3 | 6);
    const int64_t before = nanoseconds(used), end = nanoseconds(CLOCK_MONOTONIC) + 15000;
    while (nanoseconds(CLOCK_MONOTONIC) < end) {
    }
    return nanoseconds(used) == before;
}

void move_thread(int thread, int processor) {
    cpu_set_t allowed, only, now;
    if (processor < 0 || !may_run(thread, &allowed) || !CPU_ISSET(processor, &allowed)) return;
    CPU_ZERO(&only);
    CPU_SET(processor, &only);
    // The system has moved the thread when this call returns.
    if (sched_setaffinity(thread, sizeof only, &only)) return;
    // This thread may have waited for a processor since. If a user has set another affinity meanwhile, that one stays.
    if (may_run(thread, &now) && CPU_EQUAL(&now, &only)) sched_setaffinity(thread, sizeof allowed, &allowed);
}

}  // namespace fb
