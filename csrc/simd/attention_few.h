// Attention for a few queries, as in decoding: each query reads the keys in place, one row at a time. Tiles of queries
// would leave most lanes empty.
#pragma once
#include "core/ops.h"
#include "simd/rows.h"
#include "simd/transpose.h"

namespace fb::FB_ISA {

constexpr int64_t kFewQueries = 4;

// scores (count) = scale k q, for `count` rows of k (d of its columns) and q (d). scores must have room for whole
// vectors.
template <class X>
FB_INLINE void scores_of(const X* q, const View& k, int64_t row, int64_t col, int64_t count, int64_t d, float scale,
                         float* scores) {
    for (int64_t j = 0; j < count; j += kLanes) {
        Vec dots[kLanes] = {};
        for (int64_t i = 0; i < std::min<int64_t>(kLanes, count - j); i++) {
            const X* key = k.row<X>(row + j + i) + col;
            for_lanes(d, [&](auto get, auto) { dots[i] += get(q) * get(key); });
        }
        store(scores + j, lane_sums(dots) * scale);
    }
}

// Scratch of a query that sees `keys` keys: its probabilities and its sums.
FB_INLINE int64_t few_floats(int64_t keys, int64_t d) { return round_up(keys, kLanes) + round_up(d, kLanes); }

// Computes query row i of one head, which sees keys [first, last).
template <class X>
void attend_one(const View& q, const View& k, const View& v, const AttentionShape& s, int64_t head, int64_t i,
                int64_t first, int64_t last, const View& out) {
    const int64_t d = s.head_dim, col = head / (s.heads / s.kv_heads) * d, count = last - first;
    const int64_t padded = round_up(count, kLanes), width = round_up(d, kLanes);
    float* p = static_cast<float*>(thread_scratch(size_t(few_floats(count, d)) * 4));
    float* sums = p + padded;
    scores_of(q.row<X>(i) + head * d, k, first, col, count, d, s.scale, p);
    if (s.softcap > 0)
        for (int64_t j = 0; j < padded; j += kLanes) store(p + j, tanh(load(p + j) * (1.0f / s.softcap)) * s.softcap);
    std::fill(p + count, p + padded, -std::numeric_limits<float>::infinity());
    Vec best = load(p), part{};
    for (int64_t j = kLanes; j < padded; j += kLanes) best = max(best, load(p + j));
    const float sink = s.sinks ? s.sinks[head] : -std::numeric_limits<float>::infinity();
    const float top = std::max(max_lane(best), sink);
    for (int64_t j = 0; j < padded; j += kLanes) {
        const Vec e = exp(load(p + j) - top);
        store(p + j, e);
        part += e;
    }
    const float total = sum(part) + (s.sinks ? std::exp(sink - top) : 0.0f);
    std::fill_n(sums, width, 0.0f);
    for (int64_t j = 0; j < count; j++) {
        const X* value = v.row<X>(first + j) + col;
        for_lanes(d, [&](auto get, auto put) { put(sums, get(sums) + p[j] * get(value)); });
    }
    by_dtype(out.dtype, [&](auto* tag) {
        using O = std::remove_pointer_t<decltype(tag)>;
        for_lanes(d, [&](auto get, auto put) { put(out.row<O>(i) + head * d, get(sums) / total); });
    });
}

}  // namespace fb::FB_ISA
