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

}  // namespace

void rms_norm(View x, const float* weight, float eps, View out) {
    by_dtype(x.dtype, [&](auto* in_tag) {
        using X = std::remove_pointer_t<decltype(in_tag)>;
        by_dtype(out.dtype, [&](auto* out_tag) {
            using O = std::remove_pointer_t<decltype(out_tag)>;
            parallel_rows(x.rows, x.cols, [&](int64_t t) {
                const X* row = x.row<X>(t);
                const float rstd = inverse_rms(row, x.cols, eps);
                for_lanes(x.cols, [&](auto get, auto put) { put(out.row<O>(t), get(row) * rstd * get(weight)); });
            });
        });
    });
}

// Forward: n = x rstd g, rstd = (mean(x^2) + eps)^-1/2. With u = dn g:  dx = rstd u - x rstd^3 mean(u x).
void rms_norm_backward(View dn, View x, const float* weight, float eps, View dx) {
    by_dtype(x.dtype, [&](auto* in_tag) {
        using X = std::remove_pointer_t<decltype(in_tag)>;
        parallel_rows(x.rows, x.cols, [&](int64_t t) {
            const X* row = x.row<X>(t);
            const float* grad = dn.row<float>(t);
            const float rstd = inverse_rms(row, x.cols, eps);
            Vec dot{};
            for_lanes(x.cols, [&](auto get, auto) { dot += get(grad) * get(weight) * get(row); });
            const float pull = sum(dot) / float(x.cols) * rstd * rstd * rstd;
            for_lanes(x.cols, [&](auto get, auto put) {
                float* out = dx.row<float>(t);
                put(out, get(out) + get(grad) * get(weight) * rstd - get(row) * pull);
            });
        });
    });
}

}  // namespace fb::FB_ISA
