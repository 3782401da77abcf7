#include <algorithm>
#include <cmath>

#include "reference/reference.h"

namespace fb::reference {
namespace {

double capped(double z, float softcap) { return softcap > 0 ? softcap * std::tanh(z / softcap) : z; }

// Returns d capped / dz, given the capped logit.
double slope(double logit, float softcap) { return softcap > 0 ? 1 - logit / softcap * (logit / softcap) : 1; }

}  // namespace

// The reference of a row is the maximum of its logits so far, without the target. Excluding the target from the maximum
// and from the sum keeps 1 - p_target accurate when the target dominates, because nothing is subtracted from 1.
void cross_entropy_tile(View logits, const int32_t* targets, int64_t first, float softcap, float* reference, float* sum,
                        float* target_logit, View p, View dh) {
    const auto logit = [&](int64_t t, int64_t c) { return capped(load(logits, t, c), softcap); };
    for (int64_t t = 0; t < logits.rows; ++t) {
        const int64_t target = targets[t] - first;  // in this tile if 0 <= target < tile
        float top = reference[t];
        for (int64_t c = 0; c < logits.cols; ++c) {
            if (c == target) {
                target_logit[t] = float(logit(t, c));
            } else {
                top = std::max(top, float(logit(t, c)));
            }
        }
        if (top > reference[t]) {  // the reference moves, so the sums so far are rescaled
            const double shrink = std::exp(double(reference[t]) - double(top));
            sum[t] = float(sum[t] * shrink);
            if (dh) {
                for (int64_t c = 0; c < dh.cols; ++c) store(dh, t, c, load(dh, t, c) * shrink);
            }
            reference[t] = top;
        }
        double total = sum[t];
        for (int64_t c = 0; c < logits.cols; ++c) {
            const double e = c == target ? 0 : std::exp(logit(t, c) - double(reference[t]));
            total += e;
            if (p) store(p, t, c, e * slope(logit(t, c), softcap));
        }
        sum[t] = float(total);
    }
}

// With S = sum of exp(logit - reference) without the target and e = exp(target_logit - reference):
//   loss = log((S + e) / e),   1 - p_target = S / (S + e),
//   dh = scale * (dh / (S + e) - (1 - p_target) * slope of the target's logit * target_row)
// Both fractions are divided by the larger of 1 and e first, so that nothing overflows.
void cross_entropy_finish(const float* reference, const float* sum, const float* target_logit, View target_rows,
                          float scale, float softcap, View dh, float* loss, int64_t n) {
    for (int64_t t = 0; t < n; ++t) {
        const double gap = double(target_logit[t]) - double(reference[t]);  // log e
        const double others = gap > 0 ? std::exp(-gap) : 1;                 // 1 / max(1, e)
        const double target = gap > 0 ? 1 : std::exp(gap);                  // e / max(1, e)
        const double total = sum[t] * others + target;                      // (S + e) / max(1, e)
        loss[t] = float(gap > 0 ? std::log1p(sum[t] * others) : std::log(total) - gap);
        if (!dh) continue;
        const double miss = sum[t] * others / total * slope(target_logit[t], softcap);  // 1 - p_target, with the slope
        for (int64_t c = 0; c < dh.cols; ++c) {
            const double pull = load(dh, t, c) * others / total - miss * load(target_rows, t, c);
            store(dh, t, c, double(scale) * pull);
        }
    }
}

}  // namespace fb::reference
