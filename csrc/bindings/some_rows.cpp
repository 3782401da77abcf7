#include "bindings/arrays.h"

namespace fb {
namespace {

void take_rows(InArray x_, Ints rows, Array out_) {
    const View x = view(x_, "x"), out = view(out_, "out");
    nb::gil_scoped_release release;
    const Timed timed("take_rows", 0);
    checked::take_rows(x, indices(rows), out);
}

void add_rows(InArray values_, Ints rows, Array out_) {
    const View values = view(values_, "values"), out = view(out_, "out");
    check_shape(values, int64_t(rows.shape(0)), out.cols, "values");
    check_f32(values, "values");
    check_f32(out, "out");
    nb::gil_scoped_release release;
    const Timed timed("add_rows", 0);
    ops().add_rows(values, rows.data(), out);
}

void row_dots(InArray x_, InArray y_, Floats out, bool accumulate) {
    const View x = view(x_, "x"), y = view(y_, "y");
    check_shape(y, x.rows, x.cols, "y");
    check_length(int64_t(out.shape(0)), x.rows, "out");
    nb::gil_scoped_release release;
    const Timed timed("row_dots", 0);
    ops().row_dots(x, y, out.data(), accumulate);
}

}  // namespace

void bind_some_rows(nb::module_& m) {
    m.def("take_rows", &take_rows, nb::arg("x"), nb::arg("rows"), nb::arg("out").noconvert(),
          "out (n, D) = rows (n) of x (T, D), in out's type");
    m.def("add_rows", &add_rows, nb::arg("values"), nb::arg("rows"), nb::arg("out").noconvert(),
          "out[rows[t]] += values[t] for each row of values (n, D), in order; rows that out lacks are skipped");
    m.def("row_dots", &row_dots, nb::arg("x"), nb::arg("y"), nb::arg("out").noconvert(), nb::arg("accumulate") = false,
          "out (T) (+)= the sum of x y over each row of x, y (T, D)");
}

}  // namespace fb
