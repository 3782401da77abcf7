// What the kernels of attention share: tiles of queries and keys, held transposed, and the online softmax over them.
#pragma once
#include "core/ops.h"
#include "simd/pack.h"
#include "simd/rows.h"
#include "simd/transpose.h"

namespace fb::FB_ISA {

// A unit owns kOwn rows of one side, held in lanes (queries; or keys, in the sweep that computes dk and dv), and goes
// over the other side kWalk rows at a time. Its working set fits the first-level cache. Both are multiples of the
// lanes.
constexpr int kOwn = 32, kWalk = 64;
constexpr float kMasked = -std::numeric_limits<float>::infinity();

// The rows of one sequence in q and k, and the keys that a query sees: all keys [p0, p1) of its prefix and some of its
// own.
struct Span {
    int64_t q0, q1, k0, k1, window;
    int64_t p0 = 0, p1 = 0;  // p1 > 0 only with a prefix
    int64_t q2 = q1;         // queries [q1, q2), of the sequences that have it as prefix, see all its keys

    // the keys [first, last) of query i; all are absolute rows
    int64_t last(int64_t i) const { return window == kBothWays ? k1 : std::min(k1, k1 - (q1 - i) + 1); }
    int64_t first(int64_t i) const { return window > 0 ? std::max(k0, last(i) - window) : k0; }
};

// Scratch memory taken from the calling thread's buffer.
class Carver {
public:
    explicit Carver(int64_t floats) : next_(static_cast<float*>(thread_scratch(size_t(floats) * 4))) {}
    float* take(int64_t floats) {
        float* p = next_;
        next_ += floats;
        return p;
    }

private:
    float* next_;
};

// out (count, d) = x[row0 + i, col .. col + d) * scale.
inline void copy_rows(const View& x, int64_t row0, int64_t count, int64_t col, int64_t d, float scale, float* out) {
    by_dtype(x.dtype, [&](auto* tag) {
        using X = std::remove_pointer_t<decltype(tag)>;
        for (int64_t i = 0; i < count; i++)
            for_lanes(d, [&](auto get, auto put) { put(out + i * d, get(x.row<X>(row0 + i) + col) * scale); });
    });
}

// Returns the same rows in place if they are float32, or copied into `buffer` (count, d).
inline Rows<float> rows_of(const View& x, int64_t row0, int64_t count, int64_t col, int64_t d, float* buffer) {
    if (x.dtype == Dtype::f32) return {x.row<float>(row0) + col, x.ld};
    copy_rows(x, row0, count, col, d, 1, buffer);
    return {buffer, d};
}

// out (d, kOwn) = those rows times `scale`, transposed. Rows beyond `count` are zero.
inline void copy_transposed(const View& x, int64_t row0, int64_t count, int64_t col, int64_t d, float scale,
                            float* out) {
    by_dtype(x.dtype, [&](auto* tag) {
        using X = std::remove_pointer_t<decltype(tag)>;
        for (int64_t i = 0; i < kOwn; i += kLanes)
            for (int64_t c = 0; c < d; c += kLanes) {
                const int64_t live = std::min<int64_t>(kLanes, d - c);
                Vec block[kLanes];
                for (int r = 0; r < kLanes; r++) {
                    const X* from = x.row<X>(row0 + std::min(i + r, count - 1)) + col + c;
                    block[r] = i + r >= count   ? Vec{}
                               : live == kLanes ? load(from) * scale
                                                : load_part(from, live) * scale;
                }
                transpose(block);
                for (int64_t r = 0; r < live; r++) store(out + (c + r) * kOwn + i, block[r]);
            }
    });
}

// x[row0 + i, col .. col + d) = columns i < count of tile_t (d, kOwn) times `scale`.
inline void write_transposed(const float* tile_t, float scale, int64_t count, int64_t d, const View& x, int64_t row0,
                             int64_t col) {
    by_dtype(x.dtype, [&](auto* tag) {
        using X = std::remove_pointer_t<decltype(tag)>;
        for (int64_t i = 0; i < count; i += kLanes)
            for (int64_t c = 0; c < d; c += kLanes) {
                const int64_t live = std::min<int64_t>(kLanes, d - c);
                Vec block[kLanes];
                for (int r = 0; r < kLanes; r++)
                    block[r] = r < live ? load(tile_t + (c + r) * kOwn + i) * scale : Vec{};
                transpose(block);
                for (int64_t r = 0; r < std::min<int64_t>(kLanes, count - i); r++) {
                    X* to = x.row<X>(row0 + i + r) + col + c;
                    if (live == kLanes) store(to, block[r]);
                    else store_part(to, live, block[r]);
                }
            }
    });
}

inline bool all_visible(const Span& span, int64_t q, int64_t queries, int64_t k, int64_t keys) {
    return k < span.p1 || (span.last(q) >= k + keys && span.first(q + queries - 1) <= k);
}

// tile_t (keys, kOwn) = `fill` where key j is not visible to query i.
inline void mask_transposed(const Span& span, int64_t q, int64_t queries, int64_t k, int64_t keys, float* tile_t,
                            float fill) {
    if (all_visible(span, q, queries, k, keys)) return;
    alignas(64) int32_t first[kOwn], last[kOwn];
    for (int64_t i = 0; i < kOwn; i++) {
        const int64_t query = q + std::min(i, queries - 1);
        first[i] = int32_t(std::max<int64_t>(span.first(query) - k, 0));
        last[i] = int32_t(std::clamp<int64_t>(span.last(query) - k, 0, keys));
    }
    for (int64_t i = 0; i < kOwn; i += kLanes) {
        const IVec from = load_raw<IVec>(first + i), to = load_raw<IVec>(last + i);
        for (int32_t j = 0; j < keys; j++) {
            float* cell = tile_t + j * kOwn + i;
            const IVec key = j - IVec{};
            store(cell, ((key >= from) & (key < to)) ? load(cell) : splat(fill));
        }
    }
}

// scores (floats) become softcap * tanh(scores / softcap). `slope` receives the derivative, if given.
inline void soften(float softcap, int64_t floats, float* scores, float* slope) {
    const float inverse = 1.0f / softcap;
    for (int64_t i = 0; i < floats; i += kLanes) {
        const Vec t = tanh(load(scores + i) * inverse);
        store(scores + i, t * softcap);
        if (slope) store(slope + i, 1.0f - t * t);
    }
}

// Takes the scores (keys, kOwn) of a tile into the online softmax of kOwn queries: their maxima `top`, their sums of
// exponentials `total`, and sum_t (d, kOwn), which is rescaled where a maximum rises. The scores become exponentials.
inline void take_scores(int64_t keys, int64_t d, float* scores_t, float* top, float* total, float* sum_t) {
    for (int64_t i = 0; i < kOwn; i += kLanes) {
        const Vec before = load(top + i);
        Vec best = before;
        for (int64_t j = 0; j < keys; j++) best = max(best, load(scores_t + j * kOwn + i));
        // A query that has seen no key yet (at a window's edge) has no maximum as a reference.
        const Vec reference = best == kMasked ? Vec{} : best;
        Vec part{};
        for (int64_t j = 0; j < keys; j++) {
            float* cell = scores_t + j * kOwn + i;
            const Vec e = exp(load(cell) - reference);
            store(cell, e);
            part += e;
        }
        if (any(best != before)) {  // rare, once a few keys have been seen
            const Vec shrink = exp(before - reference);
            store(total + i, load(total + i) * shrink);
            store(top + i, best);
            for (int64_t c = 0; c < d; c++) store(sum_t + c * kOwn + i, load(sum_t + c * kOwn + i) * shrink);
        }
        store(total + i, load(total + i) + part);
    }
}

// sum_t (d, kOwn) divided by the sums of exponentials.
inline void divide(const float* total, int64_t d, float* sum_t) {
    for (int64_t i = 0; i < kOwn; i += kLanes) {
        const Vec inverse = 1.0f / load(total + i);
        for (int64_t c = 0; c < d; c++) store(sum_t + c * kOwn + i, load(sum_t + c * kOwn + i) * inverse);
    }
}

}  // namespace fb::FB_ISA
