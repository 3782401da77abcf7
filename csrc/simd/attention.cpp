// Causal attention in tiles of keys and queries: no T x T array, one number a row (log-sum-exp) for the backward.
#include <cmath>
#include <vector>

#include "simd/pack.h"
#include "simd/rows.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

constexpr int kQueries = 48, kKeys = 64;  // a tile; both multiples of the lanes, queries of the micro-kernel's rows
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

// out (rows, width) = x[row0 + i, col .. col + d) * scale; columns d .. width and rows beyond the last are zero.
void copy_rows(const View& x, int64_t row0, int64_t count, int64_t capacity, int64_t col, int64_t d, int64_t width,
               float scale, float* out) {
    by_dtype(x.dtype, [&](auto* tag) {
        using X = std::remove_pointer_t<decltype(tag)>;
        for (int64_t i = 0; i < capacity; i++) {
            float* to = out + i * width;
            int64_t c = 0;
            if (i < count) {
                const X* from = x.row<X>(row0 + i) + col;
                for (; c + kLanes <= d; c += kLanes) store(to + c, load(from + c) * scale);
                for (; c < d; c++) to[c] = load1(from + c) * scale;
            }
            for (; c < width; c++) to[c] = 0;
        }
    });
}

// out (d, kKeys) = rows (kKeys, width) transposed.
void transpose_keys(const float* rows, int64_t width, int64_t d, float* out) {
    for (int64_t j = 0; j < kKeys; j += kLanes)
        for (int64_t c = 0; c < d; c += kLanes) {  // rows are padded to whole vectors
            Vec block[kLanes];
            for (int i = 0; i < kLanes; i++) block[i] = load(rows + (j + i) * width + c);
            transpose(block);
            for (int i = 0; i < std::min<int64_t>(kLanes, d - c); i++) store(out + (c + i) * kKeys + j, block[i]);
        }
}

// tile (kQueries, kKeys): `fill` where key j is not visible to query i.
void mask(const Span& span, int64_t q, int64_t queries, int64_t k, float* tile, float fill) {
    for (int64_t i = 0; i < queries; i++) {
        const int64_t first = span.first(q + i) - k, last = span.last(q + i) - k;
        float* row = tile + i * kKeys;
        for (int64_t j = 0; j < std::min<int64_t>(kKeys, std::max<int64_t>(first, 0)); j++) row[j] = fill;
        for (int64_t j = std::max<int64_t>(last, 0); j < kKeys; j++) row[j] = fill;
    }
}

// A tile's place in the full array of probabilities.
void keep_tile(const View& p, int64_t row, int64_t queries, int64_t key, int64_t keys, const float* tile) {
    for (int64_t i = 0; i < queries; i++) std::copy_n(tile + i * kKeys, keys, p.row<float>(row + i) + key);
}

void fetch_tile(const View& p, int64_t row, int64_t queries, int64_t key, int64_t keys, float* tile) {
    for (int64_t i = 0; i < queries; i++) std::copy_n(p.row<float>(row + i) + key, keys, tile + i * kKeys);
}

}  // namespace

