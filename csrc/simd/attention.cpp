// Attention in tiles of keys and queries. There is no T x T array, and the backward pass needs one number per
// row (log-sum-exp).
#include <array>
#include <cmath>

#include "simd/attention_few.h"
#include "simd/attention_tiles.h"
#include "simd/table.h"

namespace fb::FB_ISA {
namespace {

constexpr int kBlock = 4;  // keys that the correction of dq replaces by the first of them

// Rows [begin, end) of one sequence, queries or keys.
struct Tile {
    Span span;
    int64_t begin, end;
};

// How the rows of one side are cut into tiles of `size` rows that belong to one sequence each. The slots of sequence i
// begin at cu[i] / size + i, which is enough for its tiles. Unused slots are empty tiles.
class Cut {
public:
    Cut(const AttentionShape& shape, const int32_t* cu, int64_t size) : shape_(shape), cu_(cu), size_(size) {}

    int64_t slots() const { return first_slot(shape_.sequences); }

    Tile tile(int64_t slot) const {
        int64_t i = 0;  // the last sequence whose slots do not start after this one
        for (int64_t end = shape_.sequences; end - i > 1;) {
            const int64_t middle = (i + end) / 2;
            (first_slot(middle) <= slot ? i : end) = middle;
        }
        const int64_t to = cu_[i + 1], begin = std::min(to, cu_[i] + (slot - first_slot(i)) * size_);
        return {span(i), begin, std::min(to, begin + size_)};
    }

private:
    Span span(int64_t i) const {
        Span found{shape_.cu_q[i], shape_.cu_q[i + 1], shape_.cu_k[i], shape_.cu_k[i + 1], shape_.window};
        if (const int32_t* prefix = shape_.prefix) {
            found.window = std::min<int64_t>(0, found.window);  // it is wider than any sequence with its prefix
            if (prefix[i] >= 0) found.p0 = shape_.cu_k[prefix[i]], found.p1 = shape_.cu_k[prefix[i] + 1];
            for (int64_t j = i + 1; j < shape_.sequences && prefix[j] == i; j++) found.q2 = shape_.cu_q[j + 1];
        }
        return found;
    }

    int64_t first_slot(int64_t i) const { return cu_[i] / size_ + i; }

