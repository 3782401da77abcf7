#include <cmath>
#include <vector>

#include "reference/reference.h"

namespace fb::reference {
namespace {

using State = std::vector<double>;  // (Dk, Dv)

// One V head in one sequence: its rows and columns, and the formulas of ops.def for one token.
struct Head {
    View q, k, v, decay, beta;
    int64_t first, last, k_dim, v_dim, k_col, v_col, head;

    double gain(int64_t t) const { return std::exp(load(decay, t, head)); }
    double key(int64_t t, int64_t i) const { return load(k, t, k_col + i); }
    double query(int64_t t, int64_t i) const { return load(q, t, k_col + i); }

    // v - P^T k with P = gain * s
    std::vector<double> missing(int64_t t, const State& s) const {
        std::vector<double> w(size_t(v_dim), 0.0);
        for (int64_t j = 0; j < v_dim; ++j) {
            double m = 0;
            for (int64_t i = 0; i < k_dim; ++i) m += gain(t) * s[size_t(i * v_dim + j)] * key(t, i);
            w[size_t(j)] = load(v, t, v_col + j) - m;
        }
        return w;
    }

    State next(int64_t t, const State& s) const {
        const std::vector<double> w = missing(t, s);
        State out(s.size());
        for (int64_t i = 0; i < k_dim; ++i)
            for (int64_t j = 0; j < v_dim; ++j) {
                const size_t at = size_t(i * v_dim + j);
                out[at] = gain(t) * s[at] + key(t, i) * load(beta, t, head) * w[size_t(j)];
            }
        return out;
    }
};

// body(head, start, s): each V head in each sequence s, with its first state; the sequences in order, or from the last.
template <class Body>
void for_heads(View q, View k, View v, View decay, View beta, const DeltaShape& shape, const View& before,
               bool reversed, const Body& body) {
    const int64_t k_dim = q.cols / shape.k_heads, v_dim = v.cols / shape.v_heads;
    for (int64_t head = 0; head < shape.v_heads; ++head)
        for (int64_t n = 0; n < shape.sequences; ++n) {
            const int64_t s = reversed ? shape.sequences - 1 - n : n;
            State start(size_t(k_dim * v_dim), 0.0);
            if (before && s == 0)
                for (size_t i = 0; i < start.size(); ++i) start[i] = load(before, head, int64_t(i));
            body(Head{q, k, v, decay, beta, shape.cu[s], shape.cu[s + 1], k_dim, v_dim, shape.k_head(head) * k_dim,
                      head * v_dim, head},
                 start, s);
        }
}

void put_state(const View& out, int64_t head, const State& s) {
    if (!out) return;
    for (size_t i = 0; i < s.size(); ++i) store(out, head, int64_t(i), s[i]);
}

}  // namespace

void delta_rule(View q, View k, View v, View decay, View beta, const DeltaShape& shape, View before, View y,
                View after) {
    for_heads(q, k, v, decay, beta, shape, before, false, [&](const Head& at, State state, int64_t s) {
        for (int64_t t = at.first; t < at.last; ++t) {
            state = at.next(t, state);
            if (!y) continue;
            for (int64_t j = 0; j < at.v_dim; ++j) {
                double sum = 0;
                for (int64_t i = 0; i < at.k_dim; ++i) sum += state[size_t(i * at.v_dim + j)] * at.query(t, i);
                store(y, t, at.v_col + j, sum);
            }
        }
        if (s + 1 == shape.sequences) put_state(after, at.head, state);
    });
}

// Forward: P = g S, g = e^decay;  w = v - P^T k;  d = beta w;  S' = P + k d^T;  y = S'^T q.  From dS' and dy:
//   dS' += q dy^T;   dq = S' dy;   dd = dS'^T k;   dk = dS' d;   dbeta = dd . w;   dv = beta dd
//   dm = -beta dd (m = P^T k);   dk += P dm;   dP = dS' + k dm^T;   ddecay = <dP, P>;   dS = g dP
void delta_rule_backward(View dy, View q, View k, View v, View decay, View beta, const DeltaShape& shape, View before,
                         View dafter, View dq, View dk, View dv, View ddecay, View dbeta, View dbefore) {
    std::vector<double> dq_sum(size_t(q.rows * q.cols)), dk_sum(dq_sum.size());
    for_heads(q, k, v, decay, beta, shape, before, true, [&](const Head& at, const State& start, int64_t s) {
        const int64_t rows = at.k_dim, cols = at.v_dim;
        std::vector<State> states{start};
        for (int64_t t = at.first; t < at.last; ++t) states.push_back(at.next(t, states.back()));
        State ds(start.size(), 0.0);
        if (dafter && s + 1 == shape.sequences)
            for (size_t i = 0; i < ds.size(); ++i) ds[i] = load(dafter, at.head, int64_t(i));
        for (int64_t t = at.last - 1; t >= at.first; --t) {
            const State &old = states[size_t(t - at.first)], &fresh = states[size_t(t - at.first + 1)];
            const std::vector<double> w = at.missing(t, old);
            const double g = at.gain(t), b = load(beta, t, at.head);
            std::vector<double> dd(size_t(cols), 0.0);
            for (int64_t i = 0; i < rows; ++i)
                for (int64_t j = 0; j < cols; ++j) {
                    const size_t cell = size_t(i * cols + j);
                    const double out = load(dy, t, at.v_col + j);
                    ds[cell] += at.query(t, i) * out;
                    dq_sum[size_t(t * q.cols + at.k_col + i)] += fresh[cell] * out;
                    dd[size_t(j)] += ds[cell] * at.key(t, i);
                }
            double of_beta = 0, of_decay = 0;
            for (int64_t j = 0; j < cols; ++j) {
                of_beta += dd[size_t(j)] * w[size_t(j)];
                store(dv, t, at.v_col + j, b * dd[size_t(j)]);
            }
            for (int64_t i = 0; i < rows; ++i)
                for (int64_t j = 0; j < cols; ++j) {
                    const size_t cell = size_t(i * cols + j);
                    const double dm = -b * dd[size_t(j)], p = g * old[cell];
                    dk_sum[size_t(t * k.cols + at.k_col + i)] += ds[cell] * b * w[size_t(j)] + p * dm;
                    const double dp = ds[cell] + at.key(t, i) * dm;
                    of_decay += dp * p;
                    ds[cell] = g * dp;
                }
            store(dbeta, t, at.head, of_beta);
            store(ddecay, t, at.head, of_decay);
        }
        if (s == 0) put_state(dbefore, at.head, ds);
    });
    for (int64_t t = 0; t < q.rows; ++t)
        for (int64_t c = 0; c < q.cols; ++c) {
            store(dq, t, c, dq_sum[size_t(t * q.cols + c)]);
            store(dk, t, c, dk_sum[size_t(t * q.cols + c)]);
        }
}

}  // namespace fb::reference
