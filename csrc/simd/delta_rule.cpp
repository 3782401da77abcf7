// The gated delta rule in chunks of a sequence: within a chunk, everything is a product of small matrices, and the
// state is read and written once. See docs/derivations/delta_net.md.
#include <cmath>

#include "simd/micro.h"
#include "simd/rows.h"
#include "simd/table.h"
#include "simd/transpose.h"

namespace fb::FB_ISA {
namespace {

constexpr int64_t kChunk = 32;  // tokens, a multiple of the lanes: more need more products among tokens, fewer read the
                                // state more often

int64_t padded(int64_t n) { return round_up(n, kLanes); }
int64_t chunks(int64_t tokens) { return (tokens + kChunk - 1) / kChunk; }

int64_t longest_sequence(const DeltaShape& shape) {
    int64_t most = 0;
    for (int64_t s = 0; s < shape.sequences; s++) most = std::max<int64_t>(most, shape.cu[s + 1] - shape.cu[s]);
    return most;
}

class Carver {
public:
    explicit Carver(float* memory) : next_(memory) {}
    float* take(int64_t floats) {
        float* p = next_;
        next_ += round_up(floats, 16);
        used_ += round_up(floats, 16);
        return p;
    }
    int64_t used() const { return used_; }

private:
    float* next_;
    int64_t used_ = 0;
};

// The sizes of a head. Rows of a state (Dk, width) and of V are padded with zeros to whole vectors.
struct Sizes {
    int64_t k_dim, v_dim, width;

    Sizes(int64_t k_dim, int64_t v_dim) : k_dim(k_dim), v_dim(v_dim), width(padded(v_dim)) {}
    int64_t state() const { return k_dim * width; }
};

struct Inputs : Sizes {
    View q, k, v, decay, beta;
    const DeltaShape& shape;

    Inputs(View q, View k, View v, View decay, View beta, const DeltaShape& shape)
        : Sizes(q.cols / shape.k_heads, v.cols / shape.v_heads),
          q(q),
          k(k),
          v(v),
          decay(decay),
          beta(beta),
          shape(shape) {}
};

// The rows [first, first + n) of a V head, and the memory for what the forward formulas need.
struct Chunk {
    const Inputs& in;
    int64_t head, first, n, lanes;  // lanes: n, padded
    Rows<float> q, k;               // (n, Dk)
    float beta[kChunk];
    float start[kChunk] = {};        // the decay from the chunk's start to a token: gamma_t
    float stop[kChunk] = {};         // the decay from a token to the chunk's end: gamma_n / gamma_t
    float between[kChunk * kChunk];  // (n, lanes): the decay from token s to token t, gamma_t / gamma_s; 0 for s > t

    Chunk(const Inputs& in, int64_t head, int64_t first, int64_t n)
        : in(in), head(head), first(first), n(n), lanes(padded(n)) {
        const int64_t column = in.shape.k_head(head) * in.k_dim;
        q = {in.q.row<float>(first) + column, in.q.ld};
        k = {in.k.row<float>(first) + column, in.k.ld};
        double sums[kChunk], sum = 0;  // of decays: in double, so that their differences are exact enough
        for (int64_t t = 0; t < n; t++) {
            beta[t] = in.beta.row<float>(first + t)[head];
            sums[t] = sum += double(in.decay.row<float>(first + t)[head]);
            start[t] = float(sum);
        }
        for (int64_t t = 0; t < n; t++) {
            float* row = between + t * lanes;
            for (int64_t s = 0; s < lanes; s++) row[s] = s <= t ? float(sums[t] - sums[s]) : -INFINITY;
            for (int64_t s = 0; s < lanes; s += kLanes) store(row + s, exp(load(row + s)));
            stop[t] = float(sum - sums[t]);
        }
        for_lanes(n, [&](auto get, auto put) {
            put(start, exp(get(start)));
            put(stop, exp(get(stop)));
        });
    }

