#include <cmath>

#include "bindings/arrays.h"

namespace fb {
namespace {

// cu_k and scale have defaults: those of cu_q, and 1 / sqrt(head_dim).
checked::Attention about(int64_t heads, int64_t kv_heads, const View& q, const Ints& cu_q,
                         const std::optional<Ints>& cu_k, std::optional<float> scale, int64_t window, float softcap,
                         const std::optional<Ints>& prefix, const std::optional<InFloats>& sinks = {}) {
    const float factor = scale ? *scale : 1.0f / std::sqrt(float(heads > 0 ? q.cols / heads : 1));
    return {heads,  kv_heads, indices(cu_q), indices(cu_k ? *cu_k : cu_q), indices(prefix), factor,
            window, softcap,  view(sinks)};
}

void attention(InArray q_, InArray k_, InArray v_, Array out_, std::optional<Array> lse_, int64_t heads,
               int64_t kv_heads, Ints cu_q, std::optional<Ints> cu_k, std::optional<float> scale, int64_t window,
               std::optional<Array> p_, float softcap, std::optional<Ints> prefix, std::optional<InFloats> sinks) {
    const View q = view(q_, "q"), k = view(k_, "k"), v = view(v_, "v"), out = view(out_, "out"),
               lse = view(lse_, "lse");
    const View p = view(p_, "p");
    const AttentionShape shape =
        checked::attention_shape(about(heads, kv_heads, q, cu_q, cu_k, scale, window, softcap, prefix, sinks), q, k, v);
    checked::check_attention(shape, q, k, out, lse, p);
    nb::gil_scoped_release release;
    const Timed timed("attention", ops().attention_cost(shape, lse || p).flops);
    ops().attention(q, k, v, shape, out, lse, p);
}

void attention_backward(InArray dout_, InArray q_, InArray k_, InArray v_, InArray out_, InArray lse_, Array delta_,
                        Array dq_, Array dk_, Array dv_, int64_t heads, int64_t kv_heads, Ints cu_q,
                        std::optional<Ints> cu_k, std::optional<float> scale, int64_t window, std::optional<InArray> p_,
                        float softcap, bool accumulate, std::optional<Ints> prefix) {
    const View dout = view(dout_, "dout"), q = view(q_, "q"), k = view(k_, "k"), v = view(v_, "v");
    const View out = view(out_, "out"), lse = view(lse_, "lse"), delta = view(delta_, "delta"), p = view(p_, "p");
    const View dq = view(dq_, "dq"), dk = view(dk_, "dk"), dv = view(dv_, "dv");
    const AttentionShape shape =
        checked::attention_shape(about(heads, kv_heads, q, cu_q, cu_k, scale, window, softcap, prefix), q, k, v);
    checked::check_attention_backward(shape, dout, q, k, out, lse, p, delta, dq, dk, dv);
    nb::gil_scoped_release release;
    const Timed timed("attention_backward", ops().attention_backward_cost(shape).flops);
    ops().attention_backward(dout, q, k, v, out, lse, p, shape, delta, dq, dk, dv, accumulate);
}

AttentionShape shape_alone(const Ints& cu_q, const Ints& cu_k, int64_t heads, int64_t kv_heads, int64_t head_dim,
                           int64_t window, float softcap, const std::optional<Ints>& prefix) {
    if (cu_q.shape(0) < 2 || cu_k.shape(0) < 2) refuse("cu_q and cu_k must hold a sequence");
    const int64_t queries = cu_q.data()[cu_q.shape(0) - 1], keys = cu_k.data()[cu_k.shape(0) - 1];
    if (heads <= 0 || kv_heads <= 0 || heads % kv_heads || head_dim <= 0)
        refuse("heads must be a multiple of kv_heads, and no number negative");
    check_sizes({heads, head_dim, keys});
    return checked::attention_shape(about(heads, kv_heads, {}, cu_q, cu_k, 1.0f, window, softcap, prefix), queries,
                                    keys, head_dim);
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
