#include <algorithm>
#include <utility>

#include "reference/reference.h"

namespace fb::reference {
namespace {

constexpr int64_t kCodes = 64, kBytes = 16;  // columns and bytes of a group of codes

// The byte of column f's code, and the code's lowest bit.
std::pair<int64_t, int> place_of(int64_t f) { return {f / kCodes * kBytes + f % kBytes, int(f % kCodes / kBytes) * 2}; }

}  // namespace

void slope_codes(View x, const float* bounds, uint8_t* codes, int64_t row_bytes) {
    for (int64_t t = 0; t < x.rows; ++t) {
        uint8_t* row = codes + t * row_bytes;
        std::fill_n(row, (x.cols + kCodes - 1) / kCodes * kBytes, uint8_t(0));
        for (int64_t f = 0; f < x.cols; ++f) {
            const double value = load(x, t, f);
            const auto [byte, bit] = place_of(f);
            row[byte] |= uint8_t(((value > bounds[0]) + (value > bounds[1]) + (value > bounds[2])) << bit);
        }
    }
}

void slope_backward(View da, const uint8_t* codes, int64_t row_bytes, const float* slopes, View dz) {
    for (int64_t t = 0; t < da.rows; ++t) {
        for (int64_t f = 0; f < da.cols; ++f) {
            const auto [byte, bit] = place_of(f);
            store(dz, t, f, load(da, t, f) * double(slopes[codes[t * row_bytes + byte] >> bit & 3]));
        }
    }
}

}  // namespace fb::reference