void attention(View q, View k, View v, const AttentionShape& s, View out, View lse, View p) {
    const int64_t d = s.head_dim, width = round_up(d, kLanes), group = s.heads / s.kv_heads;
    const std::vector<Tile> tiles = cut(s, true, kQueries);
    const int64_t count = int64_t(tiles.size());
    parallel_for(s.heads * count, [&](int64_t unit) {
        const int64_t head = unit / count, kv = head / group;
        const Tile& tile = tiles[size_t(count - 1 - unit % count)];  // the long rows first: better balance
        const int64_t q0 = tile.begin, queries = tile.end - tile.begin;
        Carver carve(size_t(2 * kQueries * width + 2 * kKeys * width + kQueries * kKeys));
        float *query = carve.take(kQueries * width), *sum_v = carve.take(kQueries * width);
        float *keys_t = carve.take(kKeys * width), *rows = carve.take(kKeys * width);
        float* scores = carve.take(kQueries * kKeys);
        float top[kQueries], total[kQueries];
        std::fill_n(top, kQueries, kMasked);
        std::fill_n(total, kQueries, 0.0f);
        std::fill_n(sum_v, kQueries * width, 0.0f);
        copy_rows(q, q0, queries, kQueries, head * d, d, width, s.scale, query);

        const int64_t last = tile.span.last(tile.end - 1);
        for (int64_t key = tile.span.first(q0); key < last; key += kKeys) {
            const int64_t keys = std::min<int64_t>(kKeys, last - key);
            copy_rows(k, key, keys, kKeys, kv * d, d, width, 1, rows);
            transpose_keys(rows, width, d, keys_t);
            small_gemm(queries, kKeys, d, query, width, 1, keys_t, kKeys, scores, kKeys, false);
            mask(tile.span, q0, queries, key, scores, kMasked);
            if (p) keep_tile(p, head * q.rows + q0, queries, key, keys, scores);
            for (int64_t i = 0; i < queries; i++) {
                float* row = scores + i * kKeys;
                Vec best = load(row);
                for (int j = kLanes; j < kKeys; j += kLanes) best = max(best, load(row + j));
                const float raised = std::max(top[i], max_lane(best));
                if (raised == kMasked) {  // nothing visible so far (a window's edge)
                    std::fill_n(row, kKeys, 0.0f);
                    continue;
                }
                if (raised > top[i]) {
                    const float shrink = exp1(top[i] - raised);
                    total[i] *= shrink;
                    for (int64_t c = 0; c < width; c += kLanes)
                        store(sum_v + i * width + c, load(sum_v + i * width + c) * shrink);
                    top[i] = raised;
                }
                Vec part{};
                for (int j = 0; j < kKeys; j += kLanes) {
                    const Vec e = exp(load(row + j) - raised);
                    store(row + j, e);
                    part += e;
                }
                total[i] += sum(part);
            }
            copy_rows(v, key, keys, kKeys, kv * d, d, width, 1, rows);
            small_gemm(queries, width, keys, scores, kKeys, 1, rows, width, sum_v, width, true);
        }
        by_dtype(out.dtype, [&](auto* tag) {
            using O = std::remove_pointer_t<decltype(tag)>;
            for (int64_t i = 0; i < queries; i++) {
                const float inverse = 1.0f / total[i];
                for_lanes(d, [&](auto get, auto put) {
                    put(out.row<O>(q0 + i) + head * d, get(sum_v + i * width) * inverse);
                });
                const float log_sum = top[i] + std::log(total[i]);
                if (lse) lse.row<float>(head)[q0 + i] = log_sum;
                if (p) {  // scores become probabilities, by the arithmetic of the backward's recomputation
                    const int64_t first = tile.span.first(q0), count = last - first;
                    float* row = p.row<float>(head * q.rows + q0 + i) + first;
                    for_lanes(count, [&](auto get, auto put) { put(row, exp(get(row) - log_sum)); });
                }
            }
        });
    });
}

namespace {

// The probabilities and score gradients of one tile, recomputed from lse unless they were kept:
//   P = exp(S - lse);  dP = dO V^T;  dS = P (dP - delta).
void tile_gradients(const Span& span, int64_t q0, int64_t queries, int64_t key, int64_t d, int64_t width,
                    const float* query, const float* dout, const float* keys_t, const float* values_t, const float* lse,
                    const float* delta, const View& kept, int64_t kept_row, float* p, float* ds) {
    if (kept) {
        fetch_tile(kept, kept_row, queries, key, std::min<int64_t>(kKeys, kept.cols - key), p);
    } else {
        small_gemm(queries, kKeys, d, query, width, 1, keys_t, kKeys, p, kKeys, false);
    }
    small_gemm(queries, kKeys, d, dout, width, 1, values_t, kKeys, ds, kKeys, false);
    mask(span, q0, queries, key, p, kept ? 0.0f : kMasked);
    for (int64_t i = 0; i < queries; i++)
        for (int j = 0; j < kKeys; j += kLanes) {
            const Vec e = kept ? load(p + i * kKeys + j) : exp(load(p + i * kKeys + j) - lse[i]);
            store(p + i * kKeys + j, e);
            store(ds + i * kKeys + j, e * (load(ds + i * kKeys + j) - delta[i]));
        }
}

}  // namespace