    const AttentionShape& shape_;
    const int32_t* cu_;
    int64_t size_;
};

// tile (queries, kOwn) = `fill` where key j is not visible to query i.
void mask(const Span& span, int64_t q, int64_t queries, int64_t k, float* tile, float fill) {
    if (all_visible(span, q, queries, k, kOwn)) return;
    for (int64_t i = 0; i < queries; i++) {
        const int64_t first = std::clamp<int64_t>(span.first(q + i) - k, 0, kOwn);
        const int64_t last = std::clamp<int64_t>(span.last(q + i) - k, first, kOwn);
        float* row = tile + i * kOwn;
        std::fill(row, row + first, fill);
        std::fill(row + last, row + kOwn, fill);
    }
}

void multiply(int64_t floats, const float* factors, float* x) {
    for (int64_t i = 0; i < floats; i += kLanes) store(x + i, load(x + i) * load(factors + i));
}

// The first key of the block that has this key. A prefix begins with a block.
int64_t block_start(const Span& span, int64_t key) { return key - std::max<int64_t>(0, key - span.k0) % kBlock; }

// The sums of blocks of kBlock rows of x_t (rows, kOwn), in place. Returns how many there are.
int64_t sum_blocks(int64_t rows, float* x_t) {
    for (int64_t row = 0; row < rows; row += kBlock)
        for (int64_t i = 0; i < kOwn; i += kLanes) {
            Vec sum = load(x_t + row * kOwn + i);
            for (int64_t j = row + 1; j < std::min(rows, row + kBlock); j++) sum += load(x_t + j * kOwn + i);
            store(x_t + row / kBlock * kOwn + i, sum);
        }
    return (rows + kBlock - 1) / kBlock;
}

// Writes a transposed tile into the full array of probabilities, which has a row per query.
void keep_tile(const View& p, int64_t row, int64_t queries, int64_t key, int64_t keys, const float* tile_t) {
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++) p.row<float>(row + i)[key + j] = tile_t[j * kOwn + i];
}

void fetch_tile(const View& p, int64_t row, int64_t queries, int64_t key, int64_t keys, float* tile) {
    for (int64_t i = 0; i < queries; i++) std::copy_n(p.row<float>(row + i) + key, keys, tile + i * kOwn);
}

void attention_few(const View& q, const View& k, const View& v, const AttentionShape& s, const View& out) {
    const Cut cut(s, s.cu_q, 1);
    const int64_t slots = cut.slots();
    parallel_for(s.heads * slots, [&](int64_t unit) {
        const Tile tile = cut.tile(unit % slots);
        const int64_t row = tile.begin;
        if (row == tile.end) return;
        by_dtype(q.dtype, [&](auto* tag) {
            attend_one<std::remove_pointer_t<decltype(tag)>>(q, k, v, s, unit / slots, row, tile.span.first(row),
                                                             tile.span.last(row), out);
        });
    });
}

// If a backward pass follows, few queries use the same sums as many, so that every method has the same forward pass.
bool takes_few(const AttentionShape& s, bool backward_follows) {
    return s.cu_q[s.sequences] <= kFewQueries && !backward_follows && !s.prefix;
}

// The keys [first, last) that a tile of queries goes over: those of the prefix, then its own.
struct Walk {
    int64_t first, last;
};
std::array<Walk, 2> walks(const Tile& tile) {
    const Span& span = tile.span;
    return {Walk{span.p0, span.p1}, Walk{span.first(tile.begin), span.last(tile.end - 1)}};
}

// Floats of scratch that a unit needs: for the forward pass, and for the backward sweeps over queries and over keys.
int64_t forward_floats(const AttentionShape& s) { return (2 * kOwn + kWalk) * s.head_dim + kOwn * kWalk; }
int64_t by_query_floats(const AttentionShape& s) {
    return (4 * kOwn + 2 * kWalk) * s.head_dim + (s.softcap > 0 ? 3 : 2) * kOwn * kWalk;
}
int64_t by_key_floats(const AttentionShape& s) {
    return (4 * kOwn + 2 * kWalk) * s.head_dim + (s.softcap > 0 ? 3 : 2) * kOwn * kWalk;
}

}  // namespace

