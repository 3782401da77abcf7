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

struct Moments {
    float mean, rstd;
};

// Mean, and 1 / sqrt(mean((x - mean)^2) + eps), of n numbers. Two passes, because one would cancel.
template <class X>
FB_INLINE Moments moments(const X* x, int64_t n, float eps) {
    Vec total{};
    for_lanes(n, [&](auto get, auto) { total += get(x); });
    const float mean = sum(total) / float(n);
    Vec squares{};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const Vec away = load(x + i) - mean;
        squares += away * away;
    }
    if (i < n) {  // the lanes beyond the end are the mean, and add nothing
        const Vec away = load_part(x + i, n - i, mean) - mean;
        squares += away * away;
    }
    return {mean, 1.0f / std::sqrt(sum(squares) / float(n) + eps)};
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

void layer_norm(View x, View weight, View bias, float eps, View out) {
    const float* gain = weight.row<float>(0);
    const float* shift = bias.row<float>(0);
    by_dtype(x.dtype, [&](auto* in_tag) {
        using X = std::remove_pointer_t<decltype(in_tag)>;
        by_dtype(out.dtype, [&](auto* out_tag) {
            using O = std::remove_pointer_t<decltype(out_tag)>;
            by_flag(bool(bias), [&](auto shifted) {
                parallel_rows(x.rows, x.cols, [&](int64_t t) {
                    const X* from = x.row<X>(t);
                    const Moments of = moments(from, x.cols, eps);
                    for_lanes(x.cols, [&](auto get, auto put) {
                        const Vec unit = (get(from) - of.mean) * of.rstd;
                        if constexpr (shifted()) put(out.row<O>(t), unit * get(gain) + get(shift));
                        else put(out.row<O>(t), unit * get(gain));
                    });
                });
            });
        });
    });
}

// Forward: n = u g + b, u = (x - mean) rstd. With v = dn g:  dx = rstd (v - mean(v) - u mean(v u)).
void layer_norm_backward(View dn, View x, View weight, float eps, View dx, bool accumulate) {
    const float* gain = weight.row<float>(0);
    by_dtype(x.dtype, [&](auto* in_tag) {
        using X = std::remove_pointer_t<decltype(in_tag)>;
        by_dtype(dx.dtype, [&](auto* out_tag) {
            using O = std::remove_pointer_t<decltype(out_tag)>;
            by_flag(accumulate, [&](auto add) {
                parallel_rows(x.rows, x.cols, [&](int64_t t) {
                    const X* from = x.row<X>(t);
                    const float* grad = dn.row<float>(t);
                    O* to = dx.row<O>(t);
                    const Moments of = moments(from, x.cols, eps);
                    Vec dots{}, total{};
                    for_lanes(x.cols, [&](auto get, auto) {  // beyond the end, the gradient is zero
                        const Vec v = get(grad) * get(gain);
                        dots += v * (get(from) - of.mean);
                        total += v;
                    });
                    const float pull = sum(dots) / float(x.cols) * of.rstd * of.rstd;
                    const float shift = sum(total) / float(x.cols);
                    for_lanes(x.cols, [&](auto get, auto put) {
                        const Vec found = of.rstd * (get(grad) * get(gain) - shift - (get(from) - of.mean) * pull);
                        if constexpr (add()) put(to, get(to) + found);
                        else put(to, found);
                    });
                });
            });
        });
    });
}

}  // namespace fb::FB_ISA