    float whole() const { return start[n - 1]; }
    const float* value(int64_t t) const { return in.v.row<float>(first + t) + head * in.v_dim; }
};

// out (cols, lanes) = rows (n, cols) transposed; zeros beyond n.
void transposed(const float* rows, int64_t stride, int64_t n, int64_t cols, int64_t lanes, float* out) {
    for (int64_t i = 0; i < lanes; i += kLanes)
        for (int64_t c = 0; c < cols; c += kLanes) {
            const int64_t live = std::min<int64_t>(kLanes, cols - c);
            Vec block[kLanes];
            for (int64_t r = 0; r < kLanes; r++) {
                const float* from = rows + (i + r) * stride + c;
                block[r] = i + r >= n ? Vec{} : live == kLanes ? load(from) : load_part(from, live);
            }
            transpose(block);
            for (int64_t r = 0; r < live; r++) store(out + (c + r) * lanes + i, block[r]);
        }
}

// Adds (or writes) the columns of a (cols, lanes) to n rows (n, cols).
void put_columns(const float* columns, int64_t lanes, int64_t n, int64_t cols, float* rows, int64_t stride, bool add) {
    for (int64_t i = 0; i < n; i += kLanes)
        for (int64_t c = 0; c < cols; c += kLanes) {
            const int64_t live = std::min<int64_t>(kLanes, cols - c);
            Vec block[kLanes];
            for (int64_t r = 0; r < kLanes; r++) block[r] = r < live ? load(columns + (c + r) * lanes + i) : Vec{};
            transpose(block);
            for (int64_t r = 0; r < std::min<int64_t>(kLanes, n - i); r++) {
                float* to = rows + (i + r) * stride + c;
                if (live == kLanes) store(to, add ? load(to) + block[r] : block[r]);
                else store_part(to, live, add ? load_part(to, live) + block[r] : block[r]);
            }
        }
}

void scale(float* x, float factor, int64_t n) {  // n: whole vectors
    for (int64_t i = 0; i < n; i += kLanes) store(x + i, load(x + i) * factor);
}

float dot(const float* x, const float* y, int64_t n) {
    Vec total{};
    for_lanes(n, [&](auto get, auto) { total += get(x) * get(y); });
    return sum(total);
}

// x[t] += sum over s < t of a[t][s] y[s], for t in order; or, reversed, += sum over t' > t of a[t'][t] y[t'] from the
// last on. `finish(t)` makes y[t] from the sum x[t]. x, y (n, width); a (n, lanes).
template <class Finish>
void substitute(int64_t n, int64_t width, const float* a, int64_t lanes, bool reversed, const float* y, float* x,
                const Finish& finish) {
    for (int64_t step = 0; step < n; step++) {
        const int64_t t = reversed ? n - 1 - step : step;
        for (int64_t j = 0; j < width; j += 4 * kLanes) {
            const int vectors = int(std::min<int64_t>(4 * kLanes, width - j) / kLanes);
            with_count<4>(vectors, [&](auto count) {
                Vec total[count()];
                for (int c = 0; c < count(); c++) total[c] = load(x + t * width + j + c * kLanes);
                for (int64_t other = 0; other < step; other++) {
                    const int64_t s = reversed ? n - 1 - other : other;
                    const Vec factor = splat(reversed ? a[s * lanes + t] : a[t * lanes + s]);
                    for (int c = 0; c < count(); c++) total[c] += factor * load(y + s * width + j + c * kLanes);
                }
                for (int c = 0; c < count(); c++) store(x + t * width + j + c * kLanes, total[c]);
            });
        }
        finish(t);
    }
}

// Calls body(row, vector, sums) for each vector of a tile.
template <int M, int N, class Body>
FB_INLINE void each_vector(const TileSums<M, N>& sums, const Body& body) {
    for (int r = 0; r < M; r++)
        for (int c = 0; c < N; c++) body(r, c, sums.acc[r][c]);
}

// a (n, lanes) = gamma_t / gamma_s x_t . k_s for s <= t (s < t if `strict`), else 0. other (Dk, lanes): k transposed.
void decayed_products(const Chunk& at, Rows<float> x, const float* k_columns, bool strict, float* a) {
    small_gemm(at.n, at.lanes, at.in.k_dim, x.data, x.stride, 1, k_columns, at.lanes, a, at.lanes, false);
    for (int64_t i = 0; i < at.n * at.lanes; i += kLanes) store(a + i, load(a + i) * load(at.between + i));
    if (strict)
        for (int64_t t = 0; t < at.n; t++) a[t * at.lanes + t] = 0;
}

// next (Dk, width) = gamma_n state + sum over t of x_t y_t^T, for x (n, Dk) and y (n, width). next may be state.
void add_to_decayed(const Chunk& at, Rows<float> x, const float* y, const float* state, float* next) {
    const int64_t width = at.in.width;
    const float whole = at.whole();
    small_products(at.in.k_dim, width, at.n, x.data, 1, x.stride, y, width,
                   [&](const auto& sums, int64_t i, int64_t j) {
                       each_vector(sums, [&](int r, int c, Vec total) {
                           const int64_t cell = (i + r) * width + j + c * kLanes;
                           store(next + cell, load(state + cell) * whole + total);
                       });
                   });
}

// The memory of a forward pass through a chunk.
struct Forward {
    float *k_columns, *within, *products, *w, *d;  // (Dk, lanes), (n, lanes) twice, (n, width) twice

