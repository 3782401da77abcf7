// A decoder's keys and values: how they are stored, and the rotation that makes them easier to quantise.
#include <algorithm>
#include <cmath>

#include "simd/cached_rows.h"
#include "simd/encode_block.h"
#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

template <TensorType type>
void encode_head(const float* x, int64_t d, uint8_t* to) {
    if constexpr (type == TensorType::F32) __builtin_memcpy(to, x, size_t(d) * 4);
    else
        for (int64_t c = 0; c < d; c += kRun, to += block_shape(type).bytes) {
            if constexpr (type == TensorType::Q8_0) encode_block(x + c, to);
            else encode_nibbles(x + c, to);
        }
}

}  // namespace

void cache_rows(View k, View v, int64_t start, const KeyCache& cache) {
    const int64_t d = cache.head_dim;
    with_cache_type(cache.type, [&](auto type) {
        parallel_rows(k.rows, 2 * k.cols, [&](int64_t t) {
            for (int64_t head = 0; head < cache.kv_heads; head++) {
                encode_head<type()>(k.row<float>(t) + head * d, d, cache.row(start + t, head, false));
                encode_head<type()>(v.row<float>(t) + head * d, d, cache.row(start + t, head, true));
            }
        });
    });
}

// Walsh and Hadamard's fast transform: log2(size) passes of sums and differences.
void hadamard(View x, int64_t size) {
    const float factor = 1.0f / std::sqrt(float(size));
    parallel_rows(x.rows, x.cols, [&](int64_t t) {
        float* row = x.row<float>(t);
        for (int64_t half = 1; half < size; half *= 2)
            for (int64_t first = 0; first < x.cols; first += 2 * half)
                for (int64_t i = first; i < first + half; i++) {
                    const float a = row[i], b = row[i + half];
                    row[i] = a + b;
                    row[i + half] = a - b;
                }
        for_lanes(x.cols, [&](auto get, auto put) { put(row, get(row) * factor); });
    });
}

}  // namespace fb::FB_ISA
