// Loops over a row of any length in vectors, the last one partial.
#pragma once
#include "simd/isa.h"

namespace fb::FB_ISA {

// body(start, load, store): `load(p)` reads the lanes at p + start, `store(p, v)` writes them. The tail reads zeros.
template <class Body>
FB_INLINE void for_lanes(int64_t n, const Body& body) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        body([i](auto* p) { return load(p + i); }, [i](auto* p, Vec v) { store(p + i, v); });
    if (i < n)
        body([i, n](auto* p) { return load_part(p + i, n - i); },
             [i, n](auto* p, Vec v) { store_part(p + i, n - i, v); });
}

}  // namespace fb::FB_ISA
