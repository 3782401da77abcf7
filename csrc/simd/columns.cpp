#include <algorithm>

#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

constexpr int64_t kColumns = 64;  // columns that one thread sums in column_dots: a cache line or more of every row

}  // namespace

void scale_columns(View x, const float* factors, const float* bias, View out, bool accumulate) {
    by_dtype(x.dtype, [&](auto* in_tag) {
        using X = std::remove_pointer_t<decltype(in_tag)>;
        by_dtype(out.dtype, [&](auto* out_tag) {
            using O = std::remove_pointer_t<decltype(out_tag)>;
            parallel_rows(x.rows, x.cols, [&](int64_t t) {
                const X* from = x.row<X>(t);
                O* to = out.row<O>(t);
                for_lanes(x.cols, [&](auto get, auto put) {
                    Vec v = get(from);
                    if (factors) v *= get(factors);
                    if (bias) v += get(bias);
                    if (accumulate) v += get(to);
                    put(to, v);
                });
            });
        });
    });
}

// Each column is summed in row order, for any number of threads.
void column_dots(View x, View y, const float* less, const float* over, float* out) {
    by_dtype(x.dtype, [&](auto* x_tag) {
        using X = std::remove_pointer_t<decltype(x_tag)>;
        by_dtype(y.dtype, [&](auto* y_tag) {
            using Y = std::remove_pointer_t<decltype(y_tag)>;
            parallel_for((x.cols + kColumns - 1) / kColumns, [&](int64_t unit) {
                const int64_t first = unit * kColumns, count = std::min(kColumns, x.cols - first);
                float sums[kColumns];
                for_lanes(count, [&](auto get, auto put) {
                    const Vec shift = less ? get(less + first) : Vec{};
                    Vec total{};
                    for (int64_t t = 0; t < x.rows; t++)
                        total += get(x.row<X>(t) + first) * (get(y.row<Y>(t) + first) - shift);
                    put(sums, total);
                });
                for (int64_t c = 0; c < count; c++) {
                    if (!over) out[first + c] += sums[c];
                    else if (over[first + c] != 0) out[first + c] += sums[c] / over[first + c];
                }
            });
        });
    });
}

}  // namespace fb::FB_ISA
