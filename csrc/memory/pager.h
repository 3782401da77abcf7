// Hints to the kernel about mapped file pages: fetch these soon, drop those now.
#pragma once
#include <cstddef>

namespace fb {

// Asks a helper thread to read the pages of [data, data + bytes) into the page cache; returns at once. Pages become
// resident in this process only when touched.
void read_ahead(const void* data, size_t bytes);
// Unmaps the whole pages inside [data, data + bytes): resident memory falls, the page cache keeps them. Read-only
// mappings only.
void drop_pages(const void* data, size_t bytes);
void stop_read_ahead();

}  // namespace fb
