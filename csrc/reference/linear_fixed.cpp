#include <vector>

#include "core/fixed.h"
#include "quant/decode.h"
#include "reference/reference.h"

namespace fb::reference {
namespace {

// Rounds to float32 and prevents fusing with an addition.
float rounded(float value) {
    volatile float kept = value;
    return kept;
}

// A row or a column in fixed point.
struct Fixed {
    std::vector<int16_t> q;
    std::vector<float> scales, shares;  // of its groups and of its chunks

    Fixed(const std::vector<float>& v, bool column) : q(v.size()) {
        for (size_t first = 0; first < v.size(); first += kFixedGroup) {
            const size_t end = std::min(v.size(), first + kFixedGroup);
            std::vector<float> squares;  // of its chunks
            float part = 0;              // the largest part
            for (size_t chunk = first; chunk < end; chunk += kFixedChunk) {
                float parts[8] = {};
                for (size_t i = 0; i < kFixedChunk; i++) {
                    const float t = magnitude(chunk + i < end ? v[chunk + i] : 0);
                    parts[i % 8] += t * t;
                }
                for (const float sum : parts) part = std::max(part, sum);
                for (size_t half = 4; half; half /= 2)
                    for (size_t i = 0; i < half; i++) parts[i] += parts[i + half];
                squares.push_back(parts[0]);
            }
            float most = 0;
            bool finite = true;
            for (const float sum : squares) most = std::max(most, sum), finite = finite && std::isfinite(sum);
            float inverse = (column ? kFixedColumnNorm : kFixedRowNorm) / std::sqrt(most);
            if (column) inverse = std::min(inverse, kFixedPeak / std::sqrt(part));
            scales.push_back(finite ? 1 / inverse : std::nanf(""));
            for (size_t chunk = first; chunk < end; chunk += kFixedChunk) {
                int exponent = 0;
                if (!column && finite) {
                    const float ratio = most / squares[(chunk - first) / kFixedChunk];
                    exponent = std::min(std::isfinite(ratio) ? std::ilogb(ratio) / 2 : kFixedShift, kFixedShift);
                }
                shares.push_back(std::ldexp(1.0f, -exponent));
                const float factor = std::ldexp(inverse, exponent);
                for (size_t i = chunk; i < std::min(end, chunk + kFixedChunk); i++)
                    q[i] = finite ? int16_t(std::nearbyint(v[i] * factor)) : 0;
            }
        }
    }

private:
    static float magnitude(float v) {
        uint32_t bits;
        std::memcpy(&bits, &v, 4);
        bits &= kFixedBits;
        float t;
        std::memcpy(&t, &bits, 4);
        return t < kFixedFloor ? kFixedFloor : t;
    }
};

// Returns the sum of a group's products.
float group_sum(const Fixed& a, const Fixed& b, size_t group) {
    float total = 0;
    const size_t first = group * kFixedGroup, end = std::min(a.q.size(), first + kFixedGroup);
    for (size_t chunk = first; chunk < end; chunk += kFixedChunk) {
        int64_t sum = 0;
        for (size_t i = chunk; i < std::min(end, chunk + kFixedChunk); i++) sum += int64_t(a.q[i]) * b.q[i];
        if (sum != int32_t(sum)) return std::nanf("");  // impossible
        total += rounded(float(sum) * a.shares[chunk / kFixedChunk]);
    }
    return rounded(total * (a.scales[group] * b.scales[group]));
}

struct Product {
    std::vector<Fixed> rows, columns;  // T rows, and the output's columns
};

// out (T, N) (+)= bias + the products, one after the other.
void sum_products(const std::vector<Product>& products, const float* bias, View out, bool accumulate) {
    for (int64_t t = 0; t < out.rows; ++t)
        for (int64_t n = 0; n < out.cols; ++n) {
            float& cell = out.row<float>(t)[n];
            if (!accumulate) cell = 0;
            if (bias) cell += bias[n];
            bool waiting = false;  // whether the last group waits for the short product that follows it
            float value = 0;
            for (const Product& product : products) {
                const Fixed &a = product.rows[size_t(t)], &b = product.columns[size_t(n)];
                if (a.q.size() > kFixedTail && waiting) cell += value, waiting = false, value = 0;
                for (size_t group = 0; group < a.scales.size(); group++) {
                    if (group) cell += value, value = 0;
                    value += group_sum(a, b, group);
                    waiting = true;
                }
            }
            if (waiting) cell += value;
        }
}

// Converts `count` rows or columns of `length` numbers; value(i, k) is number k of the i-th.
template <class Value>
std::vector<Fixed> fixed_lines(int64_t count, int64_t length, bool column, const Value& value) {
    std::vector<Fixed> lines;
    std::vector<float> values(static_cast<size_t>(length));
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t k = 0; k < length; ++k) values[size_t(k)] = float(value(i, k));
        lines.emplace_back(values, column);
    }
    return lines;
}

std::vector<Fixed> fixed_rows(const View& x, bool column = false) {
    return fixed_lines(x.rows, x.cols, column, [&](int64_t t, int64_t k) { return load(x, t, k); });
}

std::vector<Fixed> fixed_columns(const View& x) {
    return fixed_lines(x.cols, x.rows, true, [&](int64_t n, int64_t k) { return load(x, k, n); });
}

// Converts the rows or the columns of W.
std::vector<Fixed> fixed_weights(const Matrix& w, bool columns) {
    std::vector<float> values(size_t(w.rows * w.cols));
    for (int64_t n = 0; n < w.rows; ++n) decode_row(w.type, w.row(n), 0, w.cols, values.data() + n * w.cols);
    const View view{values.data(), Dtype::f32, w.rows, w.cols, w.cols};
    return columns ? fixed_columns(view) : fixed_rows(view, true);
}

}  // namespace

// out (T,N) (+)= x (T,K) W^T + bias (N) + h (T,r) b (r,N)
void linear_fixed(View x, Matrix w, const float* bias, View h, View b, View out, bool accumulate) {
    if (x.rows <= kFixedFew) return linear(x, w, bias, h, b, out, accumulate);
    std::vector<Product> products{{fixed_rows(x), fixed_weights(w, false)}};
    if (h) products.push_back({fixed_rows(h), fixed_columns(b)});
    sum_products(products, bias, out, accumulate);
}

// dx (T,K) (+)= dy (T,N) W + dh (T,r) a (r,K)
void linear_backward_fixed(View dy, Matrix w, View dh, View a, View dx, bool accumulate) {
    std::vector<Product> products{{fixed_rows(dy), fixed_weights(w, true)}};
    if (dh) products.push_back({fixed_rows(dh), fixed_columns(a)});
    sum_products(products, nullptr, dx, accumulate);
}

}  // namespace fb::reference
