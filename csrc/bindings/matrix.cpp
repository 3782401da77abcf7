#include "bindings/arrays.h"

namespace fb {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

PyMatrix make_matrix(nb::object data, int type, int64_t rows, int64_t cols) {
    const Bytes bytes = nb::cast<Bytes>(data);
    Matrix m;
    m.type = TensorType(type);
    const BlockShape block = block_shape(m.type);
    if (!block.weights) refuse("tensor type " + std::to_string(type) + " is unknown");
    if (rows < 0 || cols < 0 || cols % block.weights) refuse("a row must hold whole blocks");
    m.data = bytes.data();
    m.rows = rows;
    m.cols = cols;
    m.row_bytes = cols / block.weights * block.bytes;
    int64_t expected;
    if (__builtin_mul_overflow(rows, m.row_bytes, &expected)) refuse("the matrix is too large");
    check_length(int64_t(bytes.shape(0)), expected, "data");
    return {m, data};
}

using Bounds = std::optional<std::pair<int64_t, int64_t>>;

PyMatrix slice(const PyMatrix& self, Bounds rows, Bounds cols) {
    PyMatrix out = self;
    Matrix& m = out.matrix;
    const auto narrow = [](const Bounds& bounds, int64_t& start, int64_t& count, int step, const char* name) {
        if (!bounds) return;
        const auto [first, last] = *bounds;
        if (first < 0 || last < first || last > count) refuse(std::string(name) + " are outside the matrix");
        if (first % step || (last % step && last != count)) refuse(std::string(name) + " cut a block");
        start += first;
        count = last - first;
    };
    narrow(rows, m.row0, m.rows, 1, "rows");
    narrow(cols, m.col0, m.cols, block_shape(m.type).weights, "columns");
    return out;
}

}  // namespace

void bind_matrix(nb::module_& m) {
    nb::class_<PyMatrix>(m, "Matrix",
                         "A stored weight (rows = out_features, cols = in_features), or a rectangle of one.")
        .def(
            "__init__",
            [](PyMatrix* self, nb::object data, int type, int64_t rows, int64_t cols) {
                new (self) PyMatrix(make_matrix(std::move(data), type, rows, cols));
            },
            nb::arg("data"), nb::arg("type"), nb::arg("rows"), nb::arg("cols"))
        .def("slice", &slice, nb::arg("rows") = nb::none(), nb::arg("cols") = nb::none(),
             "The rectangle [rows) x [cols); columns must not cut a block.")
        .def_prop_ro("shape", [](const PyMatrix& s) { return std::make_pair(s.matrix.rows, s.matrix.cols); })
        .def_prop_ro("type", [](const PyMatrix& s) { return int(s.matrix.type); });
}

}  // namespace fb
