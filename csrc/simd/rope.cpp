#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

template <class X, class O>
FB_INLINE void rotate(const X* x, const float* cos, const float* sin, float sign, int64_t half, bool interleaved,
                      O* out) {
    const int64_t step = interleaved ? 2 : 1, partner = interleaved ? 1 : half;
    for (int64_t i = 0; i < half; i++) {
        const float a = load1(x + i * step), b = load1(x + i * step + partner);
        const float s = sin[i] * sign;
        store1(out + i * step, a * cos[i] - b * s);
        store1(out + i * step + partner, b * cos[i] + a * s);
    }
}

}  // namespace

void rope(View x, const RopeTable& table, bool inverse, View out) {
    const int64_t half = table.cos.cols, heads = x.cols / table.head_dim;
    const bool in_place = x.data == out.data;
    const float sign = inverse ? -1.0f : 1.0f;
    by_dtype(x.dtype, [&](auto* in_tag) {
        using X = std::remove_pointer_t<decltype(in_tag)>;
        by_dtype(out.dtype, [&](auto* out_tag) {
            using O = std::remove_pointer_t<decltype(out_tag)>;
            parallel_rows(x.rows, x.cols, [&](int64_t t) {
                const float *cos = table.cos.row<float>(t), *sin = table.sin.row<float>(t);
                for (int64_t h = 0; h < heads; h++) {
                    const X* in = x.row<X>(t) + h * table.head_dim;
                    O* to = out.row<O>(t) + h * table.head_dim;
                    if (table.interleaved) rotate(in, cos, sin, sign, half, true, to);
                    else rotate(in, cos, sin, sign, half, false, to);
                    if (!in_place)
                        for (int64_t i = 2 * half; i < table.head_dim; i++) store1(to + i, load1(in + i));
                }
            });
        });
    });
}

}  // namespace fb::FB_ISA