    Forward(Carver& carver, const Sizes& in) {
        k_columns = carver.take(in.k_dim * kChunk);
        within = carver.take(kChunk * kChunk);
        products = carver.take(kChunk * kChunk);
        w = carver.take(kChunk * in.width);
        d = carver.take(kChunk * in.width);
    }

    // w_t = v_t - gamma_t S^T k_t - sum over s < t of gamma_t / gamma_s (k_t . k_s) d_s,   d_t = beta_t w_t
    void solve(const Chunk& at, const float* state) const {
        const int64_t width = at.in.width;
        transposed(at.k.data, at.k.stride, at.n, at.in.k_dim, at.lanes, k_columns);
        decayed_products(at, at.k, k_columns, true, within);
        for (int64_t i = 0; i < at.n * at.lanes; i += kLanes) store(within + i, -load(within + i));
        small_gemm(at.n, width, at.in.k_dim, at.k.data, at.k.stride, 1, state, width, w, width, false);
        for (int64_t t = 0; t < at.n; t++) {
            float* row = w + t * width;
            scale(row, -at.start[t], width);
            for_lanes(at.in.v_dim, [&](auto get, auto put) { put(row, get(row) + get(at.value(t))); });
        }
        substitute(at.n, width, within, at.lanes, false, d, w, [&](int64_t t) {
            for (int64_t j = 0; j < width; j += kLanes) store(d + t * width + j, load(w + t * width + j) * at.beta[t]);
        });
    }

    // y_t = gamma_t S^T q_t + sum over s <= t of gamma_t / gamma_s (q_t . k_s) d_s, (n, width) in `out`
    void read(const Chunk& at, const float* state, float* out) const {
        const int64_t width = at.in.width;
        decayed_products(at, at.q, k_columns, false, products);
        small_gemm(at.n, width, at.in.k_dim, at.q.data, at.q.stride, 1, state, width, out, width, false);
        for (int64_t t = 0; t < at.n; t++) scale(out + t * width, at.start[t], width);
        for (int64_t t = 0; t < at.n; t += kTileRows) {
            const int64_t rows = std::min<int64_t>(kTileRows, at.n - t);
            small_gemm(rows, width, t + rows, products + t * at.lanes, at.lanes, 1, d, width, out + t * width, width,
                       true);
        }
    }

    // S becomes gamma_n S + sum over s of gamma_n / gamma_s k_s d_s^T, in `next`. Scales d.
    void advance(const Chunk& at, const float* state, float* next) const {
        const int64_t width = at.in.width;
        for (int64_t t = 0; t < at.n; t++) scale(d + t * width, at.stop[t], width);
        add_to_decayed(at, at.k, d, state, next);
    }
};

void get_state(const Inputs& in, const View& from, int64_t head, float* state) {
    for (int64_t i = 0; i < in.state(); i += kLanes) store(state + i, Vec{});
    if (!from) return;
    for (int64_t i = 0; i < in.k_dim; i++) {
        const float* row = from.row<float>(head) + i * in.v_dim;
        for_lanes(in.v_dim, [&](auto get, auto put) { put(state + i * in.width, get(row)); });
    }
}

void put_state(const Inputs& in, const float* state, const View& to, int64_t head) {
    for (int64_t i = 0; i < in.k_dim; i++) {
        float* row = to.row<float>(head) + i * in.v_dim;
        for_lanes(in.v_dim, [&](auto get, auto put) { put(row, get(state + i * in.width)); });
    }
}

// Calls body(head) for every V head. One thread computes all V heads that read the same K head.
template <class Body>
void for_heads(const DeltaShape& shape, const Body& body) {
    const int64_t ratio = shape.v_heads / shape.k_heads;
    parallel_for(shape.k_heads, [&](int64_t k_head) {
        for (int64_t r = 0; r < ratio; r++) body(shape.tiled ? r * shape.k_heads + k_head : k_head * ratio + r, r == 0);
    });
}

struct ForwardMemory {
    float *state, *y;
    Forward forward;

