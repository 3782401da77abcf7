#include <algorithm>
#include <cstring>

#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {

void take_rows(View x, const int32_t* rows, View out) {
    by_dtype(x.dtype, [&](auto* in_tag) {
        using X = std::remove_pointer_t<decltype(in_tag)>;
        by_dtype(out.dtype, [&](auto* out_tag) {
            using O = std::remove_pointer_t<decltype(out_tag)>;
            parallel_rows(out.rows, out.cols, [&](int64_t r) {
                const X* from = x.row<X>(rows[r]);
                O* to = out.row<O>(r);
                if constexpr (std::is_same_v<X, O>) std::memcpy(to, from, size_t(out.cols) * sizeof(O));
                else for_lanes(out.cols, [&](auto get, auto put) { put(to, get(from)); });
            });
        });
    });
}

// Rows may repeat, so threads divide the columns. Each sum is formed in the order of the rows of `values`.
void add_rows(View values, const int32_t* rows, View out) {
    const int64_t width =
        std::max<int64_t>(64, round_up(16384 / std::max<int64_t>(values.rows, 1), 64));  // columns of a thread's piece
    parallel_for((out.cols + width - 1) / width, [&](int64_t unit) {
        const int64_t first = unit * width, count = std::min(width, out.cols - first);
        for (int64_t r = 0; r < values.rows; r++) {
            if (rows[r] < 0 || rows[r] >= out.rows) continue;
            const float* from = values.row<float>(r) + first;
            float* to = out.row<float>(rows[r]) + first;
            for_lanes(count, [&](auto get, auto put) { put(to, get(to) + get(from)); });
        }
    });
}

void row_dots(View x, View y, float* out, bool accumulate) {
    by_dtype(x.dtype, [&](auto* x_tag) {
        using X = std::remove_pointer_t<decltype(x_tag)>;
        by_dtype(y.dtype, [&](auto* y_tag) {
            using Y = std::remove_pointer_t<decltype(y_tag)>;
            parallel_rows(x.rows, x.cols, [&](int64_t r) {
                const X* a = x.row<X>(r);
                const Y* b = y.row<Y>(r);
                Vec total{};
                for_lanes(x.cols, [&](auto get, auto) { total += get(a) * get(b); });
                out[r] = (accumulate ? out[r] : 0) + sum(total);
            });
        });
    });
}

}  // namespace fb::FB_ISA
