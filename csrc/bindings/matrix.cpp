#include <algorithm>

#include "bindings/arrays.h"
#include "host/pager.h"

namespace fb {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

PyMatrix make_matrix(nb::object data, int type, int64_t rows, int64_t cols, nb::object file) {
    const Bytes bytes = nb::cast<Bytes>(data);
    Matrix m;
    m.type = TensorType(type);
    const BlockShape block = block_shape(m.type);
    if (!block.weights) refuse("tensor type " + std::to_string(type) + " is unknown");
    if (rows < 0 || cols < 0 || cols % block.weights) refuse("a row must hold whole blocks");
    m.data = bytes.data();
    m.rows = rows;
    m.cols = cols;
    m.row_bytes = product({cols / block.weights, block.bytes}, "a row");
    const int64_t expected = product({rows, m.row_bytes}, "the matrix");
    check_length(int64_t(bytes.shape(0)), expected, "data");
    PyMatrix made{m, data, file};
    if (!file.is_none()) {
        const Bytes map = nb::cast<Bytes>(file);
        made.begin = map.data();
        made.end = made.begin + map.shape(0);
        // Dropping pages of the process's own memory would lose their content.
        nb::ndarray<uint8_t, nb::ndim<1>, nb::device::cpu> writable;
        if (nb::try_cast(file, writable)) refuse("file must be a map that cannot be written to");
        if (m.data < made.begin || m.data + expected > made.end) refuse("data does not lie in file");
        if (!is_page_start(made.begin)) refuse("file must be a whole file's map");
    }
    return made;
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

int64_t nbytes(const PyMatrix& self) { return self.matrix.rows * self.matrix.row_bytes; }

void release(const PyMatrix& self, int64_t around) {
    if (!self.begin) return;
    if (around < 0) refuse("around must not be negative");
    const uint8_t* rows = self.matrix.data + self.matrix.row0 * self.matrix.row_bytes;
    const uint8_t* from = rows - std::min<int64_t>(around, rows - self.begin);
    const uint8_t* to = rows + nbytes(self);
    to += std::min<int64_t>(around, self.end - to);
    if (from < to) drop_pages(from, size_t(to - from));
}

// In Python integers, because a damaged file may claim a row of any length.
nb::int_ row_bytes(TensorType type, nb::int_ cols) {
    const BlockShape block = block_shape(type);
    const nb::int_ weights(block.weights), bytes(block.bytes);
    if (!(cols % weights).equal(nb::int_(0))) {
        const auto text = [](const nb::object& value) { return std::string(nb::str(value).c_str()); };
        const std::string what = "A row of " + text(cols) + " weights does not fill whole " +
                                 text(nb::cast(type).attr("name")) + " blocks of " + text(weights) + ".";
        PyErr_SetString(nb::module_::import_("featherback.errors").attr("FeatherbackError").ptr(), what.c_str());
        throw nb::python_error();
    }
    return nb::int_(cols.floor_div(weights) * bytes);
}

using FieldTuple = std::pair<std::string, int>;

FieldTuple as_tuple(Field field) { return {name_of(field.kind), field.at}; }

// Returns a getter for a constant of the type's format.
template <class Get>
auto fact(const Get& get) {
    return [get](TensorType type) {
        decltype(get(plain::formats::F32())) value{};
        with_type(type, [&](auto known) { value = get(plain::Format<known()>()); });
        return value;
    };
}

void bind_types(nb::module_& m) {
    nb::enum_<TensorType>(m, "TensorType", nb::is_arithmetic(),
                          "A number format Featherback computes with; the value is its ggml id.")
#define FB_VALUE(T) .value(#T, TensorType::T)
        FB_FORMATS(FB_VALUE)
#undef FB_VALUE
            .def_prop_ro(
                "block_size", [](TensorType t) { return block_shape(t).weights; },
                "Weights that share one block (1 for plain floats).")
            .def_prop_ro(
                "block_bytes", [](TensorType t) { return block_shape(t).bytes; }, "Bytes of one block.")
            .def("row_bytes", &row_bytes, nb::arg("cols"),
                 "Bytes of a row of `cols` weights; FeatherbackError if they do not fill whole blocks.")
            .def_prop_ro("scale_field", fact([](auto format) { return as_tuple(format.scale); }),
                         "(number format, byte) of a block's scale.")
            .def_prop_ro("offset_field", fact([](auto format) {
                             return format.offset.at < 0 ? std::nullopt : std::optional(as_tuple(format.offset));
                         }),
                         "(number format, byte) of a block's offset or minimum, if there is one.")
            .def_prop_ro("centre", fact([](auto format) { return format.centre; }),
                         "With codes drawn evenly, an offset of centre * scale makes the mean of the weights 0.")
            .def_prop_ro("spread", fact([](auto format) { return format.spread; }),
                         "Their standard deviation is then spread * scale.");
}

}  // namespace

void bind_matrix(nb::module_& m) {
    bind_types(m);
    nb::class_<PyMatrix>(m, "Matrix",
                         "A stored weight (rows = out_features, cols = in_features), or a rectangle of one.")
        .def(
            "__init__",
            [](PyMatrix* self, nb::object data, int type, int64_t rows, int64_t cols, nb::object file) {
                new (self) PyMatrix(make_matrix(std::move(data), type, rows, cols, std::move(file)));
            },
            nb::arg("data"), nb::arg("type"), nb::arg("rows"), nb::arg("cols"), nb::arg("file") = nb::none(),
            "data: the stored bytes. file: the read-only map of a whole file, in which they lie")
        .def("slice", &slice, nb::arg("rows") = nb::none(), nb::arg("cols") = nb::none(),
             "The rectangle [rows) x [cols); columns must not cut a block.")
        .def_prop_ro("shape", [](const PyMatrix& s) { return std::make_pair(s.matrix.rows, s.matrix.cols); })
        .def(
            "release", &release, nb::arg("around") = 0,
            "Unmap the pages of its rows, whole stored rows, and of `around` bytes before and behind them in the file, "
            "until they are touched again. Does nothing to a matrix that was not given its file's map.")
        .def_prop_ro("nbytes", &nbytes, "Bytes of its rows, as whole as they are stored")
        .def_prop_ro("type", [](const PyMatrix& s) { return int(s.matrix.type); });
}

}  // namespace fb
