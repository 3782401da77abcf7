#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {

void cast(View x, View out) {
    by_dtype(x.dtype, [&](auto* in_tag) {
        using X = std::remove_pointer_t<decltype(in_tag)>;
        by_dtype(out.dtype, [&](auto* out_tag) {
            using O = std::remove_pointer_t<decltype(out_tag)>;
            parallel_rows(x.rows, x.cols, [&](int64_t t) {
                for_lanes(x.cols, [&](auto get, auto put) { put(out.row<O>(t), get(x.row<X>(t))); });
            });
        });
    });
}

double sum_squares(View x) {
    double total = 0;
    for (int64_t t = 0; t < x.rows; t++) {
        const float* row = x.row<float>(t);
        // Short float runs, then double: exact enough for a norm and still vector speed.
        for (int64_t first = 0; first < x.cols; first += 1024) {
            Vec squares{};
            for_lanes(std::min<int64_t>(1024, x.cols - first), [&](auto get, auto) {
                const Vec v = get(row + first);
                squares += v * v;
            });
            total += double(sum(squares));
        }
    }
    return total;
}

}  // namespace fb::FB_ISA