// Scores are held transposed (keys, queries): the softmax runs over the queries' lanes in parallel, keys and values are
// read in place, and only the tile of queries and its sums are transposed, once each.
void attention(View q, View k, View v, const AttentionShape& s, View out, View lse, View p) {
    if (takes_few(s, lse || p)) return attention_few(q, k, v, s, out);
    const int64_t d = s.head_dim, group = s.heads / s.kv_heads;
    const Cut cut(s, s.cu_q, kOwn);
    const int64_t slots = cut.slots();
    parallel_for(s.heads * slots, [&](int64_t unit) {
        const int64_t head = unit / slots, kv = head / group;
        const Tile tile = cut.tile(slots - 1 - unit % slots);  // long rows first, for better balance
        const int64_t q0 = tile.begin, queries = tile.end - tile.begin;
        if (queries == 0) return;
        Carver carve(forward_floats(s));
        float *query_t = carve.take(kOwn * d), *sum_t = carve.take(kOwn * d);
        float *scores_t = carve.take(kOwn * kWalk), *buffer = carve.take(kWalk * d);
        alignas(64) float top[kOwn], total[kOwn];
        // A sink is a first key whose value is zero.
        std::fill_n(top, kOwn, s.sinks ? s.sinks[head] : kMasked);
        std::fill_n(total, kOwn, s.sinks ? 1.0f : 0.0f);
        std::fill_n(sum_t, kOwn * d, 0.0f);
        copy_transposed(q, q0, queries, head * d, d, s.scale, query_t);

        for (const auto& [first, last] : walks(tile))
            for (int64_t key = first; key < last; key += kWalk) {
                const int64_t keys = std::min<int64_t>(kWalk, last - key);
                const auto key_rows = rows_of(k, key, keys, kv * d, d, buffer);
                small_gemm(keys, kOwn, d, key_rows.data, key_rows.stride, 1, query_t, kOwn, scores_t, kOwn, false);
                if (s.softcap > 0) soften(s.softcap, keys * kOwn, scores_t, nullptr);
                mask_transposed(tile.span, q0, queries, key, keys, scores_t, kMasked);
                if (p) keep_tile(p, head * q.rows + q0, queries, key, keys, scores_t);
                take_scores(keys, d, scores_t, top, total, sum_t);
                const auto values = rows_of(v, key, keys, kv * d, d, buffer);
                small_gemm(d, kOwn, keys, values.data, 1, values.stride, scores_t, kOwn, sum_t, kOwn, true);
            }
        divide(total, d, sum_t);
        write_transposed(sum_t, 1, queries, d, out, q0, head * d);
        for (int64_t i = 0; i < queries; i++) {
            const float log_sum = top[i] + std::log(total[i]);
            if (lse) lse.row<float>(head)[q0 + i] = log_sum;
            if (p) {  // to probabilities, with the arithmetic of the backward pass
                for (const auto& [first, last] : walks(tile)) {
                    float* row = p.row<float>(head * q.rows + q0 + i) + first;
                    for_lanes(last - first, [&](auto get, auto put) { put(row, exp(get(row) - log_sum)); });
                }
            }
        }
    });
}

