// Attention over a decoder's cache of keys and values, which may be visited in several calls.
#include <cmath>

#include "simd/cached_few.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

// Floats of scratch that a tile of queries needs.
int64_t tile_floats(int64_t d) { return (2 * kOwn + kWalk) * d + kOwn * kWalk; }

// Many queries: tiles of kOwn queries go over the keys kWalk at a time. Tiles of keys begin at multiples of kWalk, so
// that they are the same for all ways to divide the keys.
template <TensorType type>
void attend_tiles(const View& q, const KeyCache& cache, const CacheShape& s, const View& state, const View& out) {
    const int64_t d = cache.head_dim, group = s.heads / cache.kv_heads;
    const int64_t slots = (s.queries + kOwn - 1) / kOwn;
    const Span span{0, s.queries, 0, s.keys, s.window};
    parallel_for(s.heads * slots, [&](int64_t unit) {
        const int64_t head = unit / slots, kv = head / group, carried = head * (d + 2);
        const int64_t q0 = (slots - 1 - unit % slots) * kOwn, queries = std::min<int64_t>(kOwn, s.queries - q0);
        Carver carve(tile_floats(d));
        float *query_t = carve.take(kOwn * d), *sum_t = carve.take(kOwn * d);
        float *scores_t = carve.take(kOwn * kWalk), *buffer = carve.take(kWalk * d);
        alignas(64) float top[kOwn], total[kOwn];
        if (s.begins) {
            std::fill_n(top, kOwn, s.sinks ? s.sinks[head] : kMasked);
            std::fill_n(total, kOwn, s.sinks ? 1.0f : 0.0f);
            std::fill_n(sum_t, kOwn * d, 0.0f);
        } else {
            copy_transposed(state, q0, queries, carried + 2, d, 1, sum_t);
            for (int64_t i = 0; i < kOwn; i++) {
                const float* row = state.row<float>(q0 + std::min(i, queries - 1)) + carried;
                top[i] = row[0], total[i] = row[1];
            }
        }
        copy_transposed(q, q0, queries, head * d, d, s.scale, query_t);
        const int64_t start = s.first_key(q0) / kWalk * kWalk, end = s.last_key(q0 + queries - 1);
        for (int64_t key = std::max(start, s.from); key < end; key += kWalk) {
            const int64_t keys = std::min<int64_t>(kWalk, end - key);
            const auto key_rows = cached_rows<type>(cache, key, kv, false, keys, buffer);
            small_gemm(keys, kOwn, d, key_rows.data, key_rows.stride, 1, query_t, kOwn, scores_t, kOwn, false);
            if (s.softcap > 0) soften(s.softcap, keys * kOwn, scores_t, nullptr);
            mask_transposed(span, q0, queries, key, keys, scores_t, kMasked);
            take_scores(keys, d, scores_t, top, total, sum_t);
            const auto values = cached_rows<type>(cache, key, kv, true, keys, buffer);
            small_gemm(d, kOwn, keys, values.data, 1, values.stride, scores_t, kOwn, sum_t, kOwn, true);
        }
        if (s.ends) {
            divide(total, d, sum_t);
            write_transposed(sum_t, 1, queries, d, out, q0, head * d);
            return;
        }
        write_transposed(sum_t, 1, queries, d, state, q0, carried + 2);
        for (int64_t i = 0; i < queries; i++) {
            float* row = state.row<float>(q0 + i) + carried;
            row[0] = top[i], row[1] = total[i];
        }
    });
}

}  // namespace

void cached_attention(View q, const KeyCache& cache, const CacheShape& s, View state, View out) {
    if (s.queries == 0) return;
    with_cache_type(cache.type, [&](auto type) {
        if (s.queries <= kFewCached) attend_few<type()>(q, cache, s, state, out);
        else attend_tiles<type()>(q, cache, s, state, out);
    });
}

Cost cached_attention_cost(const CacheShape& s, int64_t kv_heads, int64_t head_dim, TensorType type) {
    const int64_t floats = s.queries == 0            ? 0
                           : s.queries <= kFewCached ? FewScratch(s, kv_heads, head_dim, type).floats(s)
                                                     : tile_floats(head_dim);
    return {cached_attention_flops(s, head_dim), floats * 4};
}

}  // namespace fb::FB_ISA
