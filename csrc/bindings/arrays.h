// Converts NumPy arrays to views, with checks so that a wrong call cannot touch foreign memory.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "bindings/profile.h"
#include "core/checked.h"

namespace fb {

namespace nb = nanobind;
using Array = nb::ndarray<nb::numpy, nb::device::cpu>;
using InArray = nb::ndarray<nb::ro, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using States = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using InFloats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

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

// Of Floats or InFloats, as a row.
template <class Numbers>
View view(const Numbers& numbers) {
    const int64_t n = int64_t(numbers.shape(0));
    return {const_cast<float*>(numbers.data()), Dtype::f32, 1, n, n};
}
inline View view(const std::optional<InFloats>& numbers) { return numbers ? view(*numbers) : View{}; }

inline checked::Indices indices(const Ints& array) { return {array.data(), int64_t(array.shape(0))}; }
inline checked::Indices indices(const std::optional<Ints>& array) {
    return array ? indices(*array) : checked::Indices{};
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
