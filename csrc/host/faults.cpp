#include "host/faults.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

namespace fb {
namespace {

std::mutex watching;
int watchers = 0;
uintptr_t page_size = 0;  // known before the handler can run
struct sigaction before;
std::atomic<int64_t> lost{0};

// Calls only what a signal handler may call: mmap is a bare system call on the supported systems.
void on_bus_error(int, siginfo_t* info, void*) {
    const int kept = errno;
    if (info->si_code == BUS_ADRERR) {
        void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(info->si_addr) / page_size * page_size);
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        if (mmap(page, page_size, PROT_READ, flags, -1, 0) == page) {
            ++lost;
            errno = kept;
            return;
        }
    }
    sigaction(SIGBUS, &before, nullptr);  // the access is repeated, and the previous handler receives it
    errno = kept;
}

}  // namespace

void watch_maps() {
    const std::lock_guard<std::mutex> lock(watching);
    if (watchers++) return;
    page_size = uintptr_t(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
}

void unwatch_maps() {
    const std::lock_guard<std::mutex> lock(watching);
    if (--watchers == 0) sigaction(SIGBUS, &before, nullptr);
}

int64_t lost_pages() { return lost; }

}  // namespace fb
