// Causal attention in tiles of keys and queries: no T x T array, one number a row (log-sum-exp) for the backward.
#include <cmath>
#include <vector>

#include "simd/attention_few.h"
#include "simd/pack.h"
#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

constexpr int kQueries = 64, kKeys = 64;  // a tile; both multiples of the lanes
constexpr float kMasked = -std::numeric_limits<float>::infinity();

// One sequence's rows in q and k, and which keys a query sees.
struct Span {
    int64_t q0, q1, k0, k1, window;

    // keys [first, last) of query i (absolute row), absolute
    int64_t last(int64_t i) const { return std::min(k1, k1 - (q1 - i) + 1); }
    int64_t first(int64_t i) const { return window > 0 ? std::max(k0, last(i) - window) : k0; }
};

// (sequence, query tile) or (sequence, key tile) of a flat index.
struct Tile {
    Span span;
    int64_t begin, end;
};

std::vector<Tile> cut(const AttentionShape& s, bool by_query, int64_t size) {
    std::vector<Tile> tiles;
    for (int64_t i = 0; i < s.sequences; i++) {
        const Span span{s.cu_q[i], s.cu_q[i + 1], s.cu_k[i], s.cu_k[i + 1], s.window};
        const int64_t from = by_query ? span.q0 : span.k0, to = by_query ? span.q1 : span.k1;
        for (int64_t t = from; t < to; t += size) tiles.push_back({span, t, std::min(to, t + size)});
    }
    return tiles;
}

// Scratch carved from the calling thread's buffer.
class Carver {
public:
    explicit Carver(size_t floats) : next_(static_cast<float*>(thread_scratch(floats * 4))) {}
    float* take(int64_t floats) {
        float* p = next_;
        next_ += floats;
        return p;
    }

private:
    float* next_;
};

// out (count, width) = x[row0 + i, col .. col + d) * scale; columns d .. width are zero.
void copy_rows(const View& x, int64_t row0, int64_t count, int64_t col, int64_t d, int64_t width, float scale,
               float* out) {
    by_dtype(x.dtype, [&](auto* tag) {
        using X = std::remove_pointer_t<decltype(tag)>;
        for (int64_t i = 0; i < count; i++) {
            float* to = out + i * width;
            const X* from = x.row<X>(row0 + i) + col;
            int64_t c = 0;
            for (; c + kLanes <= d; c += kLanes) store(to + c, load(from + c) * scale);
            for (; c < d; c++) to[c] = load1(from + c) * scale;
            for (; c < width; c++) to[c] = 0;
        }
    });
}

// out (d, lanes) = the same rows transposed; rows beyond `count` are zero. `lanes` is a multiple of kLanes.
void copy_transposed(const View& x, int64_t row0, int64_t count, int64_t lanes, int64_t col, int64_t d, float scale,
                     float* out) {
    by_dtype(x.dtype, [&](auto* tag) {
        using X = std::remove_pointer_t<decltype(tag)>;
        for (int64_t i = 0; i < lanes; i += kLanes)
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
                for (int64_t r = 0; r < live; r++) store(out + (c + r) * lanes + i, block[r]);
            }
    });
}

// x[row0 + i, col .. col + d) = columns i < count of tile_t (d, kQueries) times `factors` (kQueries).
void write_transposed(const float* tile_t, const float* factors, int64_t count, int64_t d, const View& x, int64_t row0,
                      int64_t col) {
    by_dtype(x.dtype, [&](auto* tag) {
        using X = std::remove_pointer_t<decltype(tag)>;
        for (int64_t i = 0; i < count; i += kLanes)
            for (int64_t c = 0; c < d; c += kLanes) {
                const int64_t live = std::min<int64_t>(kLanes, d - c);
                Vec block[kLanes];
                for (int r = 0; r < kLanes; r++)
                    block[r] = r < live ? load(tile_t + (c + r) * kQueries + i) * load(factors + i) : Vec{};
                transpose(block);
                for (int64_t r = 0; r < std::min<int64_t>(kLanes, count - i); r++) {
                    X* to = x.row<X>(row0 + i + r) + col + c;
                    if (live == kLanes) store(to, block[r]);
                    else store_part(to, live, block[r]);
                }
            }
    });
}

// tile (queries, kKeys): `fill` where key j is not visible to query i.
void mask(const Span& span, int64_t q, int64_t queries, int64_t k, float* tile, float fill) {
    for (int64_t i = 0; i < queries; i++) {
        const int64_t first = span.first(q + i) - k, last = span.last(q + i) - k;
        float* row = tile + i * kKeys;
        for (int64_t j = 0; j < std::min<int64_t>(kKeys, std::max<int64_t>(first, 0)); j++) row[j] = fill;
        for (int64_t j = std::max<int64_t>(last, 0); j < kKeys; j++) row[j] = fill;
    }
}