    ForwardMemory(Carver& carver, const Sizes& in)
        : state(carver.take(in.state())), y(carver.take(kChunk * in.width)), forward(carver, in) {}
};

// The memory of a backward pass through a sequence, and the pass itself.
struct Backward {
    const int64_t width;
    float *states, *w, *ds;  // (chunks, Dk, width): the state before each chunk; (tokens, width); (Dk, width)
    Forward forward;
    float *q_columns, *dq, *dk, *of_e;              // (Dk, lanes)
    float* columns;                                 // (Dv, lanes)
    float *dy, *d, *e;                              // (n, width)
    float *of_k, *of_q, *d_of_k, *d_of_q, *turned;  // (n, lanes)

    Backward(Carver& carver, const Sizes& in, int64_t longest)
        : width(in.width),
          states(carver.take(chunks(longest) * in.state())),
          w(carver.take(longest * in.width)),
          ds(carver.take(in.state())),
          forward(carver, in) {
        for (float** each : {&q_columns, &dq, &dk, &of_e}) *each = carver.take(in.k_dim * kChunk);
        columns = carver.take(in.v_dim * kChunk);
        for (float** each : {&dy, &d, &e}) *each = carver.take(kChunk * width);
        for (float** each : {&of_k, &of_q, &d_of_k, &d_of_q, &turned}) *each = carver.take(kChunk * kChunk);
    }

    // Computes the states before all chunks but the first, and w of all tokens, of the sequence [first, last).
    void prepare(const Inputs& in, int64_t head, int64_t first, int64_t last) const {
        for (int64_t c = 0, t = first; t < last; c++, t += kChunk) {
            const Chunk at(in, head, t, std::min(kChunk, last - t));
            float* state = states + c * in.state();
            Forward into = forward;
            into.w = w + (t - first) * width;
            into.solve(at, state);
            if (t + at.n < last) into.advance(at, state, state + in.state());
        }
    }

