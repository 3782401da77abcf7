#include <cmath>

#include "bindings/arrays.h"

namespace fb {
namespace {

// cu starts at 0, never decreases, and ends at the number of rows.
void check_boundaries(const Ints& cu, int64_t rows, const char* name) {
    const size_t n = cu.shape(0);
    if (n < 2 || cu.data()[0] != 0 || cu.data()[n - 1] != rows)
        refuse(std::string(name) + " must run from 0 to " + std::to_string(rows));
    for (size_t i = 1; i < n; i++)
        if (cu.data()[i] < cu.data()[i - 1]) refuse(std::string(name) + " must not decrease");
}

void check_sequences(const Ints& cu_q, int64_t queries, const Ints& cu_k, int64_t keys) {
    check_boundaries(cu_q, queries, "cu_q");
    check_boundaries(cu_k, keys, "cu_k");
    if (cu_k.shape(0) != cu_q.shape(0)) refuse("cu_q and cu_k must hold the same number of sequences");
    for (size_t i = 1; i < cu_q.shape(0); i++)
        if (cu_k.data()[i] - cu_k.data()[i - 1] < cu_q.data()[i] - cu_q.data()[i - 1])
            refuse("a sequence has more queries than keys");
}

// prefix (S,): -1, or the sequence that this one continues. Sequences that continue one follow it without a gap.
const int32_t* check_prefix(const std::optional<Ints>& prefix, const Ints& cu_k, int64_t window) {
    if (!prefix) return nullptr;
    const int64_t sequences = int64_t(cu_k.shape(0)) - 1;
    if (int64_t(prefix->shape(0)) != sequences) refuse("prefix must hold a number for each sequence");
    const int32_t *before = prefix->data(), *cu = cu_k.data();
    for (int64_t i = 0; i < sequences; i++) {
        const int64_t at = before[i];
        if (at < -1 || at >= i || (at >= 0 && at != i - 1 && before[i - 1] != at) || (at >= 0 && before[at] >= 0))
            refuse("prefix must be -1, or the sequence that this one and all between the two continue");
        if (at >= 0 && window == kBothWays) refuse("attention that is not causal has no prefixes");
        if (at >= 0 && window > 0 && int64_t(cu[i + 1]) - cu[i] + cu[at + 1] - cu[at] > window)
            refuse("a sequence with its prefix is longer than the window");
    }
    return before;
}

AttentionShape shape_of(const Ints& cu_q, const Ints& cu_k, int64_t heads, int64_t kv_heads, int64_t head_dim,
                        float scale, int64_t window, float softcap, const std::optional<Ints>& prefix) {
    check_softcap(softcap);
    if (window != kBothWays) window = checked_window(window);
    return {heads,
            kv_heads,
            head_dim,
            scale,
            cu_q.data(),
            cu_k.data(),
            int64_t(cu_q.shape(0)) - 1,
            window,
            softcap,
            check_prefix(prefix, cu_k, window)};
}

AttentionShape attention_shape(const View& q, const View& k, const View& v, int64_t heads, int64_t kv_heads,
                               const Ints& cu_q, const std::optional<Ints>& cu_k_, std::optional<float> scale,
                               int64_t window, float softcap, const std::optional<Ints>& prefix) {
    const Ints& cu_k = cu_k_ ? *cu_k_ : cu_q;
    if (heads <= 0 || kv_heads <= 0 || heads % kv_heads || !q.cols || q.cols % heads)
        refuse("heads must be a multiple of kv_heads and divide q's width");
    const int64_t d = q.cols / heads;
    check_shape(k, k.rows, kv_heads * d, "k");
    check_shape(v, k.rows, kv_heads * d, "v");
    if (k.dtype != q.dtype || v.dtype != q.dtype) refuse("q, k and v must have one type");
    check_sequences(cu_q, q.rows, cu_k, k.rows);
    const float factor = scale ? *scale : 1.0f / std::sqrt(float(d));
    return shape_of(cu_q, cu_k, heads, kv_heads, d, factor, window, softcap, prefix);
}

void check_probabilities(const View& p, const View& q, const View& k, int64_t heads) {
    if (p) check_shape(p, product({heads, q.rows}, "p"), k.rows, "p");
    check_f32(p, "p");
}

void attention(InArray q_, InArray k_, InArray v_, Array out_, std::optional<Array> lse_, int64_t heads,
               int64_t kv_heads, Ints cu_q, std::optional<Ints> cu_k, std::optional<float> scale, int64_t window,
               std::optional<Array> p_, float softcap, std::optional<Ints> prefix, std::optional<InFloats> sinks) {
    const View q = view(q_, "q"), k = view(k_, "k"), v = view(v_, "v"), out = view(out_, "out"),
               lse = view(lse_, "lse");
    const View p = view(p_, "p");
    AttentionShape shape = attention_shape(q, k, v, heads, kv_heads, cu_q, cu_k, scale, window, softcap, prefix);
    check_shape(out, q.rows, q.cols, "out");
    check_shape(lse, heads, q.rows, "lse");
    check_f32(lse, "lse");
    check_probabilities(p, q, k, heads);
    if (sinks) check_length(int64_t(sinks->shape(0)), heads, "sinks");
    shape.sinks = sinks ? sinks->data() : nullptr;
    nb::gil_scoped_release release;
    const Timed timed("attention", ops().attention_cost(shape, lse || p).flops);
    ops().attention(q, k, v, shape, out, lse, p);
}

void attention_backward(InArray dout_, InArray q_, InArray k_, InArray v_, InArray out_, InArray lse_, Array delta_,
                        Array dq_, Array dk_, Array dv_, int64_t heads, int64_t kv_heads, Ints cu_q,
                        std::optional<Ints> cu_k, std::optional<float> scale, int64_t window, std::optional<InArray> p_,
                        float softcap, bool accumulate, std::optional<Ints> prefix) {
    const View dout = view(dout_, "dout"), q = view(q_, "q"), k = view(k_, "k"), v = view(v_, "v");
    const View out = view(out_, "out"), lse = view(lse_, "lse"), delta = view(delta_, "delta");
    const View dq = view(dq_, "dq"), dk = view(dk_, "dk"), dv = view(dv_, "dv");
    const AttentionShape shape = attention_shape(q, k, v, heads, kv_heads, cu_q, cu_k, scale, window, softcap, prefix);
    for (const auto& [grad, name] : {std::pair{dout, "dout"}, {out, "out"}, {dq, "dq"}})
        check_shape(grad, q.rows, q.cols, name);
    for (const auto& [grad, name] : {std::pair{dk, "dk"}, {dv, "dv"}}) check_shape(grad, k.rows, k.cols, name);
    for (const auto& [row, name] : {std::pair{lse, "lse"}, {delta, "delta"}}) check_shape(row, heads, q.rows, name);
    for (const auto& [grad, name] :
         {std::pair{dout, "dout"}, {lse, "lse"}, {delta, "delta"}, {dq, "dq"}, {dk, "dk"}, {dv, "dv"}})
        check_f32(grad, name);
    const View p = view(p_, "p");
    check_probabilities(p, q, k, heads);
    nb::gil_scoped_release release;
    const Timed timed("attention_backward", ops().attention_backward_cost(shape).flops);
    ops().attention_backward(dout, q, k, v, out, lse, p, shape, delta, dq, dk, dv, accumulate);
}

AttentionShape shape_alone(const Ints& cu_q, const Ints& cu_k, int64_t heads, int64_t kv_heads, int64_t head_dim,
                           int64_t window, float softcap, const std::optional<Ints>& prefix) {
    if (cu_q.shape(0) < 2 || cu_k.shape(0) < 2) refuse("cu_q and cu_k must hold a sequence");
    check_sequences(cu_q, cu_q.data()[cu_q.shape(0) - 1], cu_k, cu_k.data()[cu_k.shape(0) - 1]);
    if (heads <= 0 || kv_heads <= 0 || heads % kv_heads || head_dim <= 0)
        refuse("heads must be a multiple of kv_heads, and no number negative");
    check_sizes({heads, head_dim, cu_k.data()[cu_k.shape(0) - 1]});
    return shape_of(cu_q, cu_k, heads, kv_heads, head_dim, 1, window, softcap, prefix);
}

PyCost attention_cost(Ints cu_q, Ints cu_k, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window,
                      float softcap, bool backward_follows, std::optional<Ints> prefix) {
    return as_pair(ops().attention_cost(shape_alone(cu_q, cu_k, heads, kv_heads, head_dim, window, softcap, prefix),
                                        backward_follows));
}

PyCost attention_backward_cost(Ints cu_q, Ints cu_k, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window,
                               float softcap, std::optional<Ints> prefix) {
    return as_pair(
        ops().attention_backward_cost(shape_alone(cu_q, cu_k, heads, kv_heads, head_dim, window, softcap, prefix)));
}

}  // namespace

void bind_attention(nb::module_& m) {
    m.def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse").none(),
          nb::arg("heads"), nb::arg("kv_heads"), nb::arg("cu_q"), nb::arg("cu_k") = nb::none(),
          nb::arg("scale") = nb::none(), nb::arg("window") = 0, nb::arg("p") = nb::none(), nb::arg("softcap") = 0.0f,
          nb::arg("prefix") = nb::none(), nb::arg("sinks") = nb::none(),
          "out (Tq, H d) = grouped-query attention, causal unless window is -1; lse (H, Tq) or None. scale None: "
          "head_dim "
          "** -0.5. p (H Tq, Tk) float32 receives the probabilities. softcap not 0: a score s becomes softcap * tanh(s "
          "/ softcap). "
          "prefix (S,): "
          "-1, or the sequence whose keys these queries see as well. sinks (H,) float32: logits that take part in each "
          "row's softmax, with the value zero");
    m.def("attention_backward", &attention_backward, nb::arg("dout"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
          nb::arg("out"), nb::arg("lse"), nb::arg("delta"), nb::arg("dq"), nb::arg("dk"), nb::arg("dv"),
          nb::arg("heads"), nb::arg("kv_heads"), nb::arg("cu_q"), nb::arg("cu_k") = nb::none(),
          nb::arg("scale") = nb::none(), nb::arg("window") = 0, nb::arg("p") = nb::none(), nb::arg("softcap") = 0.0f,
          nb::arg("accumulate") = false, nb::arg("prefix") = nb::none(),
          "dq and (+)= dk, dv from dout; delta (H, Tq) = sum(dout * out), out not rounded; p as attention left it");
    m.def("attention_cost", &attention_cost, nb::arg("cu_q"), nb::arg("cu_k"), nb::arg("heads"), nb::arg("kv_heads"),
          nb::arg("head_dim"), nb::arg("window") = 0, nb::arg("softcap") = 0.0f, nb::arg("backward_follows") = true,
          nb::arg("prefix") = nb::none(),
          "(floating-point operations, bytes of scratch per thread); backward_follows: lse or p is wanted");
    m.def("attention_backward_cost", &attention_backward_cost, nb::arg("cu_q"), nb::arg("cu_k"), nb::arg("heads"),
          nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("window") = 0, nb::arg("softcap") = 0.0f,
          nb::arg("prefix") = nb::none(), "(floating-point operations, bytes of scratch per thread)");
}

}  // namespace fb
