#include "host/system.h"

#include <io.h>
#include <windows.h>

#include <algorithm>
#include <cerrno>

namespace fb {

uintptr_t page_size() {
    static const uintptr_t size = [] {
        SYSTEM_INFO info;
        GetSystemInfo(&info);
        return uintptr_t(info.dwPageSize);
    }();
    return size;
}

void fetch_pages(uintptr_t begin, size_t bytes) {
    WIN32_MEMORY_RANGE_ENTRY range{reinterpret_cast<void*>(begin), bytes};
    PrefetchVirtualMemory(GetCurrentProcess(), 1, &range, 0);
}

// Pages that are not locked leave the working set when they are unlocked.
void unmap_pages(uintptr_t begin, size_t bytes) { VirtualUnlock(reinterpret_cast<void*>(begin), bytes); }

int64_t read_at(int file, void* into, size_t bytes, int64_t offset) {
    OVERLAPPED where{};
    where.Offset = DWORD(offset);
    where.OffsetHigh = DWORD(offset >> 32);
    DWORD count = 0;
    if (ReadFile(HANDLE(_get_osfhandle(file)), into, DWORD(std::min<size_t>(bytes, 1 << 30)), &count, &where))
        return count;
    if (GetLastError() == ERROR_HANDLE_EOF) return 0;
    errno = EIO;
    return -1;
}

int64_t read_next(int file, void* into, size_t bytes) {
    return _read(file, into, unsigned(std::min<size_t>(bytes, 1 << 30)));
}

void after_fork(void (*)()) {}  // Windows does not fork

}  // namespace fb
