#include "simd/encode_block.h"
#include "simd/table.h"
#include "simd/unpack.h"

namespace fb::FB_ISA {
namespace {

// Dequantises one stored row, in stretches that stay in the first-level cache.
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

void encode(View x, uint8_t* out, int64_t row_bytes) {
    using Block = formats::Q8_0;
    static_assert(Block::weights == kRun);
    by_dtype(x.dtype, [&](auto* tag) {
        using X = std::remove_pointer_t<decltype(tag)>;
        parallel_rows(x.rows, x.cols, [&](int64_t t) {
            const X* row = x.row<X>(t);
            uint8_t* block = out + t * row_bytes;
            int64_t at = 0;
            for (; at + kRun <= x.cols; at += kRun, block += Block::bytes) encode_block(row + at, block);
            if (at == x.cols) return;
            float rest[kRun] = {};
            for (int64_t i = 0; at + i < x.cols; i++) rest[i] = load1(row + at + i);
            encode_block(rest, block);
        });
    });
}

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
