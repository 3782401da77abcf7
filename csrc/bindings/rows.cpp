#include "bindings/arrays.h"

namespace fb {
namespace {

void rms_norm(InArray x_, InFloats weight, float eps, Array out_) {
    const View x = view(x_, "x"), out = view(out_, "out");
    check_shape(out, x.rows, x.cols, "out");
    check_length(int64_t(weight.shape(0)), x.cols, "weight");
    nb::gil_scoped_release release;
    const Timed timed("rms_norm", 0);
    ops().rms_norm(x, weight.data(), eps, out);
}

void rms_norm_backward(InArray dn_, InArray x_, InFloats weight, float eps, Array dx_) {
    const View dn = view(dn_, "dn"), x = view(x_, "x"), dx = view(dx_, "dx");
    check_shape(dn, x.rows, x.cols, "dn");
    check_shape(dx, x.rows, x.cols, "dx");
    check_f32(dn, "dn");
    check_f32(dx, "dx");
    check_length(int64_t(weight.shape(0)), x.cols, "weight");
    nb::gil_scoped_release release;
    const Timed timed("rms_norm_backward", 0);
    ops().rms_norm_backward(dn, x, weight.data(), eps, dx);
}

void rope(InArray x_, InArray cos_, InArray sin_, Array out_, int64_t head_dim, bool interleaved, bool inverse) {
    const View x = view(x_, "x"), cos = view(cos_, "cos"), sin = view(sin_, "sin"), out = view(out_, "out");
    if (head_dim <= 0 || head_dim % 2 || x.cols % head_dim) refuse("head_dim must be even and divide x's width");
    check_shape(out, x.rows, x.cols, "out");
    check_shape(cos, x.rows, head_dim / 2, "cos");
    check_shape(sin, x.rows, head_dim / 2, "sin");
    check_f32(cos, "cos");
    check_f32(sin, "sin");
    nb::gil_scoped_release release;
    const Timed timed("rope", 0);
    ops().rope(x, {cos, sin, head_dim, interleaved}, inverse, out);
}

void swiglu(InArray gate_, InArray up_, Array out_) {
    const View gate = view(gate_, "gate"), up = view(up_, "up"), out = view(out_, "out");
    check_shape(up, gate.rows, gate.cols, "up");
    check_shape(out, gate.rows, gate.cols, "out");
    check_f32(gate, "gate");
    check_f32(up, "up");
    nb::gil_scoped_release release;
    const Timed timed("swiglu", 0);
    ops().swiglu(gate, up, out);
}

void swiglu_backward(InArray da_, InArray gate_, InArray up_, Array dgate_, Array dup_, std::optional<Array> a_) {
    const View da = view(da_, "da"), gate = view(gate_, "gate"), up = view(up_, "up");
    const View dgate = view(dgate_, "dgate"), dup = view(dup_, "dup"), a = a_ ? view(*a_, "a") : View{};
    check_shape(da, gate.rows, gate.cols, "da");
    check_shape(up, gate.rows, gate.cols, "up");
    check_shape(dgate, gate.rows, gate.cols, "dgate");
    check_shape(dup, gate.rows, gate.cols, "dup");
    if (a) check_shape(a, gate.rows, gate.cols, "a");
    check_f32(da, "da");
    check_f32(gate, "gate");
    check_f32(up, "up");
    if (dgate.dtype != dup.dtype || (a && a.dtype != dup.dtype)) refuse("dgate, dup and a must have one type");
    nb::gil_scoped_release release;
    const Timed timed("swiglu_backward", 0);
    ops().swiglu_backward(da, gate, up, dgate, dup, a);
}

void cast(InArray x_, Array out_) {
    const View x = view(x_, "x"), out = view(out_, "out");
    check_shape(out, x.rows, x.cols, "out");
    nb::gil_scoped_release release;
    const Timed timed("cast", 0);
    ops().cast(x, out);
}

double sum_squares(InArray x_) {
    const View x = view(x_, "x");
    check_f32(x, "x");
    return ops().sum_squares(x);
}

}  // namespace

void bind_rows(nb::module_& m) {
    m.def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("out"),
          "out (T, D) = x * weight / sqrt(mean(x^2) + eps)");
    m.def("rms_norm_backward", &rms_norm_backward, nb::arg("dn"), nb::arg("x"), nb::arg("weight"), nb::arg("eps"),
          nb::arg("dx"), "dx (T, D) += the gradient of rms_norm's input x, from dn");
    m.def("rope", &rope, nb::arg("x"), nb::arg("cos"), nb::arg("sin"), nb::arg("out"), nb::arg("head_dim"),
          nb::arg("interleaved"), nb::arg("inverse") = false, "out = x rotated (or rotated back); out may be x");
    m.def("swiglu", &swiglu, nb::arg("gate"), nb::arg("up"), nb::arg("out"), "out (T, F) = silu(gate) * up");
    m.def("swiglu_backward", &swiglu_backward, nb::arg("da"), nb::arg("gate"), nb::arg("up"), nb::arg("dgate"),
          nb::arg("dup"), nb::arg("a") = nb::none(),
          "dgate, dup (T, F) from da, with a = silu(gate) * up, which is computed once more if it is given");
    m.def("cast", &cast, nb::arg("x"), nb::arg("out"), "out = x in out's type");
    m.def("sum_squares", &sum_squares, nb::arg("x"), "sum of x^2, in double");
}

}  // namespace fb
