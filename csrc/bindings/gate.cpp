#include "bindings/arrays.h"

namespace fb {
namespace {

Gate form_of(const std::string& name) {
    if (name == "silu") return Gate::silu;
    if (name == "sigmoid") return Gate::sigmoid;
    refuse("gate '" + name + "' is unknown; there are silu and sigmoid");
}

void check_like(const View& array, const View& z, const char* name) { check_shape(array, z.rows, z.cols, name); }

void gate(InArray z_, std::optional<InArray> x_, Array out_, const std::string& form_) {
    const View z = view(z_, "z"), x = view(x_, "x"), out = view(out_, "out");
    check_f32(z, "z");
    check_like(x, z, "x");
    check_like(out, z, "out");
    const Gate form = form_of(form_);
    nb::gil_scoped_release release;
    const Timed timed("gate", 0);
    ops().gate(z, x, form, out);
}

void gate_backward(InArray da_, InArray z_, std::optional<InArray> x_, Array dz_, std::optional<Array> dx_,
                   const std::string& form_) {
    const View da = view(da_, "da"), z = view(z_, "z"), x = view(x_, "x"), dz = view(dz_, "dz"), dx = view(dx_, "dx");
    check_like(x, z, "x");
    for (const auto& [each, name] : {std::pair{da, "da"}, {z, "z"}, {dz, "dz"}, {dx, "dx"}}) {
        check_like(each, z, name);
        check_f32(each, name);
    }
    const Gate form = form_of(form_);
    nb::gil_scoped_release release;
    const Timed timed("gate_backward", 0);
    ops().gate_backward(da, z, x, form, dz, dx);
}

}  // namespace

void bind_gate(nb::module_& m) {
    m.def("gate", &gate, nb::arg("z"), nb::arg("x").none(), nb::arg("out"), nb::arg("form"),
          "out (T, F) = x * form(z), where form is 'silu' or 'sigmoid' and x None is 1; out may be x or z");
    m.def("gate_backward", &gate_backward, nb::arg("da"), nb::arg("z"), nb::arg("x").none(), nb::arg("dz"),
          nb::arg("dx").none(), nb::arg("form"),
          "dz and dx (T, F) float32 from da, with a = x * form(z); dz or dx may be da");
}

}  // namespace fb
