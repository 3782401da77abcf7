#include "host/faults.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <stdexcept>

namespace fb {
namespace {

// The handler reads these without a lock. `end` is 0 for a free slot.
struct Slot {
    std::atomic<uintptr_t> begin{0}, end{0};
    std::atomic<int64_t> lost{0};
};

Slot slots[kMostMaps];
std::atomic<int> used{0};  // slots beyond this one have never been taken
std::mutex taking;
uintptr_t page_size = 0;  // known before the handler can run
struct sigaction before;

Slot* guarding(uintptr_t at) {
    for (int i = 0; i < used.load(); i++)
        if (at < slots[i].end.load() && at >= slots[i].begin.load()) return &slots[i];
    return nullptr;
}

// Calls only what a signal handler may call: mmap is a bare system call on the supported systems.
void on_bus_error(int number, siginfo_t* info, void*) {
    const int kept = errno;
    const uintptr_t page = reinterpret_cast<uintptr_t>(info->si_addr) / page_size * page_size;
    if (Slot* slot = info->si_code == BUS_ADRERR ? guarding(page) : nullptr) {
        void* wanted = reinterpret_cast<void*>(page);
        if (mmap(wanted, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == wanted) {
            ++slot->lost;
            errno = kept;
            return;
        }
    }
    sigaction(SIGBUS, &before, nullptr);    // the access is repeated, and the previous handler receives it
    if (info->si_code <= 0) raise(number);  // another process sent the signal: there is no access
    errno = kept;
}

void install() {
    page_size = uintptr_t(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
}

}  // namespace

MapGuard::MapGuard(const void* data, size_t bytes) {
    static std::once_flag once;
    std::call_once(once, install);
    const std::lock_guard<std::mutex> lock(taking);
    for (slot_ = 0; slot_ < used && slots[slot_].end; slot_++) {
    }
    if (slot_ == kMostMaps) throw std::runtime_error("too many mapped files are open");
    Slot& slot = slots[slot_];
    slot.lost = 0;
    slot.begin = reinterpret_cast<uintptr_t>(data);
    slot.end = reinterpret_cast<uintptr_t>(data) + bytes;
    if (slot_ == used) ++used;
}

int64_t MapGuard::lost() const { return slot_ < 0 ? lost_ : slots[slot_].lost.load(); }

void MapGuard::close() {
    const std::lock_guard<std::mutex> lock(taking);
    if (slot_ < 0) return;
    lost_ = slots[slot_].lost;
    slots[slot_].end = 0;
    slot_ = -1;
}

}  // namespace fb
