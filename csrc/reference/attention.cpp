#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/reference.h"

namespace fb::reference {

namespace {

// The key rows that query row `query` of sequence s sees: the last query of s sees all keys, the one before it all but
// the last, and so on. A window keeps only the newest of them. Before them come all keys of its prefix. Attention that
// is not causal sees all keys of the sequence.
std::vector<int64_t> visible(const AttentionShape& shape, int64_t s, int64_t query) {
    const int64_t after = shape.cu_q[s + 1] - 1 - query;  // number of queries after this one
    const int64_t end = shape.cu_k[s + 1] - (shape.window == kBothWays ? 0 : after);
    int64_t begin = shape.cu_k[s];
    if (shape.window > 0) begin = std::max(begin, end - shape.window);
    std::vector<int64_t> keys;
    if (shape.prefix && shape.prefix[s] >= 0)
        for (int64_t j = shape.cu_k[shape.prefix[s]]; j < shape.cu_k[shape.prefix[s] + 1]; ++j) keys.push_back(j);
    for (int64_t j = begin; j < end; ++j) keys.push_back(j);
    return keys;
}

int64_t key_head(const AttentionShape& shape, int64_t head) { return head / (shape.heads / shape.kv_heads); }

// Dot product of head `a_head` of row i of a and head `b_head` of row j of b.
double dot(const View& a, int64_t i, int64_t a_head, const View& b, int64_t j, int64_t b_head, int64_t d) {
    double sum = 0;
    for (int64_t c = 0; c < d; ++c) sum += load(a, i, a_head * d + c) * load(b, j, b_head * d + c);
    return sum;
}

double score(const View& q, int64_t i, int64_t head, const View& k, int64_t j, const AttentionShape& shape) {
    const double s = double(shape.scale) * dot(q, i, head, k, j, key_head(shape, head), shape.head_dim);
    return shape.softcap > 0 ? shape.softcap * std::tanh(s / shape.softcap) : s;
}

// Returns d score / d (scale * q . k), given the score.
double score_slope(double score, const AttentionShape& shape) {
    return shape.softcap > 0 ? 1 - score / shape.softcap * (score / shape.softcap) : 1;
}

}  // namespace

// out_i = sum_j p_ij v_j,   p_ij = exp(s_ij - lse_i),   s_ij = scale * q_i . k_j,   lse_i = log sum_j exp(s_ij)
// With a soft cap, s_ij = cap tanh(scale * q_i . k_j / cap). With a sink z of the head, lse_i = log(e^z + sum_j ...).
void attention(View q, View k, View v, const AttentionShape& shape, View out, View lse, View p) {
    const int64_t d = shape.head_dim;
    for (int64_t s = 0; s < shape.sequences; ++s) {
        for (int64_t i = shape.cu_q[s]; i < shape.cu_q[s + 1]; ++i) {
            const std::vector<int64_t> keys = visible(shape, s, i);
            for (int64_t head = 0; head < shape.heads; ++head) {
                std::vector<double> scores;
                const bool sinks = shape.sinks != nullptr;
                const double sink = sinks ? shape.sinks[head] : -std::numeric_limits<double>::infinity();
                double top = sink;
                for (const int64_t j : keys) {
                    scores.push_back(score(q, i, head, k, j, shape));
                    top = std::max(top, scores.back());
                }
                double sum = sinks ? std::exp(sink - top) : 0;
                std::vector<double> row(size_t(d), 0.0);
                for (size_t n = 0; n < keys.size(); ++n) {
                    const double weight = std::exp(scores[n] - top);
                    sum += weight;
                    for (int64_t c = 0; c < d; ++c)
                        row[size_t(c)] += weight * load(v, keys[n], key_head(shape, head) * d + c);
                }
                for (int64_t c = 0; c < d; ++c) store(out, i, head * d + c, sum > 0 ? row[size_t(c)] / sum : 0);
                if (lse) store(lse, head, i, top + std::log(sum));
                for (size_t n = 0; p && n < keys.size(); ++n)
                    store(p, head * q.rows + i, keys[n], std::exp(scores[n] - top) / sum);
            }
        }
    }
}

// Forward: out_i = sum_j p_ij v_j,   p_ij = exp(s_ij - lse_i),   s_ij = scale * q_i . k_j.   lse_i includes a sink.
//   delta_i = sum_j p_ij (dout_i . v_j), which is dout_i . out_i before out was rounded
//   ds_ij = p_ij * (dout_i . v_j - delta_i), times 1 - (s_ij / cap)^2 with a soft cap
//   dq_i = scale * sum_j ds_ij k_j,   dk_j = scale * sum_i ds_ij q_i,   dv_j = sum_i p_ij dout_i
// with the sums of dk and dv also running over the query heads that share a key head.
void attention_backward(View dout, View q, View k, View v, View out, View lse, View p, const AttentionShape& shape,
                        View delta, View dq, View dk, View dv, bool accumulate) {
    const int64_t d = shape.head_dim;
    std::vector<double> dq_sum(size_t(q.rows * q.cols)), dk_sum(size_t(k.rows * k.cols)), dv_sum(dk_sum.size());
    for (int64_t s = 0; s < shape.sequences; ++s) {
        for (int64_t i = shape.cu_q[s]; i < shape.cu_q[s + 1]; ++i) {
            const std::vector<int64_t> keys = visible(shape, s, i);
            for (int64_t head = 0; head < shape.heads; ++head) {
                const int64_t shared = key_head(shape, head);
                const auto weight_of = [&](int64_t j, double s_ij) {
                    return p ? load(p, head * q.rows + i, j) : std::exp(s_ij - load(lse, head, i));
                };
                double mean = 0;
                if (out.dtype != Dtype::bf16) mean = dot(dout, i, head, out, i, head, d);
                else
                    for (const int64_t j : keys)
                        mean += weight_of(j, score(q, i, head, k, j, shape)) * dot(dout, i, head, v, j, shared, d);
                store(delta, head, i, mean);
                for (const int64_t j : keys) {
                    const double s_ij = score(q, i, head, k, j, shape), weight = weight_of(j, s_ij);
                    const double dp = dot(dout, i, head, v, j, shared, d);
                    const double ds = weight * (dp - mean) * score_slope(s_ij, shape) * double(shape.scale);
                    for (int64_t c = 0; c < d; ++c) {
                        const int64_t q_col = head * d + c, k_col = shared * d + c;
                        dq_sum[size_t(i * q.cols + q_col)] += ds * load(k, j, k_col);
                        dk_sum[size_t(j * k.cols + k_col)] += ds * load(q, i, q_col);
                        dv_sum[size_t(j * k.cols + k_col)] += weight * load(dout, i, q_col);
                    }
                }
            }
        }
    }
    for (int64_t i = 0; i < q.rows; ++i) {
        for (int64_t c = 0; c < q.cols; ++c) store(dq, i, c, dq_sum[size_t(i * q.cols + c)]);
    }
    for (int64_t j = 0; j < k.rows; ++j) {
        for (int64_t c = 0; c < k.cols; ++c) {
            write(dk, j, c, dk_sum[size_t(j * k.cols + c)], accumulate);
            write(dv, j, c, dv_sum[size_t(j * k.cols + c)], accumulate);
        }
    }
}

}  // namespace fb::reference