    // The gradients of a chunk, with the state before it and its w. ds: dS after the chunk becomes dS before it.
    void chunk(const Chunk& at, const float* state, const float* w, const View& dy_, bool add, const View& dq_,
               const View& dk_, const View& dv, float* ddecay, float* dbeta) const {
        const Inputs& in = at.in;
        const int64_t n = at.n, lanes = at.lanes, k_dim = in.k_dim, v_dim = in.v_dim;
        float* k_columns = forward.k_columns;
        transposed(at.k.data, at.k.stride, n, k_dim, lanes, k_columns);
        transposed(at.q.data, at.q.stride, n, k_dim, lanes, q_columns);
        decayed_products(at, at.k, k_columns, true, of_k);
        decayed_products(at, at.q, k_columns, false, of_q);
        for (int64_t t = 0; t < n; t++) {
            for (int64_t j = 0; j < width; j += kLanes) {
                store(dy + t * width + j, Vec{});
                store(d + t * width + j, load(w + t * width + j) * at.beta[t]);
            }
            const float* from = dy_.row<float>(at.first + t) + at.head * v_dim;
            for_lanes(v_dim, [&](auto get, auto put) { put(dy + t * width, get(from)); });
        }
        double moved[kChunk] = {}, all = 0;  // d log gamma_t
        // dd_s = gamma_n / gamma_s dS^T k_s + sum over t >= s of of_q[t][s] dy_t - sum over t > s of beta_t of_k[t][s]
        // dd_t
        float* dd = forward.w;
        small_gemm(n, width, k_dim, at.k.data, at.k.stride, 1, ds, width, dd, width, false);
        for (int64_t s = 0; s < n; s++) {
            scale(dd + s * width, at.stop[s], width);
            const double pulled = double(dot(dd + s * width, d + s * width, width));
            moved[s] -= pulled;
            all += pulled;
        }
        for (int64_t s = 0; s < n; s += kTileRows)
            small_gemm(std::min<int64_t>(kTileRows, n - s), width, n - s, of_q + s * lanes + s, 1, lanes,
                       dy + s * width, width, dd + s * width, width, true);
        substitute(n, width, of_k, lanes, true, e, dd, [&](int64_t t) {  // e_t = -beta_t dd_t, the gradient of P^T k
            for (int64_t j = 0; j < width; j += kLanes)
                store(e + t * width + j, load(dd + t * width + j) * -at.beta[t]);
        });
        for (int64_t t = 0; t < n; t++) {
            dbeta[t] = dot(dd + t * width, w + t * width, width);
            float* to = dv.row<float>(at.first + t) + at.head * v_dim;
            for_lanes(v_dim, [&](auto get, auto put) { put(to, -get(e + t * width)); });
        }
        // Products among tokens: d of_q[t][s] = dy_t . d_s,  d of_k[t][s] = e_t . d_s
        transposed(d, width, n, v_dim, lanes, columns);
        small_gemm(n, lanes, v_dim, dy, width, 1, columns, lanes, d_of_q, lanes, false);
        small_gemm(n, lanes, v_dim, e, width, 1, columns, lanes, d_of_k, lanes, false);
        float moves[kChunk] = {};
        for (int64_t t = 0; t < n; t++) {
            Vec row{};
            for (int64_t s = 0; s < lanes; s += kLanes) {
                const int64_t cell = t * lanes + s;
                const Vec both = load(d_of_q + cell) * load(of_q + cell) + load(d_of_k + cell) * load(of_k + cell);
                row += both;
                store(moves + s, load(moves + s) - both);
                store(d_of_q + cell, load(d_of_q + cell) * load(at.between + cell));
                store(d_of_k + cell, load(d_of_k + cell) * load(at.between + cell));
            }
            moved[t] += double(sum(row));
            d_of_k[t * lanes + t] = 0;
        }
        // dk_t = gamma_n / gamma_t dS d_t + gamma_t S e_t + ...,   dq_t = gamma_t S dy_t + ..., as columns
        columns_of(at.stop, ds, in, lanes, columns, dk);
        transposed(dy, width, n, v_dim, lanes, columns);
        columns_of(at.start, state, in, lanes, columns, dq);
        add_column_dots(k_dim, lanes, q_columns, dq, moves);
        transposed(e, width, n, v_dim, lanes, columns);
        columns_of(at.start, state, in, lanes, columns, of_e);
        add_column_dots(k_dim, lanes, k_columns, of_e, moves);
        for (int64_t i = 0; i < k_dim * lanes; i += kLanes) store(dk + i, load(dk + i) + load(of_e + i));
        // ... dq_t += sum over s of d_of_q[t][s] k_s;   dk_t += sum over s of (d_of_k[t][s] + d_of_k[s][t]) k_s
        //                                                    + d_of_q[s][t] q_s
        transposed(d_of_q, lanes, n, n, lanes, turned);
        small_gemm(k_dim, lanes, n, at.k.data, 1, at.k.stride, turned, lanes, dq, lanes, true);
        transposed(d_of_k, lanes, n, n, lanes, turned);
        for (int64_t i = 0; i < n * lanes; i += kLanes) store(turned + i, load(turned + i) + load(d_of_k + i));
        small_gemm(k_dim, lanes, n, at.k.data, 1, at.k.stride, turned, lanes, dk, lanes, true);
        small_gemm(k_dim, lanes, n, at.q.data, 1, at.q.stride, d_of_q, lanes, dk, lanes, true);
        const int64_t column = in.shape.k_head(at.head) * k_dim;
        put_columns(dq, lanes, n, k_dim, dq_.row<float>(at.first) + column, dq_.ld, add);
        put_columns(dk, lanes, n, k_dim, dk_.row<float>(at.first) + column, dk_.ld, add);
        // dS = gamma_n dS + sum over t of gamma_t (q_t dy_t^T + k_t e_t^T)
        all += double(at.whole()) * double(dot(state, ds, in.state()));
        for (int64_t t = 0; t < n; t++) {
            scale(dy + t * width, at.start[t], width);
            scale(e + t * width, at.start[t], width);
        }
        add_to_decayed(at, at.q, dy, ds, ds);
        small_gemm(k_dim, width, n, at.k.data, 1, at.k.stride, e, width, ds, width, true);
        // gamma_t is the product of the decays up to token t
        double sum = all;
        for (int64_t t = n - 1; t >= 0; t--) ddecay[t] = float(sum += moved[t] + double(moves[t]));
    }

private:
    // out (Dk, lanes) = factors (lanes), a column each, times rows (Dk, width) columns (Dv, lanes).
    static void columns_of(const float* factors, const float* rows, const Sizes& in, int64_t lanes,
                           const float* columns, float* out) {
        small_products(in.k_dim, lanes, in.v_dim, rows, in.width, 1, columns, lanes,
                       [&](const auto& sums, int64_t i, int64_t j) {
                           each_vector(sums, [&](int r, int c, Vec total) {
                               const int64_t column = j + c * kLanes;
                               store(out + (i + r) * lanes + column, total * load(factors + column));
                           });
                       });
    }