// Two sweeps, each of which owns what it writes: dq by query tiles, then dk and dv by key tiles. The second recomputes
// the tile's probabilities, which costs two products in seven and buys results that do not depend on the threads.
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

    parallel_for(s.heads * query_tiles, [&](int64_t unit) {
        const int64_t head = unit / query_tiles, kv = head / group;
        const Tile& tile = by_query[size_t(query_tiles - 1 - unit % query_tiles)];
        const int64_t q0 = tile.begin, queries = tile.end - tile.begin;
        Carver carve(size_t(3 * kQueries * width + 3 * kKeys * width + 2 * kQueries * kKeys));
        float *query = carve.take(kQueries * width), *grad = carve.take(kQueries * width);
        float *sum_dq = carve.take(kQueries * width), *keys = carve.take(kKeys * width);
        float *keys_t = carve.take(kKeys * width), *values_t = carve.take(kKeys * width);
        float *p = carve.take(kQueries * kKeys), *ds = carve.take(kQueries * kKeys);
        std::fill_n(sum_dq, kQueries * width, 0.0f);
        copy_rows(q, q0, queries, kQueries, head * d, d, width, s.scale, query);
        copy_rows(dout, q0, queries, kQueries, head * d, d, width, 1, grad);
        const int64_t last = tile.span.last(tile.end - 1);
        for (int64_t key = tile.span.first(q0); key < last; key += kKeys) {
            const int64_t count = std::min<int64_t>(kKeys, last - key);
            copy_rows(v, key, count, kKeys, kv * d, d, width, 1, keys);
            transpose_keys(keys, width, d, values_t);
            copy_rows(k, key, count, kKeys, kv * d, d, width, 1, keys);
            transpose_keys(keys, width, d, keys_t);
            tile_gradients(tile.span, q0, queries, key, d, width, query, grad, keys_t, values_t,
                           lse.row<float>(head) + q0, delta.row<float>(head) + q0, kept, head * q.rows + q0, p, ds);
            small_gemm(queries, width, count, ds, kKeys, 1, keys, width, sum_dq, width, true);
        }
        for (int64_t i = 0; i < queries; i++)
            for_lanes(d, [&](auto get, auto put) {
                put(dq.row<float>(q0 + i) + head * d, get(sum_dq + i * width) * s.scale);
            });
    });

    parallel_for(s.kv_heads * key_tiles, [&](int64_t unit) {
        const int64_t kv = unit / key_tiles;
        const Tile& tile = by_key[size_t(unit % key_tiles)];
        const Span& span = tile.span;
        const int64_t key = tile.begin, keys = tile.end - tile.begin;
        Carver carve(size_t(2 * kQueries * width + 5 * kKeys * width + 2 * kQueries * kKeys));
        float *query = carve.take(kQueries * width), *grad = carve.take(kQueries * width);
        float *rows = carve.take(kKeys * width), *keys_t = carve.take(kKeys * width);
        float *values_t = carve.take(kKeys * width), *sum_dk = carve.take(kKeys * width);
        float *sum_dv = carve.take(kKeys * width), *p = carve.take(kQueries * kKeys);
        float* ds = carve.take(kQueries * kKeys);
        std::fill_n(sum_dk, kKeys * width, 0.0f);
        std::fill_n(sum_dv, kKeys * width, 0.0f);
        copy_rows(v, key, keys, kKeys, kv * d, d, width, 1, rows);
        transpose_keys(rows, width, d, values_t);
        copy_rows(k, key, keys, kKeys, kv * d, d, width, 1, rows);
        transpose_keys(rows, width, d, keys_t);
        // The first query that sees this tile's first key, and the last that still has its last key in the window.
        const int64_t shift = (span.k1 - span.k0) - (span.q1 - span.q0);
        const int64_t first_query = std::max(span.q0, span.q0 + (key - span.k0) - shift);
        const int64_t last_query =
            s.window > 0 ? std::min(span.q1, span.q0 + (key + keys - 1 - span.k0) - shift + s.window) : span.q1;
        for (int64_t head = kv * group; head < (kv + 1) * group; head++)
            for (int64_t q0 = first_query; q0 < last_query; q0 += kQueries) {
                const int64_t queries = std::min<int64_t>(kQueries, last_query - q0);
                copy_rows(q, q0, queries, kQueries, head * d, d, width, s.scale, query);
                copy_rows(dout, q0, queries, kQueries, head * d, d, width, 1, grad);
                tile_gradients(span, q0, queries, key, d, width, query, grad, keys_t, values_t,
                               lse.row<float>(head) + q0, delta.row<float>(head) + q0, kept, head * q.rows + q0, p, ds);
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
