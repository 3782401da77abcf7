#include <cmath>

#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

template <class X>
FB_INLINE float inverse_rms(const X* x, int64_t n, float eps) {
    Vec squares{};
    for_lanes(n, [&](auto get, auto) {
        const Vec v = get(x);
        squares += v * v;
    });
    return 1.0f / std::sqrt(sum(squares) / float(n) + eps);
}

// Calls body(row, first column) for every group of `width` columns that is normalised separately.
template <class Body>
void for_groups(const View& x, int64_t width, const Body& body) {
    parallel_rows(x.rows, x.cols, [&](int64_t t) {
        for (int64_t first = 0; first < x.cols; first += width) body(t, first);
    });
}

}  // namespace

void rms_norm(View x, View weight, float eps, View out, bool accumulate) {
    const float* gain = weight.row<float>(0);
    const int64_t width = weight.cols;
    by_dtype(x.dtype, [&](auto* in_tag) {
        using X = std::remove_pointer_t<decltype(in_tag)>;
        by_dtype(out.dtype, [&](auto* out_tag) {
            using O = std::remove_pointer_t<decltype(out_tag)>;
            by_flag(accumulate, [&](auto add) {
                for_groups(x, width, [&](int64_t t, int64_t first) {
                    const X* from = x.row<X>(t) + first;
                    O* to = out.row<O>(t) + first;
                    const float rstd = inverse_rms(from, width, eps);
                    for_lanes(width, [&](auto get, auto put) {
                        if constexpr (add()) put(to, get(to) + get(from) * rstd * get(gain));
                        else put(to, get(from) * rstd * get(gain));
                    });
                });
            });
        });
    });
}

// Forward: n = x rstd g, rstd = (mean(x^2) + eps)^-1/2. With u = dn g:  dx = rstd u - x rstd^3 mean(u x).
void rms_norm_backward(View dn, View x, View weight, float eps, View dx, bool accumulate) {
    const float* gain = weight.row<float>(0);
    const int64_t width = weight.cols;
    by_dtype(x.dtype, [&](auto* in_tag) {
        using X = std::remove_pointer_t<decltype(in_tag)>;
        by_dtype(dx.dtype, [&](auto* out_tag) {
            using O = std::remove_pointer_t<decltype(out_tag)>;
            by_flag(accumulate, [&](auto add) {
                for_groups(x, width, [&](int64_t t, int64_t first) {
                    const X* from = x.row<X>(t) + first;
                    const float* grad = dn.row<float>(t) + first;
                    O* to = dx.row<O>(t) + first;
                    const float rstd = inverse_rms(from, width, eps);
                    Vec dot{};
                    for_lanes(width, [&](auto get, auto) { dot += get(grad) * get(gain) * get(from); });
                    const float pull = sum(dot) / float(width) * rstd * rstd * rstd;
                    for_lanes(width, [&](auto get, auto put) {
                        if constexpr (add()) put(to, get(to) + get(grad) * get(gain) * rstd - get(from) * pull);
                        else put(to, get(grad) * get(gain) * rstd - get(from) * pull);
                    });
                });
            });
        });
    });
}

}  // namespace fb::FB_ISA
