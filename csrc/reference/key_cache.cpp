#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quant/decode.h"
#include "reference/reference.h"

namespace fb::reference {

namespace {

// A block of Q4_0: d f16, then 16 bytes with codes j and j + 16; weight = d * (code - 8).   d = the number of the
// largest magnitude / -8, so that this number has code 0;   code = trunc(x / d + 8.5)
void encode_q4_0(const double* x, uint8_t* block) {
    const double largest = *std::max_element(x, x + 32, [](double a, double b) { return std::fabs(a) < std::fabs(b); });
    const float scale = float(largest) / -8, inverse = scale != 0 ? 1 / scale : 0;
    const uint16_t half = f16_nearest(scale);
    std::memcpy(block, &half, 2);
    const auto code = [&](int j) { return std::clamp(int(x[j] * double(inverse) + 8.5), 0, 15); };
    for (int j = 0; j < 16; ++j) block[2 + j] = uint8_t(code(j) | code(j + 16) << 4);
}

void encode_row(const View& x, int64_t row, int64_t col, const KeyCache& cache, uint8_t* to) {
    std::vector<double> values(size_t(cache.head_dim));
    for (int64_t c = 0; c < cache.head_dim; ++c) values[size_t(c)] = load(x, row, col + c);
    if (cache.type == TensorType::Q4_0) {
        for (int64_t c = 0; c < cache.head_dim; c += 32) encode_q4_0(&values[size_t(c)], to + c / 32 * 18);
        return;
    }
    std::vector<float> floats(values.begin(), values.end());
    const View head{floats.data(), Dtype::f32, 1, cache.head_dim, cache.head_dim};
    if (cache.type == TensorType::Q8_0) encode(head, to, cache.row_bytes());
    else std::memcpy(to, floats.data(), floats.size() * sizeof(float));
}

// The keys of tokens [from, to) in one head, or their values, (tokens, d).
std::vector<float> decoded(const KeyCache& cache, int64_t from, int64_t to, int64_t head, bool value) {
    const int64_t d = cache.head_dim;
    std::vector<float> rows(size_t(std::max<int64_t>(0, to - from) * d));
    for (int64_t j = from; j < to; ++j)
        decode_row(cache.type, cache.row(j, head, value), 0, d, rows.data() + (j - from) * d);
    return rows;
}

}  // namespace

void cache_rows(View k, View v, int64_t start, const KeyCache& cache) {
    for (int64_t t = 0; t < k.rows; ++t)
        for (int64_t head = 0; head < cache.kv_heads; ++head)
            for (const bool value : {false, true})
                encode_row(value ? v : k, t, head * cache.head_dim, cache, cache.row(start + t, head, value));
}

// Per row and head: m = max_j s_j,   l = sum_j exp(s_j - m),   o = sum_j exp(s_j - m) v_j;   out = o / l. A call that
// raises m multiplies l and o by exp(m_before - m).
void cached_attention(View q, const KeyCache& cache, const CacheShape& shape, View state, View out) {
    const int64_t d = cache.head_dim;
    for (int64_t head = 0; head < shape.heads; ++head) {
        const int64_t at = head * (d + 2), kv = head / (shape.heads / cache.kv_heads);
        const std::vector<float> keys = decoded(cache, shape.from, shape.to, kv, false);
        const std::vector<float> values = decoded(cache, shape.from, shape.to, kv, true);
        for (int64_t i = 0; i < shape.queries; ++i) {
            std::vector<double> row(size_t(d + 2), 0.0);  // m, l, o
            if (shape.begins) {
                row[0] = shape.sinks ? shape.sinks[head] : -std::numeric_limits<double>::infinity();
                row[1] = shape.sinks ? 1 : 0;
            } else {
                for (int64_t c = 0; c < d + 2; ++c) row[size_t(c)] = load(state, i, at + c);
            }
            for (int64_t j = shape.first_key(i); j < shape.last_key(i); ++j) {
                const float *key = keys.data() + (j - shape.from) * d, *value = values.data() + (j - shape.from) * d;
                double score = 0;
                for (int64_t c = 0; c < d; ++c) score += load(q, i, head * d + c) * double(key[c]);
                score *= double(shape.scale);
                if (shape.softcap > 0) score = shape.softcap * std::tanh(score / shape.softcap);
                const double top = std::max(row[0], score), shrink = std::exp(row[0] - top);
                const double weight = std::exp(score - top);
                row[0] = top;
                row[1] = row[1] * shrink + weight;
                for (int64_t c = 0; c < d; ++c)
                    row[size_t(c + 2)] = row[size_t(c + 2)] * shrink + weight * double(value[c]);
            }
            if (!shape.ends)
                for (int64_t c = 0; c < d + 2; ++c) store(state, i, at + c, row[size_t(c)]);
            else
                for (int64_t c = 0; c < d; ++c) store(out, i, head * d + c, row[size_t(c + 2)] / row[1]);
        }
    }
}

// out_a = sum_b (-1)^popcount(a & b) x_b / sqrt(size), for each group of `size` columns.
void hadamard(View x, int64_t size) {
    for (int64_t t = 0; t < x.rows; ++t)
        for (int64_t first = 0; first < x.cols; first += size) {
            std::vector<double> sums(size_t(size), 0.0);
            for (int64_t a = 0; a < size; ++a)
                for (int64_t b = 0; b < size; ++b)
                    sums[size_t(a)] += (__builtin_popcountll(uint64_t(a & b)) % 2 ? -1 : 1) * load(x, t, first + b);
            for (int64_t a = 0; a < size; ++a) store(x, t, first + a, sums[size_t(a)] / std::sqrt(double(size)));
        }
}

}  // namespace fb::reference
