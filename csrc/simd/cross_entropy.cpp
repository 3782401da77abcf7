#include <cmath>

#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

// How far a row's maximum may rise above its reference before the row is rescaled. e^30 is far from overflow.
constexpr float kHeadroom = 30.0f;

// A logit as the softmax uses it, and the derivative given that logit.
struct Plain {
    FB_INLINE Vec operator()(Vec z) const { return z; }
    FB_INLINE float one(float z) const { return z; }
    FB_INLINE Vec times_slope(Vec e, Vec) const { return e; }
};
struct Capped {
    float cap, inverse;

    FB_INLINE Vec operator()(Vec z) const { return tanh(z * inverse) * cap; }
    FB_INLINE float one(float z) const { return (*this)(splat(z))[0]; }
    FB_INLINE Vec times_slope(Vec e, Vec logit) const { return e * (1.0f - logit * inverse * (logit * inverse)); }
};

template <class P, class Form>
FB_INLINE void tile_row(const float* row, int64_t n, int64_t target, const Form& form, float& reference, float& sum_out,
                        float& target_logit, P* p, float* dh, int64_t width) {
    int64_t i = 0;
    Vec best = splat(-std::numeric_limits<float>::infinity());
    for (; i + kLanes <= n; i += kLanes) best = max(best, load(row + i));
    float top = max_lane(best);
    for (; i < n; i++) top = std::max(top, row[i]);
    top = form.one(top);  // a cap does not change the order

    if (top > reference + kHeadroom || reference == -std::numeric_limits<float>::infinity()) {
        const float shrink = exp1(reference - top);  // 0 for the first tile
        sum_out *= shrink;
        if (dh) for_lanes(width, [&](auto get, auto put) { put(dh, get(dh) * shrink); });
        reference = top;
    }
    const float offset = reference;
    Vec total{};
    for (i = 0; i + kLanes <= n; i += kLanes) {
        const Vec logit = form(load(row + i)), e = exp(logit - offset);
        total += e;
        if (p) store(p + i, form.times_slope(e, logit));
    }
    float tail = 0;
    for (; i < n; i++) {
        const float logit = form.one(row[i]), e = exp1(logit - offset);
        tail += e;
        if (p) store1(p + i, form.times_slope(splat(e), splat(logit))[0]);
    }
    float others = sum(total) + tail;
    if (target >= 0 && target < n) {
        target_logit = form.one(row[target]);
        if (p) store1(p + target, 0.0f);
        // Sum again without the target: subtracting it would cancel if it dominates.
        Vec again{};
        others = 0;
        for (i = 0; i + kLanes <= n; i += kLanes) {
            Vec e = exp(form(load(row + i)) - offset);
            if (target >= i && target < i + kLanes) e[target - i] = 0;
            again += e;
        }
        for (; i < n; i++)
            if (i != target) others += exp1(form.one(row[i]) - offset);
        others += sum(again);
    }
    sum_out += others;
}

}  // namespace

void cross_entropy_tile(View logits, const int32_t* targets, int64_t first, float softcap, float* reference,
                        float* sum_out, float* target_logit, View p, View dh) {
    by_dtype(p.dtype, [&](auto* tag) {
        using P = std::remove_pointer_t<decltype(tag)>;
        const auto rows = [&](const auto& form) {
            parallel_rows(logits.rows, logits.cols, [&](int64_t t) {
                tile_row(logits.row<float>(t), logits.cols, targets[t] - first, form, reference[t], sum_out[t],
                         target_logit[t], p ? p.row<P>(t) : nullptr, dh ? dh.row<float>(t) : nullptr, dh.cols);
            });
        };
        if (softcap > 0) rows(Capped{softcap, 1.0f / softcap});
        else rows(Plain());
    });
}

void cross_entropy_finish(const float* reference, const float* sum_in, const float* target_logit, View target_rows,
                          float scale, float softcap, View dh, float* loss, int64_t n) {
    parallel_rows(n, dh ? dh.cols : 1, [&](int64_t t) {
        // loss = log(1 + others / e_target), in a form in which neither side overflows or cancels.
        const float margin = target_logit[t] - reference[t] - std::log(sum_in[t]);  // log(p_target / others)
        loss[t] = margin > 0 ? std::log1p(std::exp(-margin)) : std::log1p(std::exp(margin)) - margin;
        if (!dh) return;
        const float others = 1.0f / (1.0f + std::exp(margin));  // 1 - p_target
        // dh / total, with total = sum + e_target: others / sum avoids forming e_target, which may overflow.
        const float share = sum_in[t] > 0 ? scale * others / sum_in[t] : 0.0f;
        const float capped = softcap > 0 ? target_logit[t] / softcap : 0.0f;
        const float pull = scale * others * (1.0f - capped * capped);
        float* row = dh.row<float>(t);
        for_lanes(dh.cols,
                  [&](auto get, auto put) { put(row, get(row) * share - get(target_rows.row<float>(t)) * pull); });
    });
}

}  // namespace fb::FB_ISA
