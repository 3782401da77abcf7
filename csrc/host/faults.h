// Mapped files that become shorter while they are read.
#pragma once
#include <cstdint>

namespace fb {

// While watched, a page of a mapped file that is no longer there (the file was cut short, or its disk failed) reads as
// zeros and is counted, instead of ending the process by SIGBUS. Calls nest; what was computed from such a page is to
// be thrown away.
void watch_maps();
void unwatch_maps();
// Pages found missing since the process began.
int64_t lost_pages();

}  // namespace fb
