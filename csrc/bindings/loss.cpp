#include "bindings/arrays.h"

namespace fb {
namespace {

void cross_entropy_tile(InArray logits_, int64_t first, Ints targets, Floats reference, Floats sum, Floats target_logit,
                        std::optional<Array> p_, std::optional<Array> dh_, float softcap) {
    const View logits = view(logits_, "logits"), p = view(p_, "p"), dh = view(dh_, "dh");
    nb::gil_scoped_release release;
    const Timed timed("cross_entropy_tile", 0);
    checked::cross_entropy_tile(logits, indices(targets), first, softcap, view(reference), view(sum),
                                view(target_logit), p, dh);
}

void cross_entropy_finish(InFloats reference, InFloats sum, InFloats target_logit, Floats loss,
                          std::optional<InArray> target_rows_, std::optional<Array> dh_, float scale, float softcap) {
    const View target_rows = view(target_rows_, "target_rows"), dh = view(dh_, "dh");
    nb::gil_scoped_release release;
    const Timed timed("cross_entropy_finish", 0);
    checked::cross_entropy_finish(view(reference), view(sum), view(target_logit), target_rows, scale, softcap, dh,
                                  view(loss));
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
