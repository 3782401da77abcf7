// Checks of views and sizes, so that a wrong call cannot touch foreign memory.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "core/types.h"

namespace fb {

[[noreturn]] inline void refuse(const std::string& what) { throw std::invalid_argument(what); }

// What an error quotes of a file: at most 80 characters, all of them ASCII.
inline std::string excerpt(const std::string& text) {
    std::string shown = text.substr(0, 80);
    for (char& c : shown)
        if (c < 32 || c > 126) c = '?';
    return shown;
}

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

}  // namespace fb
