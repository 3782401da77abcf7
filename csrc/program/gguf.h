// The tensors of a GGUF file: where they are, without copies.
#pragma once
#include <string>
#include <unordered_map>
#include <utility>

#include "core/matrix.h"
#include "host/faults.h"
#include "host/file.h"

namespace fb {

class Gguf {
public:
    // Throws std::runtime_error if the file is not GGUF, or if it says more than it holds.
    explicit Gguf(const std::string& path);

    // A number for what a step depends on besides the tensors that it reads: the tensors' count, the architecture and
    // its settings, as the header has them, and the tensors of rotary factors.
    uint64_t checksum() const { return checksum_; }
    // The same for the bytes of a tensor.
    uint64_t checksum(const std::string& name) const;
    // A tensor as a matrix. Throws std::runtime_error if there is none of this name, type and shape.
    Matrix matrix(const std::string& name, TensorType type, int64_t rows, int64_t cols) const;
    // A tensor of float32.
    const float* vector(const std::string& name, int64_t size) const;
    // Copies bytes of the file, which do not become resident.
    void read(const uint8_t* at, void* into, size_t bytes) const { file_.read(at - begin_, into, bytes); }
    // Unmaps the pages of the stored rows of a matrix and those around them, until they are read again.
    void release(const Matrix& matrix) const;
    // Throws std::runtime_error if another program has changed the file since it was opened.
    void check_unchanged() const;

private:
    struct Tensor {
        TensorType type;
        int64_t rows, cols, offset;
    };
    struct Hash;

    const Tensor& find(const std::string& name) const;

    File file_;
    const uint8_t *begin_, *end_;
    MapGuard guard_;
    std::pair<int64_t, int64_t> stamp_;
    uint64_t checksum_;
    std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace fb
