// Rows of float32, one per layer, in memory or in an unnamed file.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "host/file.h"

namespace fb {

class Rows {
public:
    // `folder` empty: in memory.
    Rows(int64_t rows, int64_t size, const std::string& folder) : rows_(rows), size_(size) {
        if (folder.empty()) {
            memory_.reset(static_cast<float*>(std::calloc(size_t(rows * size) + 1, sizeof(float))), std::free);
            if (!memory_) throw std::bad_alloc();
        } else {
            file_ = std::make_unique<File>(File::unnamed(folder));
            file_->extend(rows * size * 4);
        }
    }
    // Sets all elements to zero.
    void clear() {
        if (file_) file_->extend(0), file_->extend(rows_ * size_ * 4);
        else std::memset(memory_.get(), 0, size_t(rows_ * size_) * 4);
    }
    // Elements [first, first + count) of a row.
    void read(int64_t row, int64_t first, int64_t count, float* out) const {
        if (file_) file_->read((row * size_ + first) * 4, out, size_t(count) * 4);
        else std::memcpy(out, memory_.get() + row * size_ + first, size_t(count) * 4);
    }
    void write(int64_t row, int64_t first, int64_t count, const float* values) {
        if (file_) file_->write((row * size_ + first) * 4, values, size_t(count) * 4);
        else std::memcpy(memory_.get() + row * size_ + first, values, size_t(count) * 4);
    }

private:
    int64_t rows_, size_;
    std::shared_ptr<float> memory_;
    std::unique_ptr<File> file_;
};

}  // namespace fb
