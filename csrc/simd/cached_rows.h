// Rows of a cache of keys and values, as float32.
#pragma once
#include "core/key_cache.h"
#include "simd/micro.h"
#include "simd/unpack.h"

namespace fb::FB_ISA {

// Calls body with the cache's type as a constant.
template <class Body>
FB_INLINE void with_cache_type(TensorType type, const Body& body) {
    switch (type) {
        case TensorType::Q8_0: return body(std::integral_constant<TensorType, TensorType::Q8_0>{});
        case TensorType::Q4_0: return body(std::integral_constant<TensorType, TensorType::Q4_0>{});
        default: return body(std::integral_constant<TensorType, TensorType::F32>{});
    }
}

// Returns `count` rows of one segment from `token` on: in place if they are float32, else unpacked into `buffer`
// (count, d).
template <TensorType type>
FB_INLINE Rows<float> cached_rows(const KeyCache& cache, int64_t token, int64_t head, bool value, int64_t count,
                                  float* buffer) {
    const int64_t d = cache.head_dim, bytes = cache.row_bytes();
    const uint8_t* row = cache.row(token, head, value);
    if constexpr (type == TensorType::F32) return {reinterpret_cast<const float*>(row), d};
    for (int64_t i = 0; i < count; i++) unpack<type>(row + i * bytes, 0, d, buffer + i * d);
    return {buffer, d};
}

}  // namespace fb::FB_ISA
