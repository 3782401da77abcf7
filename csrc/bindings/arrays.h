// Converts NumPy arrays to views, with checks so that a wrong call cannot touch foreign memory.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>

#include "bindings/profile.h"
#include "core/dispatch.h"

namespace fb {

namespace nb = nanobind;
using Array = nb::ndarray<nb::numpy, nb::device::cpu>;
using InArray = nb::ndarray<nb::ro, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using States = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using InFloats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] inline void refuse(const std::string& what) { throw std::invalid_argument(what); }

// More than any memory holds, in elements or bytes; sixteen times as much is still a number.
constexpr int64_t kMost = int64_t(1) << 56;

// The product of sizes, which must not be negative. Refuses a product beyond kMost, also if another size is 0.
inline int64_t product(std::initializer_list<int64_t> sizes, const char* name) {
    int64_t most = 1;
    bool empty = false;
    for (const int64_t size : sizes) {
        if (size < 0) refuse(std::string(name) + " has a negative size");
        empty = empty || size == 0;
        if (__builtin_mul_overflow(most, size > 0 ? size : 1, &most) || most > kMost)
            refuse(std::string(name) + " is too large");
    }
    return empty ? 0 : most;
}

// Sizes of which kernels multiply any two.
inline void check_sizes(std::initializer_list<int64_t> sizes) {
    for (const int64_t one : sizes)
        for (const int64_t other : sizes) product({one, &one == &other ? 1 : other}, "an operation of these sizes");
}

template <class A>
View view(const A& array, const char* name) {
    View v;
    const size_t ndim = array.ndim();
    if (ndim != 1 && ndim != 2) refuse(std::string(name) + " must have one or two dimensions");
    v.data = const_cast<void*>(static_cast<const void*>(array.data()));
    v.rows = ndim == 2 ? int64_t(array.shape(0)) : 1;
    v.cols = int64_t(array.shape(ndim - 1));
    product({v.rows, v.cols}, name);
    v.ld = ndim == 2 && v.rows > 1 ? array.stride(0) : v.cols;
    if (v.rows > 0 && v.cols > 1 && array.stride(ndim - 1) != 1)
        refuse(std::string(name) + "'s rows must be contiguous");
    if (array.dtype() == nb::dtype<float>()) v.dtype = Dtype::f32;
    else if (array.dtype() == nb::dtype<uint16_t>()) v.dtype = Dtype::bf16;
    else if (array.dtype() == nb::dtype<double>()) v.dtype = Dtype::f64;
    else refuse(std::string(name) + " must be float32, bf16 (as uint16) or float64");
    if (v.dtype == Dtype::f64 && &ops() != reference_ops())
        refuse(std::string(name) + " is float64, which only the reference kernels take");
    return v;
}

inline View view(const std::optional<Array>& array, const char* name) { return array ? view(*array, name) : View{}; }
inline View view(const std::optional<InArray>& array, const char* name) { return array ? view(*array, name) : View{}; }

inline void check_shape(const View& v, int64_t rows, int64_t cols, const char* name) {
    if (v && (v.rows != rows || v.cols != cols))
        refuse(std::string(name) + " is (" + std::to_string(v.rows) + ", " + std::to_string(v.cols) + "), not (" +
               std::to_string(rows) + ", " + std::to_string(cols) + ")");
}

// Vector kernels write float32 here; the reference kernels also write float64.
inline void check_f32(const View& v, const char* name) {
    if (v && v.dtype == Dtype::bf16) refuse(std::string(name) + " must be float32");
}

inline void check_softcap(float softcap) {
    if (!(softcap >= 0)) refuse("softcap must not be negative");
}

// A window is a number of keys, of which there are fewer than kMost.
inline int64_t checked_window(int64_t window) {
    if (window < 0) refuse("window must not be negative");
    return std::min(window, kMost);
}

inline void check_length(int64_t length, int64_t expected, const char* name) {
    if (length != expected)
        refuse(std::string(name) + " has " + std::to_string(length) + " elements, not " + std::to_string(expected));
}

// A stored weight and the Python objects that keep its bytes alive.
struct PyMatrix {
    Matrix matrix;
    nb::object owner;
    nb::object file;                                 // the map of the file that holds it, or None
    const uint8_t *begin = nullptr, *end = nullptr;  // bounds of that map
};

using PyCost = std::pair<double, int64_t>;  // floating-point operations, bytes of scratch per thread
inline PyCost as_pair(const Cost& cost) { return {cost.flops, cost.scratch_bytes}; }

void bind_matrix(nb::module_& m);
void bind_products(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_delta_rule(nb::module_& m);
void bind_key_cache(nb::module_& m);
void bind_gate(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_some_rows(nb::module_& m);
void bind_loss(nb::module_& m);
void bind_optim(nb::module_& m);
void bind_runtime(nb::module_& m);
void bind_text(nb::module_& m);

}  // namespace fb
