#include "host/pager.h"

#include <algorithm>

#include "host/system.h"

namespace fb {
void ReadAhead::map(const void* data, size_t bytes) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page_size() * page_size();
    request({begin, reinterpret_cast<uintptr_t>(data) + bytes});
}

void ReadAhead::file(int file, int64_t offset, int64_t bytes) {
    request({uintptr_t(offset), uintptr_t(offset + bytes), file});
}

void ReadAhead::close() {
    const std::lock_guard<std::mutex> alone(life_);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        queue_.clear();
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
}

void ReadAhead::request(Range range) {
    const std::lock_guard<std::mutex> alone(life_);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) {
        stop_ = false;
        thread_ = std::thread([this] { work(); });
    }
    queue_.push_back(range);
    wake_.notify_one();
}

void ReadAhead::work() {
    constexpr uintptr_t kChunk = 2 << 20;  // small enough that a stop is prompt
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (stop_) return;
        const Range range = queue_.front();
        queue_.pop_front();
        lock.unlock();
        for (uintptr_t at = range.begin; at < range.end && !stop_; at += kChunk)
            fetch(range.file, at, std::min(kChunk, range.end - at));
        lock.lock();
    }
}

void ReadAhead::fetch(int file, uintptr_t at, size_t bytes) {
    if (file < 0) {
        fetch_pages(at, bytes);
        return;
    }
    sink_.resize(64 << 10);
    for (size_t done = 0; done < bytes;) {
        const int64_t count = read_at(file, sink_.data(), std::min(sink_.size(), bytes - done), int64_t(at + done));
        if (count <= 0) return;  // it is only a hint: an error appears again when the page is accessed
        done += size_t(count);
    }
}

void drop_pages(const void* data, size_t bytes) {
    const uintptr_t from = reinterpret_cast<uintptr_t>(data), page = page_size();
    // Extend to whole pages. A neighbour's page that is dropped with them is simply read again.
    const uintptr_t begin = from / page * page, end = (from + bytes + page - 1) / page * page;
    unmap_pages(begin, end - begin);
}

bool is_page_start(const void* data) { return reinterpret_cast<uintptr_t>(data) % page_size() == 0; }

}  // namespace fb
