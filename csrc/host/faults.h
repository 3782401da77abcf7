// Mapped files that become shorter while they are read.
#pragma once
#include <cstdint>

namespace fb {

// While watched, a vanished page of a mapped file (the file was truncated, or its disk failed) reads as zeros and is
// counted, instead of ending the process with SIGBUS. Calls nest. Everything computed from such a page must be
// discarded.
void watch_maps();
void unwatch_maps();
// The number of pages found missing since the process began.
int64_t lost_pages();

}  // namespace fb