// The same for tile_t (keys, kQueries).
void mask_transposed(const Span& span, int64_t q, int64_t queries, int64_t k, int64_t keys, float* tile_t, float fill) {
    if (span.last(q) >= k + keys && span.first(q + queries - 1) <= k) return;  // all of it is visible
    alignas(64) int32_t first[kQueries], last[kQueries];
    for (int64_t i = 0; i < kQueries; i++) {
        const int64_t query = q + std::min(i, queries - 1);
        first[i] = int32_t(std::max<int64_t>(span.first(query) - k, 0));
        last[i] = int32_t(std::clamp<int64_t>(span.last(query) - k, 0, keys));
    }
    for (int64_t i = 0; i < kQueries; i += kLanes) {
        const IVec from = load_raw<IVec>(first + i), to = load_raw<IVec>(last + i);
        for (int32_t j = 0; j < keys; j++) {
            float* cell = tile_t + j * kQueries + i;
            const IVec key = j - IVec{};
            store(cell, (key >= from) & (key < to) ? load(cell) : splat(fill));
        }
    }
}

// A transposed tile's place in the full array of probabilities, a row a query.
void keep_tile(const View& p, int64_t row, int64_t queries, int64_t key, int64_t keys, const float* tile_t) {
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++) p.row<float>(row + i)[key + j] = tile_t[j * kQueries + i];
}

void fetch_tile(const View& p, int64_t row, int64_t queries, int64_t key, int64_t keys, float* tile) {
    for (int64_t i = 0; i < queries; i++) std::copy_n(p.row<float>(row + i) + key, keys, tile + i * kKeys);
}

void attention_few(const View& q, const View& k, const View& v, const AttentionShape& s, const View& out) {
    const std::vector<Tile> tiles = cut(s, true, 1);
    const int64_t count = int64_t(tiles.size());
    parallel_for(s.heads * count, [&](int64_t unit) {
        const Tile& tile = tiles[size_t(unit % count)];
        const int64_t row = tile.begin;
        by_dtype(q.dtype, [&](auto* tag) {
            attend_one<std::remove_pointer_t<decltype(tag)>>(q, k, v, s, unit / count, row, tile.span.first(row),
                                                             tile.span.last(row), out);
        });
    });
}

}  // namespace

// Scores are held transposed (keys, queries): the queries' lanes run through the softmax side by side, keys and values
// are read as they lie, and only the tile of queries and its sums are turned, once each.
void attention(View q, View k, View v, const AttentionShape& s, View out, View lse, View p) {
    // With a backward to come, few queries are summed as many are: every method then has the same forward.
    if (q.rows <= kFewQueries && !lse && !p) return attention_few(q, k, v, s, out);
    const int64_t d = s.head_dim, group = s.heads / s.kv_heads;
    const std::vector<Tile> tiles = cut(s, true, kQueries);
    const int64_t count = int64_t(tiles.size());
    parallel_for(s.heads * count, [&](int64_t unit) {
        const int64_t head = unit / count, kv = head / group;
        const Tile& tile = tiles[size_t(count - 1 - unit % count)];  // the long rows first: better balance
        const int64_t q0 = tile.begin, queries = tile.end - tile.begin;
        Carver carve(size_t(2 * kQueries * d + kKeys * d + kQueries * kKeys));
        float *query_t = carve.take(kQueries * d), *sum_t = carve.take(kQueries * d);
        float *scores_t = carve.take(kQueries * kKeys), *rows = carve.take(kKeys * d);
        alignas(64) float top[kQueries], total[kQueries];
        std::fill_n(top, kQueries, kMasked);
        std::fill_n(total, kQueries, 0.0f);
        std::fill_n(sum_t, kQueries * d, 0.0f);
        copy_transposed(q, q0, queries, kQueries, head * d, d, s.scale, query_t);

        const int64_t last = tile.span.last(tile.end - 1);
        for (int64_t key = tile.span.first(q0); key < last; key += kKeys) {
            const int64_t keys = std::min<int64_t>(kKeys, last - key);
            copy_rows(k, key, keys, kv * d, d, d, 1, rows);
            small_gemm(keys, kQueries, d, rows, d, 1, query_t, kQueries, scores_t, kQueries, false);
            mask_transposed(tile.span, q0, queries, key, keys, scores_t, kMasked);
            if (p) keep_tile(p, head * q.rows + q0, queries, key, keys, scores_t);
            for (int64_t i = 0; i < kQueries; i += kLanes) {
                const Vec before = load(top + i);
                Vec best = before;
                for (int64_t j = 0; j < keys; j++) best = max(best, load(scores_t + j * kQueries + i));
                // A query that has seen nothing yet (a window's edge) has no maximum to refer to.
                const Vec reference = best == kMasked ? Vec{} : best;
                const Vec shrink = exp(before - reference);
                Vec part{};
                for (int64_t j = 0; j < keys; j++) {
                    float* cell = scores_t + j * kQueries + i;
                    const Vec e = exp(load(cell) - reference);
                    store(cell, e);
                    part += e;
                }
                store(total + i, load(total + i) * shrink + part);
                store(top + i, best);
                for (int64_t c = 0; c < d; c++) {
                    float* cell = sum_t + c * kQueries + i;
                    store(cell, load(cell) * shrink);
                }
            }
            copy_rows(v, key, keys, kv * d, d, d, 1, rows);
            small_gemm(d, kQueries, keys, rows, 1, d, scores_t, kQueries, sum_t, kQueries, true);
        }
        alignas(64) float inverse[kQueries];
        for (int64_t i = 0; i < kQueries; i += kLanes) store(inverse + i, 1.0f / load(total + i));
        write_transposed(sum_t, inverse, queries, d, out, q0, head * d);
        for (int64_t i = 0; i < queries; i++) {
            const float log_sum = top[i] + std::log(total[i]);
            if (lse) lse.row<float>(head)[q0 + i] = log_sum;
            if (p) {  // scores become probabilities, by the arithmetic of the backward's recomputation
                const int64_t first = tile.span.first(q0);
                float* row = p.row<float>(head * q.rows + q0 + i) + first;
                for_lanes(last - first, [&](auto get, auto put) { put(row, exp(get(row) - log_sum)); });
            }
        }
    });
}