// Forward: O = P V, P = exp(S - lse), S = scale Q K^T. Two sweeps, each of which owns its outputs: dq by query tiles,
// then dk and dv by key tiles. The second recomputes the tile's probabilities. This costs two products in seven, and
// makes results independent of the threads.
//   P = exp(S - lse);  dP = dO V^T;  dS = P (dP - delta), times the slope of the soft cap.
// delta is the sum of P dP over a row. It is dO . O, unless O was rounded. Then the first sweep begins with dO . O, and
// finds delta on the way. dQ has (delta - dO . O) P K too much, which is subtracted at the end, with a key for each
// block of keys. Blocks are counted from a sequence's first key, so the sums do not depend on how queries are divided.
void attention_backward(View dout, View q, View k, View v, View out, View lse, View p, const AttentionShape& s,
                        View delta, View dq, View dk, View dv, bool accumulate) {
    const int64_t d = s.head_dim, group = s.heads / s.kv_heads;
    const Cut by_query(s, s.cu_q, kOwn), by_key(s, s.cu_k, kOwn);
    const int64_t query_slots = by_query.slots(), key_slots = by_key.slots();
    const View kept = s.softcap > 0 ? View{} : p;  // the slope needs the scores, which give the same probabilities
    const bool rounded = out.dtype != Dtype::f32;

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

    // dQ = dS K, with everything transposed as in the forward pass.
    parallel_for(s.heads * query_slots, [&](int64_t unit) {
        const int64_t head = unit / query_slots, kv = head / group;
        const Tile tile = by_query.tile(query_slots - 1 - unit % query_slots);
        const int64_t q0 = tile.begin, queries = tile.end - tile.begin;
        if (queries == 0) return;
        Carver carve(by_query_floats(s));
        float *query_t = carve.take(kOwn * d), *grad_t = carve.take(kOwn * d), *sum_t = carve.take(kOwn * d);
        float *p_t = carve.take(kOwn * kWalk), *ds_t = carve.take(kOwn * kWalk);
        float *key_buffer = carve.take(kWalk * d), *value_buffer = carve.take(kWalk * d);
        float* mean_t = carve.take(kOwn * d);  // P K, with the first key of each block
        float* slope_t = s.softcap > 0 ? carve.take(kOwn * kWalk) : nullptr;
        alignas(64) float log_sum[kOwn] = {}, offset[kOwn] = {}, exact[kOwn] = {};
        std::copy_n(lse.row<float>(head) + q0, queries, log_sum);
        std::copy_n(delta.row<float>(head) + q0, queries, offset);
        std::fill_n(sum_t, kOwn * d, 0.0f);
        if (rounded) std::fill_n(mean_t, kOwn * d, 0.0f);
        copy_transposed(q, q0, queries, head * d, d, s.scale, query_t);
        copy_transposed(dout, q0, queries, head * d, d, 1, grad_t);
        for (const auto& [first, last] : walks(tile))
            for (int64_t key = rounded ? block_start(tile.span, first) : first; key < last; key += kWalk) {
                const int64_t count = std::min<int64_t>(kWalk, last - key);
                const auto keys = rows_of(k, key, count, kv * d, d, key_buffer);
                const auto values = rows_of(v, key, count, kv * d, d, value_buffer);
                if (kept) copy_transposed(kept, head * q.rows + q0, queries, key, count, 1, p_t);
                else small_gemm(count, kOwn, d, keys.data, keys.stride, 1, query_t, kOwn, p_t, kOwn, false);
                small_gemm(count, kOwn, d, values.data, values.stride, 1, grad_t, kOwn, ds_t, kOwn, false);
                if (slope_t) soften(s.softcap, count * kOwn, p_t, slope_t);
                mask_transposed(tile.span, q0, queries, key, count, p_t, kept ? 0.0f : kMasked);
                for (int64_t i = 0; i < kOwn; i += kLanes) {
                    Vec dot{};
                    for (int64_t j = 0; j < count; j++) {
                        float *weight = p_t + j * kOwn + i, *cell = ds_t + j * kOwn + i;
                        const Vec e = kept ? load(weight) : exp(load(weight) - load(log_sum + i)), dp = load(cell);
                        store(cell, e * (dp - load(offset + i)));
                        if (!rounded) continue;
                        dot += e * dp;
                        store(weight, e);
                    }
                    store(exact + i, load(exact + i) + dot);
                }
                if (slope_t) multiply(count * kOwn, slope_t, ds_t);
                small_gemm(d, kOwn, count, keys.data, 1, keys.stride, ds_t, kOwn, sum_t, kOwn, true);
                if (rounded) {
                    if (slope_t) multiply(count * kOwn, slope_t, p_t);
                    const int64_t blocks = sum_blocks(count, p_t);
                    small_gemm(d, kOwn, blocks, keys.data, 1, kBlock * keys.stride, p_t, kOwn, mean_t, kOwn, true);
                }
            }
        if (rounded) {
            for (int64_t i = 0; i < kOwn; i += kLanes) {
                const Vec error = load(exact + i) - load(offset + i);
                for (int64_t at = i; at < d * kOwn; at += kOwn)
                    store(sum_t + at, load(sum_t + at) - error * load(mean_t + at));
            }
            std::copy_n(exact, queries, delta.row<float>(head) + q0);
        }
        write_transposed(sum_t, s.scale, queries, d, dq, q0, head * d);
    });

    // dV = P^T dO and dK = dS^T Q, by rows of queries.
    parallel_for(s.kv_heads * key_slots, [&](int64_t unit) {
        const int64_t kv = unit / key_slots;
        const Tile tile = by_key.tile(unit % key_slots);
        const Span& span = tile.span;
        const int64_t key = tile.begin, keys = tile.end - tile.begin;
        if (keys == 0) return;
        // The first query that sees this tile's first key, and the last one whose window still contains its last key.
        const int64_t shift = (span.k1 - span.k0) - (span.q1 - span.q0);
        const int64_t first_query =
            span.window == kBothWays ? span.q0 : std::max(span.q0, span.q0 + (key - span.k0) - shift);
        const int64_t last_query =
            span.window > 0 ? std::min(span.q1, span.q0 + (key + keys - 1 - span.k0) - shift + span.window) : span.q2;
        if (accumulate && first_query >= last_query) return;
        Carver carve(by_key_floats(s));
        float *query = carve.take(kWalk * d), *grad_buffer = carve.take(kWalk * d);
        float *keys_t = carve.take(kOwn * d), *values_t = carve.take(kOwn * d);
        float *dk_t = carve.take(kOwn * d), *dv_t = carve.take(kOwn * d);
        float *weights = carve.take(kWalk * kOwn), *ds = carve.take(kWalk * kOwn);
        float* slope = s.softcap > 0 ? carve.take(kOwn * kWalk) : nullptr;
        if (accumulate) {
            copy_transposed(dk, key, keys, kv * d, d, 1, dk_t);
            copy_transposed(dv, key, keys, kv * d, d, 1, dv_t);
        } else {
            std::fill_n(dk_t, kOwn * d, 0.0f);
            std::fill_n(dv_t, kOwn * d, 0.0f);
        }
        copy_transposed(k, key, keys, kv * d, d, 1, keys_t);
        copy_transposed(v, key, keys, kv * d, d, 1, values_t);
        for (int64_t head = kv * group; head < (kv + 1) * group; head++)
            for (int64_t q0 = first_query; q0 < last_query; q0 += kWalk) {
                const int64_t queries = std::min<int64_t>(kWalk, last_query - q0);
                copy_rows(q, q0, queries, head * d, d, s.scale, query);
                const auto grad = rows_of(dout, q0, queries, head * d, d, grad_buffer);
                if (kept) fetch_tile(kept, head * q.rows + q0, queries, key, keys, weights);
                else small_gemm(queries, kOwn, d, query, d, 1, keys_t, kOwn, weights, kOwn, false);
                small_gemm(queries, kOwn, d, grad.data, grad.stride, 1, values_t, kOwn, ds, kOwn, false);
                if (slope) soften(s.softcap, queries * kOwn, weights, slope);
                mask(span, q0, queries, key, weights, kept ? 0.0f : kMasked);
                for (int64_t i = 0; i < queries; i++) {
                    const float log_sum = lse.row<float>(head)[q0 + i], offset = delta.row<float>(head)[q0 + i];
                    for (int64_t j = i * kOwn; j < (i + 1) * kOwn; j += kLanes) {
                        const Vec e = kept ? load(weights + j) : exp(load(weights + j) - log_sum);
                        store(weights + j, e);
                        store(ds + j, e * (load(ds + j) - offset));
                    }
                }
                if (slope) multiply(queries * kOwn, slope, ds);
                small_gemm(d, kOwn, queries, grad.data, 1, grad.stride, weights, kOwn, dv_t, kOwn, true);
                small_gemm(d, kOwn, queries, query, 1, d, ds, kOwn, dk_t, kOwn, true);
            }
        write_transposed(dk_t, 1, keys, d, dk, key, kv * d);  // query is scaled already
        write_transposed(dv_t, 1, keys, d, dv, key, kv * d);
    });
}

Cost attention_cost(const AttentionShape& s, bool backward_follows) {
    int64_t floats = forward_floats(s);
    if (takes_few(s, backward_follows)) {
        int64_t longest = 0;  // most scores in a row, which the last query of a sequence has
        for (int64_t i = 0; i < s.sequences; i++)
            if (s.cu_q[i + 1] > s.cu_q[i]) longest = std::max<int64_t>(longest, s.cu_k[i + 1] - s.cu_k[i]);
        floats = few_floats(s.window > 0 ? std::min(s.window, longest) : longest, s.head_dim);
    }
    return {attention_flops(s, kForwardProducts), s.cu_q[s.sequences] > 0 ? floats * 4 : 0};
}

Cost attention_backward_cost(const AttentionShape& s) {
    const bool queries = s.cu_q[s.sequences] > 0, keys = s.cu_k[s.sequences] > 0;
    const int64_t floats = std::max(queries ? by_query_floats(s) : 0, keys ? by_key_floats(s) : 0);
    return {attention_flops(s, kBackwardProducts), floats * 4};
}

}  // namespace fb::FB_ISA
