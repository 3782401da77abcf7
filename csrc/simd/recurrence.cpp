#include <algorithm>
#include <cmath>

#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

constexpr int64_t kColumns = 64;  // columns that one thread computes: a cache line or more of every row

// body(first column, number of columns). Columns do not depend on each other, so the bits are those of one thread.
template <class Body>
void for_columns(int64_t cols, const Body& body) {
    parallel_for((cols + kColumns - 1) / kColumns, [&](int64_t unit) {
        const int64_t first = unit * kColumns;
        body(first, std::min(kColumns, cols - first));
    });
}

}  // namespace

void gated_recurrence(View i, View f, const float* bound, float* state, View h) {
    for_columns(i.cols, [&](int64_t first, int64_t count) {
        for_lanes(count, [&](auto get, auto put) {
            const Vec free = 1.0f - get(bound + first);
            Vec now = get(state + first);
            for (int64_t t = 0; t < i.rows; t++) {
                const Vec x = get(i.row<float>(t) + first), k = free * sigmoid(-get(f.row<float>(t) + first));
                now = (1.0f - k) * now + x * sigmoid(x) * k;
                put(h.row<float>(t) + first, now);
            }
            put(state + first, now);
        });
    });
}

// As in the reference: d, the gradient of h_t;  di = d k silu'(i);  df = -d (silu(i) - h_{t-1}) k sigmoid(f).
void gated_recurrence_backward(View dh, View i, View f, const float* bound, const float* before, View h, float* carry,
                               View di, View df) {
    by_dtype(di.dtype, [&](auto* out_tag) {
        using O = std::remove_pointer_t<decltype(out_tag)>;
        for_columns(i.cols, [&](int64_t first, int64_t count) {
            for_lanes(count, [&](auto get, auto put) {
                const Vec free = 1.0f - get(bound + first);
                Vec behind = get(carry + first);
                for (int64_t t = i.rows - 1; t >= 0; t--) {
                    const Vec x = get(i.row<float>(t) + first), gate = get(f.row<float>(t) + first);
                    const Vec earlier = get(t ? h.row<float>(t - 1) + first : before + first);
                    const Vec s = sigmoid(x), k = free * sigmoid(-gate), d = get(dh.row<float>(t) + first) + behind;
                    put(di.row<O>(t) + first, d * k * s * (1.0f + x * (1.0f - s)));
                    put(df.row<O>(t) + first, d * (earlier - x * s) * k * sigmoid(gate));
                    behind = (1.0f - k) * d;
                }
                put(carry + first, behind);
            });
        });
    });
}

void round_rows(View x, View out) {
    by_dtype(out.dtype, [&](auto* out_tag) {
        using O = std::remove_pointer_t<decltype(out_tag)>;
        parallel_rows(x.rows, x.cols, [&](int64_t t) {
            const float* from = x.row<float>(t);
            O* to = out.row<O>(t);
            Vec most = splat(1e-5f), zeros{};  // zeros: stays 0 unless an element is not finite
            for_lanes(x.cols, [&](auto get, auto) {
                const Vec v = get(from);
                most = max(most, v < Vec{} ? -v : v);
                zeros += v * 0.0f;
            });
            const float s = 127.0f / max_lane(most), strange = sum(zeros);
            for_lanes(x.cols, [&](auto get, auto put) {
                // Codes are at most 127 in size, and -128 cannot occur: |x| s rounds to 127 at most.
                const Vec code = __builtin_convertvector(nearest(get(from) * s), Vec);
                put(to, code / s + strange);
            });
        });
    });
}

}  // namespace fb::FB_ISA
