#include "bindings/arrays.h"

namespace fb {
namespace {

void adamw(Array param_, InArray grad_, Array m_, Array v_, float lr, float beta1, float beta2, float eps,
           float weight_decay, int64_t step, float grad_scale) {
    const View param = view(param_, "param"), grad = view(grad_, "grad"), m = view(m_, "m"), v = view(v_, "v");
    nb::gil_scoped_release release;
    const Timed timed("adamw", 0);
    checked::adamw(grad, lr, beta1, beta2, eps, weight_decay, step, grad_scale, param, m, v);
}

void sgd(Array param_, InArray grad_, float lr, float weight_decay, float grad_scale) {
    const View param = view(param_, "param"), grad = view(grad_, "grad");
    check_shape(grad, param.rows, param.cols, "grad");
    check_f32(param, "param");
    check_f32(grad, "grad");
    nb::gil_scoped_release release;
    const Timed timed("sgd", 0);
    ops().sgd(grad, lr, weight_decay, grad_scale, param);
}

}  // namespace

void bind_optim(nb::module_& m) {
    m.def("adamw", &adamw, nb::arg("param"), nb::arg("grad"), nb::arg("m"), nb::arg("v"), nb::arg("lr"),
          nb::arg("beta1"), nb::arg("beta2"), nb::arg("eps"), nb::arg("weight_decay"), nb::arg("step"),
          nb::arg("grad_scale") = 1.0f,
          "One AdamW step in place (decoupled decay, bias-corrected); step counts from 1");
    m.def("sgd", &sgd, nb::arg("param"), nb::arg("grad"), nb::arg("lr"), nb::arg("weight_decay") = 0.0f,
          nb::arg("grad_scale") = 1.0f, "One SGD step in place");
}

}  // namespace fb
