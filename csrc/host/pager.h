// Hints to the kernel about mapped file pages: fetch these soon, drop those now.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fb {

// Asks a helper thread to read the pages of [data, data + bytes) into the page cache; returns at once. Pages become
// resident in this process only when touched.
void read_ahead(const void* data, size_t bytes);
// The same for [offset, offset + bytes) of an open file, by reading them: what comes in that way lies in large pieces,
// which are mapped and dropped several times faster than the single pages that a hint brings. Once in the cache, the
// hint does.
void read_through(int file, int64_t offset, int64_t bytes);
// Unmaps the whole pages inside [data, data + bytes): resident memory falls, the page cache keeps them. Read-only
// mappings only.
void drop_pages(const void* data, size_t bytes);
// Ends the helper thread; what was asked for and not begun is forgotten. Call it before closing a file being read
// through.
void stop_read_ahead();

}  // namespace fb
