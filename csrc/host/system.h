// What the systems do differently: pages, files and forks. One file for each system: posix/ and windows/.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fb {

uintptr_t page_size();
// Asks the system to bring whole pages of a mapped file into its cache soon.
void fetch_pages(uintptr_t begin, size_t bytes);
// Takes whole pages of a read-only mapped file out of this process.
void unmap_pages(uintptr_t begin, size_t bytes);
// Reads up to `bytes` of an open file: at `offset`, or from the file's position on. Returns the bytes that were read, 0
// at the end of the file, -1 after an error (errno).
int64_t read_at(int file, void* into, size_t bytes, int64_t offset);
int64_t read_next(int file, void* into, size_t bytes);
// Calls `handler` in every child process that is forked from now on.
void after_fork(void (*handler)());

}  // namespace fb