// Two sweeps, each of which owns what it writes: dq by query tiles, then dk and dv by key tiles. The second recomputes
// the tile's probabilities, which costs two products in seven and buys results that do not depend on the threads.
//   P = exp(S - lse);  dP = dO V^T;  dS = P (dP - delta).
void attention_backward(View dout, View q, View k, View v, View out, View lse, View kept, const AttentionShape& s,
                        View delta, View dq, View dk, View dv) {
    const int64_t d = s.head_dim, width = round_up(d, kLanes), group = s.heads / s.kv_heads;
    const std::vector<Tile> by_query = cut(s, true, kQueries), by_key = cut(s, false, kKeys);
    const int64_t query_tiles = int64_t(by_query.size()), key_tiles = int64_t(by_key.size());

    parallel_rows(q.rows, s.heads * d, [&](int64_t t) {
        by_dtype(out.dtype, [&](auto* tag) {
            using O = std::remove_pointer_t<decltype(tag)>;
            for (int64_t h = 0; h < s.heads; h++) {
                Vec dot{};
                for_lanes(d,
                          [&](auto get, auto) { dot += get(dout.row<float>(t) + h * d) * get(out.row<O>(t) + h * d); });
                delta.row<float>(h)[t] = sum(dot);
            }
        });
    });

    // dQ = dS K, with everything transposed as in the forward.
    parallel_for(s.heads * query_tiles, [&](int64_t unit) {
        const int64_t head = unit / query_tiles, kv = head / group;
        const Tile& tile = by_query[size_t(query_tiles - 1 - unit % query_tiles)];
        const int64_t q0 = tile.begin, queries = tile.end - tile.begin;
        Carver carve(size_t(3 * kQueries * d + 2 * kKeys * d + 2 * kQueries * kKeys));
        float *query_t = carve.take(kQueries * d), *grad_t = carve.take(kQueries * d);
        float *sum_t = carve.take(kQueries * d), *p_t = carve.take(kQueries * kKeys);
        float *ds_t = carve.take(kQueries * kKeys), *keys = carve.take(kKeys * d), *values = carve.take(kKeys * d);
        alignas(64) float log_sum[kQueries] = {}, offset[kQueries] = {}, scale[kQueries];
        std::copy_n(lse.row<float>(head) + q0, queries, log_sum);
        std::copy_n(delta.row<float>(head) + q0, queries, offset);
        std::fill_n(scale, kQueries, s.scale);
        std::fill_n(sum_t, kQueries * d, 0.0f);
        copy_transposed(q, q0, queries, kQueries, head * d, d, s.scale, query_t);
        copy_transposed(dout, q0, queries, kQueries, head * d, d, 1, grad_t);
        const int64_t last = tile.span.last(tile.end - 1);
        for (int64_t key = tile.span.first(q0); key < last; key += kKeys) {
            const int64_t count = std::min<int64_t>(kKeys, last - key);
            copy_rows(k, key, count, kv * d, d, d, 1, keys);
            copy_rows(v, key, count, kv * d, d, d, 1, values);
            if (kept) copy_transposed(kept, head * q.rows + q0, queries, kQueries, key, count, 1, p_t);
            else small_gemm(count, kQueries, d, keys, d, 1, query_t, kQueries, p_t, kQueries, false);
            small_gemm(count, kQueries, d, values, d, 1, grad_t, kQueries, ds_t, kQueries, false);
            mask_transposed(tile.span, q0, queries, key, count, p_t, kept ? 0.0f : kMasked);
            for (int64_t j = 0; j < count; j++)
                for (int64_t i = 0; i < kQueries; i += kLanes) {
                    const Vec p = load(p_t + j * kQueries + i);
                    const Vec e = kept ? p : exp(p - load(log_sum + i));
                    store(ds_t + j * kQueries + i, e * (load(ds_t + j * kQueries + i) - load(offset + i)));
                }
            small_gemm(d, kQueries, count, keys, 1, d, ds_t, kQueries, sum_t, kQueries, true);
        }
        write_transposed(sum_t, scale, queries, d, dq, q0, head * d);
    });

    // dV = P^T dO and dK = dS^T Q, by rows of queries.
    parallel_for(s.kv_heads * key_tiles, [&](int64_t unit) {
        const int64_t kv = unit / key_tiles;
        const Tile& tile = by_key[size_t(unit % key_tiles)];
        const Span& span = tile.span;
        const int64_t key = tile.begin, keys = tile.end - tile.begin;
        Carver carve(size_t(2 * kQueries * width + 2 * kKeys * width + 2 * kKeys * d + 2 * kQueries * kKeys));
        float *query = carve.take(kQueries * width), *grad = carve.take(kQueries * width);
        float *sum_dk = carve.take(kKeys * width), *sum_dv = carve.take(kKeys * width);
        float *p = carve.take(kQueries * kKeys), *ds = carve.take(kQueries * kKeys);
        float *keys_t = carve.take(kKeys * d), *values_t = carve.take(kKeys * d);
        std::fill_n(sum_dk, kKeys * width, 0.0f);
        std::fill_n(sum_dv, kKeys * width, 0.0f);
        copy_transposed(k, key, keys, kKeys, kv * d, d, 1, keys_t);
        copy_transposed(v, key, keys, kKeys, kv * d, d, 1, values_t);
        // The first query that sees this tile's first key, and the last that still has its last key in the window.
        const int64_t shift = (span.k1 - span.k0) - (span.q1 - span.q0);
        const int64_t first_query = std::max(span.q0, span.q0 + (key - span.k0) - shift);
        const int64_t last_query =
            s.window > 0 ? std::min(span.q1, span.q0 + (key + keys - 1 - span.k0) - shift + s.window) : span.q1;
        for (int64_t head = kv * group; head < (kv + 1) * group; head++)
            for (int64_t q0 = first_query; q0 < last_query; q0 += kQueries) {
                const int64_t queries = std::min<int64_t>(kQueries, last_query - q0);
                copy_rows(q, q0, queries, head * d, d, width, s.scale, query);
                copy_rows(dout, q0, queries, head * d, d, width, 1, grad);
                if (kept) fetch_tile(kept, head * q.rows + q0, queries, key, keys, p);
                else small_gemm(queries, kKeys, d, query, width, 1, keys_t, kKeys, p, kKeys, false);
                small_gemm(queries, kKeys, d, grad, width, 1, values_t, kKeys, ds, kKeys, false);
                mask(span, q0, queries, key, p, kept ? 0.0f : kMasked);
                for (int64_t i = 0; i < queries; i++) {
                    const float log_sum = lse.row<float>(head)[q0 + i], offset = delta.row<float>(head)[q0 + i];
                    for (int64_t j = i * kKeys; j < (i + 1) * kKeys; j += kLanes) {
                        const Vec e = kept ? load(p + j) : exp(load(p + j) - log_sum);
                        store(p + j, e);
                        store(ds + j, e * (load(ds + j) - offset));
                    }
                }
                small_gemm(keys, width, queries, p, 1, kKeys, grad, width, sum_dv, width, true);
                small_gemm(keys, width, queries, ds, 1, kKeys, query, width, sum_dk, width, true);
            }
        for (int64_t j = 0; j < keys; j++)
            for_lanes(d, [&](auto get, auto put) {
                put(dk.row<float>(key + j) + kv * d, get(sum_dk + j * width));  // query carries the scale already
                put(dv.row<float>(key + j) + kv * d, get(sum_dv + j * width));
            });
    });
}

}  // namespace fb::FB_ISA
