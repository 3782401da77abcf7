#include "host/pager.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

namespace fb {
namespace {

// Bytes to fetch: of a mapping (addresses, no file) or of a file (offsets).
struct Range {
    uintptr_t begin, end;
    int file = -1;
};

uintptr_t page_size() {
    static const uintptr_t size = uintptr_t(sysconf(_SC_PAGESIZE));
    return size;
}

class Reader {
public:
    ~Reader() { stop(); }

    void request(Range range) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!thread_.joinable()) {
            stop_ = false;
            thread_ = std::thread([this] { work(); });
        }
        queue_.push_back(range);
        wake_.notify_one();
    }

    void stop() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
            queue_.clear();
        }
        wake_.notify_one();
        if (thread_.joinable()) thread_.join();
    }

private:
    void work() {
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

    static void fetch(int file, uintptr_t at, size_t bytes) {
        if (file < 0) {
            madvise(reinterpret_cast<void*>(at), bytes, MADV_WILLNEED);
            return;
        }
        static char sink[64 << 10];  // one thread reads, and nobody wants what it read
        for (size_t done = 0; done < bytes;) {
            const ssize_t count = pread(file, sink, std::min(sizeof sink, bytes - done), off_t(at + done));
            if (count <= 0) return;  // a hint, after all: whoever touches the page will hear of it
            done += size_t(count);
        }
    }

    std::thread thread_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Range> queue_;
    std::atomic<bool> stop_{false};
};

Reader& reader() {
    static Reader instance;
    return instance;
}

}  // namespace

void read_ahead(const void* data, size_t bytes) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page_size() * page_size();
    reader().request({begin, reinterpret_cast<uintptr_t>(data) + bytes});
}

void read_through(int file, int64_t offset, int64_t bytes) {
    reader().request({uintptr_t(offset), uintptr_t(offset + bytes), file});
}

void drop_pages(const void* data, size_t bytes) {
    const uintptr_t from = reinterpret_cast<uintptr_t>(data), page = page_size();
    // Outwards to whole pages: a neighbour's page that goes too is only read again.
    const uintptr_t begin = from / page * page, end = (from + bytes + page - 1) / page * page;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void stop_read_ahead() { reader().stop(); }

}  // namespace fb
