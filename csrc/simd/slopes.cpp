#include <algorithm>

#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

constexpr int64_t kCodes = 64, kBytes = 16, kShares = kCodes / kBytes;  // columns and bytes of a group

// body(first column of a group, its bytes' offset, columns of it that exist)
template <class Body>
FB_INLINE void for_groups(int64_t cols, const Body& body) {
    for (int64_t first = 0; first < cols; first += kCodes) body(first, first / kShares, std::min(kCodes, cols - first));
}

template <class X>
void code_row(const X* x, int64_t cols, const float* bounds, uint8_t* codes) {
    const float low = bounds[0], middle = bounds[1], high = bounds[2];
    for_groups(cols, [&](int64_t first, int64_t byte, int64_t count) {
        uint8_t found[kCodes] = {};
        for (int64_t i = 0; i < count; ++i) {
            const float value = load1(x + first + i);
            found[i] = uint8_t((value > low) + (value > middle) + (value > high));
        }
        for (int64_t i = 0; i < kBytes; ++i)
            codes[byte + i] =
                uint8_t(found[i] | found[kBytes + i] << 2 | found[2 * kBytes + i] << 4 | found[3 * kBytes + i] << 6);
    });
}

template <class O>
void scale_row(const float* da, const uint8_t* codes, int64_t cols, const float* slopes, O* dz) {
    const float lowest = slopes[0], low = slopes[1], high = slopes[2], highest = slopes[3];
    for_groups(cols, [&](int64_t first, int64_t byte, int64_t count) {
        float found[kCodes];
        for (int64_t share = 0; share < kShares; ++share) {
            for (int64_t i = 0; i < kBytes; ++i) {
                const int code = codes[byte + i] >> 2 * share & 3;
                const float below = code & 1 ? low : lowest, above = code & 1 ? highest : high;
                found[share * kBytes + i] = code & 2 ? above : below;
            }
        }
        const float* from = da + first;
        O* to = dz + first;
        for_lanes(count, [&](auto get, auto put) { put(to, get(from) * get(found)); });
    });
}

}  // namespace

void slope_codes(View x, const float* bounds, uint8_t* codes, int64_t row_bytes) {
    by_dtype(x.dtype, [&](auto* tag) {
        using X = std::remove_pointer_t<decltype(tag)>;
        parallel_rows(x.rows, x.cols, [&](int64_t t) { code_row(x.row<X>(t), x.cols, bounds, codes + t * row_bytes); });
    });
}

void slope_backward(View da, const uint8_t* codes, int64_t row_bytes, const float* slopes, View dz) {
    by_dtype(dz.dtype, [&](auto* tag) {
        using O = std::remove_pointer_t<decltype(tag)>;
        parallel_rows(da.rows, da.cols, [&](int64_t t) {
            scale_row(da.row<float>(t), codes + t * row_bytes, da.cols, slopes, dz.row<O>(t));
        });
    });
}

}  // namespace fb::FB_ISA
