#include "host/memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fb {
namespace {

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

}  // namespace

MemoryUse memory_now() {
    char status[8192];
    if (!read_status(status, sizeof status)) return {};
    const int64_t anonymous = field_kb(status, "RssAnon:"), shared = field_kb(status, "RssShmem:");
    return {(anonymous + shared + field_kb(status, "VmSwap:")) * 1024, field_kb(status, "VmRSS:") * 1024};
}

MemoryUse memory_sample() {
    static Sampler* sampler = new Sampler;  // never destroyed: a thread may sample while the process ends
    return sampler->sample();
}

int64_t peak_rss() {
    char status[8192];
    return read_status(status, sizeof status) ? field_kb(status, "VmHWM:") * 1024 : 0;
}

}  // namespace fb
