#include "bindings/arrays.h"

namespace fb {
namespace {

void cross_entropy_tile(InArray logits_, int64_t first, Ints targets, Floats reference, Floats sum, Floats target_logit,
                        std::optional<Array> p_, std::optional<Array> dh_, float softcap) {
    const View logits = view(logits_, "logits"), p = view(p_, "p"), dh = view(dh_, "dh");
    check_f32(logits, "logits");
    product({first}, "first");
    check_softcap(softcap);
    check_f32(dh, "dh");
    check_shape(p, logits.rows, logits.cols, "p");
    check_shape(dh, logits.rows, dh.cols, "dh");
    check_length(int64_t(targets.shape(0)), logits.rows, "targets");
    check_length(int64_t(reference.shape(0)), logits.rows, "reference");
    check_length(int64_t(sum.shape(0)), logits.rows, "sum");
    check_length(int64_t(target_logit.shape(0)), logits.rows, "target_logit");
    nb::gil_scoped_release release;
    const Timed timed("cross_entropy_tile", 0);
    ops().cross_entropy_tile(logits, targets.data(), first, softcap, reference.data(), sum.data(), target_logit.data(),
                             p, dh);
}

void cross_entropy_finish(InFloats reference, InFloats sum, InFloats target_logit, Floats loss,
                          std::optional<InArray> target_rows_, std::optional<Array> dh_, float scale, float softcap) {
    const View target_rows = view(target_rows_, "target_rows"), dh = view(dh_, "dh");
    const int64_t n = int64_t(loss.shape(0));
    check_length(int64_t(reference.shape(0)), n, "reference");
    check_length(int64_t(sum.shape(0)), n, "sum");
    check_length(int64_t(target_logit.shape(0)), n, "target_logit");
    check_softcap(softcap);
    if (bool(dh) != bool(target_rows)) refuse("dh and target_rows come together");
    check_shape(dh, n, dh.cols, "dh");
    check_shape(target_rows, n, dh.cols, "target_rows");
    check_f32(dh, "dh");
    check_f32(target_rows, "target_rows");
    nb::gil_scoped_release release;
    const Timed timed("cross_entropy_finish", 0);
    ops().cross_entropy_finish(reference.data(), sum.data(), target_logit.data(), target_rows, scale, softcap, dh,
                               loss.data(), n);
}

}  // namespace

void bind_loss(nb::module_& m) {
    m.def("cross_entropy_tile", &cross_entropy_tile, nb::arg("logits"), nb::arg("first"), nb::arg("targets"),
          nb::arg("reference"), nb::arg("sum"), nb::arg("target_logit"), nb::arg("p") = nb::none(),
          nb::arg("dh") = nb::none(), nb::arg("softcap") = 0.0f,
          "One vocabulary tile of the online softmax; see ops.def");
    m.def("cross_entropy_finish", &cross_entropy_finish, nb::arg("reference"), nb::arg("sum"), nb::arg("target_logit"),
          nb::arg("loss"), nb::arg("target_rows") = nb::none(), nb::arg("dh") = nb::none(), nb::arg("scale") = 1.0f,
          nb::arg("softcap") = 0.0f, "loss (n) in nats and, in place, dh (n, D); see ops.def");
}

}  // namespace fb
