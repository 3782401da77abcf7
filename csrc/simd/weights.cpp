#include "simd/table.h"
#include "simd/unpack.h"

namespace fb::FB_ISA {
namespace {

// One stored row, dequantised, in stretches that stay in the first-level cache.
template <TensorType type>
void unpack_row(const uint8_t* row, int64_t cols, View out, int64_t t) {
    constexpr int64_t kStretch = 1024;
    alignas(64) float buffer[kStretch];
    for (int64_t first = 0; first < cols; first += kStretch) {
        const int64_t count = std::min(kStretch, cols - first);
        unpack<type>(row, first, count, buffer);
        if (out.dtype == Dtype::f32) std::copy_n(buffer, count, out.row<float>(t) + first);
        else
            for (int64_t i = 0; i < count; i++) store1(out.row<uint16_t>(t) + first + i, buffer[i]);
    }
}

}  // namespace

void gather_rows(Matrix w, const int32_t* ids, View out) {
    with_type(w.type, [&](auto type) {
        parallel_rows(out.rows, out.cols, [&](int64_t t) { unpack_row<type()>(w.row(ids[t]), w.cols, out, t); });
    });
}

void dequantize(Matrix w, View out) {
    with_type(w.type, [&](auto type) {
        parallel_rows(out.rows, out.cols, [&](int64_t t) { unpack_row<type()>(w.row(t), w.cols, out, t); });
    });
}

}  // namespace fb::FB_ISA
