#include <vector>

#include "core/rounded.h"
#include "reference/reference.h"

namespace fb::reference {

// out (T,N) (+)= x' (T,K) W^T + bias (N) + h (T,r) b (r,N), where x' is x in blocks of eight bits
void linear_rounded(View x, Matrix w, const float* bias, View h, View b, View out, bool accumulate) {
    std::vector<double> rounded(size_t(x.rows * x.cols));
    for (int64_t t = 0; t < x.rows; ++t)
        for (int64_t first = 0; first < x.cols; first += kRoundedBlock) {
            const int64_t end = std::min(x.cols, first + kRoundedBlock);
            float most = 0;
            for (int64_t k = first; k < end; ++k) {
                const float size = std::fabs(float(load(x, t, k)));
                if (!(size <= most)) most = size;  // NaN stays
                if (std::isnan(most)) break;
            }
            const Rounding rounding(most);
            for (int64_t k = first; k < end; ++k) {
                const float code = std::nearbyint(float(load(x, t, k)) * rounding.inverse);
                rounded[size_t(t * x.cols + k)] = double(rounding.scale) * double(code);
            }
        }
    const View view{rounded.data(), Dtype::f64, x.rows, x.cols, x.cols};
    linear(view, w, bias, h, b, out, accumulate);
}

bool rounds(TensorType weights, int64_t rows) { return rows > 0 && rows <= kRoundedRows && has_byte_codes(weights); }

}  // namespace fb::reference
