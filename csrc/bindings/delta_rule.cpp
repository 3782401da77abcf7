#include <tuple>

#include "bindings/arrays.h"

namespace fb {
namespace {

// cu starts at 0 and never decreases.
DeltaShape shape_of(int64_t k_heads, int64_t v_heads, bool tiled, const Ints& cu) {
    const size_t n = cu.shape(0);
    if (k_heads <= 0 || v_heads <= 0 || v_heads % k_heads) refuse("v_heads must be a multiple of k_heads");
    if (n < 2 || cu.data()[0] != 0) refuse("cu must start at 0 and hold a sequence");
    for (size_t i = 1; i < n; i++)
        if (cu.data()[i] < cu.data()[i - 1]) refuse("cu must not decrease");
    return {k_heads, v_heads, tiled, cu.data(), int64_t(n) - 1};
}

struct Inputs {
    View q, k, v, decay, beta, before;
    DeltaShape shape;

    int64_t k_dim() const { return q.cols / shape.k_heads; }
    int64_t v_dim() const { return v.cols / shape.v_heads; }

    void check_state(const View& state, const char* name) const {
        check_shape(state, shape.v_heads, product({k_dim(), v_dim()}, name), name);
        check_f32(state, name);
    }
};

Inputs inputs(InArray q_, InArray k_, InArray v_, InArray decay_, InArray beta_, int64_t k_heads, int64_t v_heads,
              bool tiled, const Ints& cu, const std::optional<InArray>& before_) {
    const Inputs in{view(q_, "q"),
                    view(k_, "k"),
                    view(v_, "v"),
                    view(decay_, "decay"),
                    view(beta_, "beta"),
                    view(before_, "before"),
                    shape_of(k_heads, v_heads, tiled, cu)};
    if (in.q.cols % k_heads || in.v.cols % v_heads || !in.q.cols || !in.v.cols)
        refuse("k_heads must divide q's width, and v_heads v's");
    check_shape(in.k, in.q.rows, in.q.cols, "k");
    check_shape(in.v, in.q.rows, in.v.cols, "v");
    check_shape(in.decay, in.q.rows, v_heads, "decay");
    check_shape(in.beta, in.q.rows, v_heads, "beta");
    for (const auto& [each, name] :
         {std::pair{in.q, "q"}, {in.k, "k"}, {in.v, "v"}, {in.decay, "decay"}, {in.beta, "beta"}})
        check_f32(each, name);
    if (cu.data()[cu.shape(0) - 1] != in.q.rows) refuse("cu must end at the number of rows");
    in.check_state(in.before, "before");
    return in;
}

void delta_rule(InArray q, InArray k, InArray v, InArray decay, InArray beta, std::optional<Array> y_, int64_t k_heads,
                int64_t v_heads, bool tiled, Ints cu, std::optional<InArray> before, std::optional<Array> after_) {
    const Inputs in = inputs(q, k, v, decay, beta, k_heads, v_heads, tiled, cu, before);
    const View y = view(y_, "y"), after = view(after_, "after");
    check_shape(y, in.v.rows, in.v.cols, "y");
    check_f32(y, "y");
    in.check_state(after, "after");
    nb::gil_scoped_release release;
    const Timed timed("delta_rule", ops().delta_rule_cost(in.shape, in.k_dim(), in.v_dim()).flops);
    ops().delta_rule(in.q, in.k, in.v, in.decay, in.beta, in.shape, in.before, y, after);
}

void delta_rule_backward(InArray dy_, InArray q, InArray k, InArray v, InArray decay, InArray beta, Array dq_,
                         Array dk_, Array dv_, Array ddecay_, Array dbeta_, int64_t k_heads, int64_t v_heads,
                         bool tiled, Ints cu, std::optional<InArray> before, std::optional<InArray> dafter_,
                         std::optional<Array> dbefore_) {
    const Inputs in = inputs(q, k, v, decay, beta, k_heads, v_heads, tiled, cu, before);
    const View dy = view(dy_, "dy"), dq = view(dq_, "dq"), dk = view(dk_, "dk"), dv = view(dv_, "dv");
    const View ddecay = view(ddecay_, "ddecay"), dbeta = view(dbeta_, "dbeta");
    const View dafter = view(dafter_, "dafter"), dbefore = view(dbefore_, "dbefore");
    for (const auto& [each, like, name] : {std::tuple{dy, in.v, "dy"},
                                           {dq, in.q, "dq"},
                                           {dk, in.q, "dk"},
                                           {dv, in.v, "dv"},
                                           {ddecay, in.decay, "ddecay"},
                                           {dbeta, in.decay, "dbeta"}}) {
        check_shape(each, like.rows, like.cols, name);
        check_f32(each, name);
    }
    in.check_state(dafter, "dafter");
    in.check_state(dbefore, "dbefore");
    nb::gil_scoped_release release;
    const Timed timed("delta_rule_backward", ops().delta_rule_backward_cost(in.shape, in.k_dim(), in.v_dim()).flops);
    ops().delta_rule_backward(dy, in.q, in.k, in.v, in.decay, in.beta, in.shape, in.before, dafter, dq, dk, dv, ddecay,
                              dbeta, dbefore);
}

void check_dims(const Ints& cu, int64_t v_heads, int64_t k_dim, int64_t v_dim) {
    if (k_dim <= 0 || v_dim <= 0) refuse("k_dim and v_dim must be positive");
    check_sizes({cu.data()[cu.shape(0) - 1], v_heads, k_dim, v_dim});
}

PyCost delta_rule_cost(Ints cu, int64_t k_heads, int64_t v_heads, int64_t k_dim, int64_t v_dim) {
    const DeltaShape shape = shape_of(k_heads, v_heads, false, cu);
    check_dims(cu, v_heads, k_dim, v_dim);
    return as_pair(ops().delta_rule_cost(shape, k_dim, v_dim));
}

PyCost delta_rule_backward_cost(Ints cu, int64_t k_heads, int64_t v_heads, int64_t k_dim, int64_t v_dim) {
    const DeltaShape shape = shape_of(k_heads, v_heads, false, cu);
    check_dims(cu, v_heads, k_dim, v_dim);
    return as_pair(ops().delta_rule_backward_cost(shape, k_dim, v_dim));
}

}  // namespace

void bind_delta_rule(nb::module_& m) {
    m.def("delta_rule", &delta_rule, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("decay"), nb::arg("beta"),
          nb::arg("y").none(), nb::arg("k_heads"), nb::arg("v_heads"), nb::arg("tiled"), nb::arg("cu"),
          nb::arg("before") = nb::none(), nb::arg("after") = nb::none(),
          "y (T, Hv Dv) = the gated delta rule of q, k (T, Hk Dk), v (T, Hv Dv), decay, beta (T, Hv), from the states "
          "before (Hv, Dk Dv) to those after; tiled: V head h reads K head h % Hk, else h // (Hv / Hk)");
    m.def("delta_rule_backward", &delta_rule_backward, nb::arg("dy"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
          nb::arg("decay"), nb::arg("beta"), nb::arg("dq"), nb::arg("dk"), nb::arg("dv"), nb::arg("ddecay"),
          nb::arg("dbeta"), nb::arg("k_heads"), nb::arg("v_heads"), nb::arg("tiled"), nb::arg("cu"),
          nb::arg("before") = nb::none(), nb::arg("dafter") = nb::none(), nb::arg("dbefore") = nb::none(),
          "dq, dk, dv, ddecay, dbeta from dy and dafter, the gradient of the states after; dbefore (Hv, Dk Dv) may be "
          "dafter");
    for (const auto& [name, cost] :
         {std::pair{"delta_rule_cost", &delta_rule_cost}, {"delta_rule_backward_cost", &delta_rule_backward_cost}})
        m.def(name, cost, nb::arg("cu"), nb::arg("k_heads"), nb::arg("v_heads"), nb::arg("k_dim"), nb::arg("v_dim"),
              "(floating-point operations, bytes of scratch per thread)");
}

}  // namespace fb
