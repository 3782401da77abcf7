#include "host/memory.h"

#include <windows.h>
// After windows.h
#include <psapi.h>

namespace fb {
namespace {

// Windows 10 22H2 and later know the private working set. Earlier ones know only the commit charge: private bytes that
// are resident or not, so it is more.
struct Counters : PROCESS_MEMORY_COUNTERS_EX {
    SIZE_T PrivateWorkingSetSize;
    ULONG64 SharedCommitUsage;
};

Counters counters() {
    Counters found{};
    const auto ask = [&found](size_t size) {
        return GetProcessMemoryInfo(GetCurrentProcess(), reinterpret_cast<PROCESS_MEMORY_COUNTERS*>(&found),
                                    DWORD(size));
    };
    if (!ask(sizeof(Counters))) ask(sizeof(PROCESS_MEMORY_COUNTERS_EX));
    return found;
}

}  // namespace

MemoryUse memory_now() {
    const Counters found = counters();
    return {int64_t(found.PrivateWorkingSetSize ? found.PrivateWorkingSetSize : found.PagefileUsage),
            int64_t(found.WorkingSetSize)};
}

MemoryUse memory_sample() { return memory_now(); }

int64_t peak_rss() { return int64_t(counters().PeakWorkingSetSize); }

}  // namespace fb
