#include <cmath>

#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

// How far above its reference a row's maximum may rise before the row is rescaled: e^30 leaves float ample room.
constexpr float kHeadroom = 30.0f;

}  // namespace

void cross_entropy_tile(View logits, int64_t first, const int32_t* targets, float* reference, float* sum_out,
                        float* target_logit, View p, View dh) {
    by_dtype(p.dtype, [&](auto* tag) {
        using P = std::remove_pointer_t<decltype(tag)>;
        parallel_rows(logits.rows, logits.cols, [&](int64_t t) {
            const float* row = logits.row<float>(t);
            const int64_t n = logits.cols;
            int64_t i = 0;
            Vec best = splat(-std::numeric_limits<float>::infinity());
            for (; i + kLanes <= n; i += kLanes) best = max(best, load(row + i));
            float top = max_lane(best);
            for (; i < n; i++) top = std::max(top, row[i]);

            if (top > reference[t] + kHeadroom || reference[t] == -std::numeric_limits<float>::infinity()) {
                const float shrink = exp1(reference[t] - top);  // 0 for the first tile
                sum_out[t] *= shrink;
                if (dh)
                    for_lanes(dh.cols,
                              [&](auto get, auto put) { put(dh.row<float>(t), get(dh.row<float>(t)) * shrink); });
                reference[t] = top;
            }
            const float offset = reference[t];
            Vec total{};
            for (i = 0; i + kLanes <= n; i += kLanes) {
                const Vec e = exp(load(row + i) - offset);
                total += e;
                if (p) store(p.row<P>(t) + i, e);
            }
            float tail = 0;
            for (; i < n; i++) {
                const float e = exp1(row[i] - offset);
                tail += e;
                if (p) store1(p.row<P>(t) + i, e);
            }
            const int64_t target = targets[t] - first;
            float others = sum(total) + tail;
            if (target >= 0 && target < n) {
                target_logit[t] = row[target];
                if (p) store1(p.row<P>(t) + target, 0.0f);
                // Sum again without the target: subtracting it would cancel when it dominates.
                Vec again{};
                others = 0;
                for (i = 0; i + kLanes <= n; i += kLanes) {
                    Vec e = exp(load(row + i) - offset);
                    if (target >= i && target < i + kLanes) e[target - i] = 0;
                    again += e;
                }
                for (; i < n; i++)
                    if (i != target) others += exp1(row[i] - offset);
                others += sum(again);
            }
            sum_out[t] += others;
        });
    });
}

void cross_entropy_finish(const float* reference, const float* sum_in, const float* target_logit, View target_rows,
                          float scale, View dh, float* loss, int64_t n) {
    parallel_rows(n, dh ? dh.cols : 1, [&](int64_t t) {
        // loss = log(1 + others / e_target), written so that neither side overflows or cancels.
        const float margin = target_logit[t] - reference[t] - std::log(sum_in[t]);  // log(p_target / others)
        loss[t] = margin > 0 ? std::log1p(std::exp(-margin)) : std::log1p(std::exp(margin)) - margin;
        if (!dh) return;
        const float others = 1.0f / (1.0f + std::exp(margin));  // 1 - p_target
        // dh / total, with total = sum + e_target: others / sum avoids forming e_target, which may overflow.
        const float share = sum_in[t] > 0 ? scale * others / sum_in[t] : 0.0f;
        const float pull = scale * others;
        float* row = dh.row<float>(t);
        for_lanes(dh.cols,
                  [&](auto get, auto put) { put(row, get(row) * share - get(target_rows.row<float>(t)) * pull); });
    });
}

}  // namespace fb::FB_ISA
