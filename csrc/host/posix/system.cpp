#include "host/system.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace fb {

uintptr_t page_size() {
    static const uintptr_t size = uintptr_t(sysconf(_SC_PAGESIZE));
    return size;
}

void fetch_pages(uintptr_t begin, size_t bytes) { madvise(reinterpret_cast<void*>(begin), bytes, MADV_WILLNEED); }

void unmap_pages(uintptr_t begin, size_t bytes) { madvise(reinterpret_cast<void*>(begin), bytes, MADV_DONTNEED); }

int64_t read_at(int file, void* into, size_t bytes, int64_t offset) { return pread(file, into, bytes, off_t(offset)); }

int64_t read_next(int file, void* into, size_t bytes) { return read(file, into, bytes); }

void after_fork(void (*handler)()) { pthread_atfork(nullptr, nullptr, handler); }

}  // namespace fb
