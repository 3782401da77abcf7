// A small pool: the caller and `threads() - 1` workers take units of work from one counter until none is left. Results
// do not depend on which thread computes a unit, because every unit owns its outputs.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fb {

int threads();
void set_threads(int count);

// A unit may call this too. Its own units run on its thread, one after another.
void run_parallel(int64_t units, void (*task)(void* context, int64_t unit), void* context);

template <class Body>
void parallel_for(int64_t units, const Body& body) {
    run_parallel(
        units, [](void* context, int64_t unit) { (*static_cast<const Body*>(context))(unit); },
        const_cast<Body*>(&body));
}

// Scratch memory of the calling thread, 64-byte aligned, kept between calls. Valid until this thread's next call.
void* thread_scratch(size_t bytes);
// Returns the most bytes that one thread requested since the last call of this function.
size_t scratch_peak();

}  // namespace fb