    // out (lanes) += the dot products of the columns of x and y (rows, lanes)
    static void add_column_dots(int64_t rows, int64_t lanes, const float* x, const float* y, float* out) {
        for (int64_t j = 0; j < lanes; j += kLanes) {
            Vec total{};
            for (int64_t i = 0; i < rows; i++) total += load(x + i * lanes + j) * load(y + i * lanes + j);
            store(out + j, load(out + j) + total);
        }
    }
};

// Scratch for memory of this kind, in floats.
template <class Memory, class... More>
int64_t floats_for(const Sizes& sizes, More... more) {
    Carver carver(nullptr);
    Memory(carver, sizes, more...);
    return carver.used();
}

}  // namespace

Cost delta_rule_cost(const DeltaShape& shape, int64_t k_dim, int64_t v_dim) {
    return {delta_flops(shape, k_dim, v_dim, kDeltaProducts), 4 * floats_for<ForwardMemory>(Sizes(k_dim, v_dim))};
}

Cost delta_rule_backward_cost(const DeltaShape& shape, int64_t k_dim, int64_t v_dim) {
    return {delta_flops(shape, k_dim, v_dim, kDeltaBackwardProducts),
            4 * floats_for<Backward>(Sizes(k_dim, v_dim), longest_sequence(shape))};
}

void delta_rule(View q, View k, View v, View decay, View beta, const DeltaShape& shape, View before, View y,
                View after) {
    const Inputs in(q, k, v, decay, beta, shape);
    const int64_t scratch = delta_rule_cost(shape, in.k_dim, in.v_dim).scratch_bytes;
    for_heads(shape, [&](int64_t head, bool) {
        Carver carver(static_cast<float*>(thread_scratch(size_t(scratch))));
        const ForwardMemory memory(carver, in);
        for (int64_t s = 0; s < shape.sequences; s++) {
            get_state(in, s == 0 ? before : View{}, head, memory.state);
            for (int64_t t = shape.cu[s]; t < shape.cu[s + 1]; t += kChunk) {
                const Chunk at(in, head, t, std::min<int64_t>(kChunk, shape.cu[s + 1] - t));
                memory.forward.solve(at, memory.state);
                if (y) {
                    memory.forward.read(at, memory.state, memory.y);
                    for (int64_t i = 0; i < at.n; i++) {
                        float* to = y.row<float>(t + i) + head * in.v_dim;
                        for_lanes(in.v_dim, [&](auto get, auto put) { put(to, get(memory.y + i * in.width)); });
                    }
                }
                if (after || t + at.n < shape.cu[s + 1]) memory.forward.advance(at, memory.state, memory.state);
            }
        }
        if (after) put_state(in, memory.state, after, head);
    });
}

void delta_rule_backward(View dy, View q, View k, View v, View decay, View beta, const DeltaShape& shape, View before,
                         View dafter, View dq, View dk, View dv, View ddecay, View dbeta, View dbefore) {
    const Inputs in(q, k, v, decay, beta, shape);
    const int64_t longest = longest_sequence(shape);
    const int64_t scratch = delta_rule_backward_cost(shape, in.k_dim, in.v_dim).scratch_bytes;
    for_heads(shape, [&](int64_t head, bool first_of_k_head) {
        Carver carver(static_cast<float*>(thread_scratch(size_t(scratch))));
        const Backward memory(carver, in, longest);
        for (int64_t s = shape.sequences - 1; s >= 0; s--) {
            const int64_t first = shape.cu[s], last = shape.cu[s + 1];
            get_state(in, s + 1 == shape.sequences ? dafter : View{}, head, memory.ds);
            if (last > first) {
                get_state(in, s == 0 ? before : View{}, head, memory.states);
                memory.prepare(in, head, first, last);
            }
            for (int64_t c = chunks(last - first) - 1; c >= 0; c--) {
                const int64_t t = first + c * kChunk;
                const Chunk at(in, head, t, std::min(kChunk, last - t));
                float of_decay[kChunk], of_beta[kChunk];
                memory.chunk(at, memory.states + c * in.state(), memory.w + (t - first) * in.width, dy,
                             !first_of_k_head, dq, dk, dv, of_decay, of_beta);
                for (int64_t i = 0; i < at.n; i++) {
                    ddecay.row<float>(t + i)[head] = of_decay[i];
                    dbeta.row<float>(t + i)[head] = of_beta[i];
                }
            }
            if (s == 0 && dbefore) put_state(in, memory.ds, dbefore, head);
        }
    });
}

}  // namespace fb::FB_ISA
