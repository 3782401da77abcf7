// Hints to the kernel about mapped file pages: fetch these soon, drop those now.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace fb {

// A thread that brings bytes into the page cache while others compute. It starts with the first request. Several
// threads may request and close.
class ReadAhead {
public:
    ReadAhead() = default;
    ReadAhead(const ReadAhead&) = delete;
    ~ReadAhead() { close(); }

    // Asks for the pages of [data, data + bytes); returns at once. Pages become resident in this process only when
    // touched.
    void map(const void* data, size_t bytes);
    // The same for [offset, offset + bytes) of an open file, by reading them: what comes in that way lies in large
    // pieces, which are mapped and dropped several times faster than the single pages that a hint brings. Once in the
    // cache, the hint does.
    void file(int file, int64_t offset, int64_t bytes);
    // Ends the thread; requests not yet begun are dropped. Call it before closing a file or a map that was
    // asked for. A later request starts a new thread.
    void close();

private:
    // Of a mapping (addresses, no file) or of a file (offsets).
    struct Range {
        uintptr_t begin, end;
        int file = -1;
    };

    void request(Range range);
    void work();
    void fetch(int file, uintptr_t at, size_t bytes);

    std::mutex life_;  // held while the thread is started or ended
    std::thread thread_;
    std::mutex mutex_;  // of what follows
    std::condition_variable wake_;
    std::deque<Range> queue_;
    std::atomic<bool> stop_{false};
    std::vector<char> sink_;  // receives what is read, which is not used
};

// Unmaps the pages that [data, data + bytes) touches: resident memory falls, the page cache keeps them. Read-only
// mappings of files only.
void drop_pages(const void* data, size_t bytes);
// Whether an address is where a page starts, as every mapping does.
bool is_page_start(const void* data);

}  // namespace fb
