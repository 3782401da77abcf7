// The memory of this process, as the system reports it. One file for each system: linux/, macos/ and windows/.
#pragma once
#include "host/meter.h"

namespace fb {

// Like memory_now(), but quick: it may leave out shared memory and swap.
MemoryUse memory_sample();

}  // namespace fb
