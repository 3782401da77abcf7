// Hints to the kernel about mapped file pages: fetch these soon, or drop those now.
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
// threads may send requests and close it.
class ReadAhead {
public:
    ReadAhead() = default;
    ReadAhead(const ReadAhead&) = delete;
    ~ReadAhead() { close(); }

    // Requests the pages of [data, data + bytes) and returns at once. Pages become resident in this process only when
    // they are accessed.
    void map(const void* data, size_t bytes);
    // Requests [offset, offset + bytes) of an open file, which is read. Data read in this way is cached in large
    // pieces, which are mapped and dropped several times faster than the single pages that a hint brings. For data that
    // is already cached, the hint is enough.
    void file(int file, int64_t offset, int64_t bytes);
    // Ends the thread and drops requests that have not begun. Call it before closing a file or map that was requested.
    // A later request starts a new thread.
    void close();

private:
    // Part of a mapping (addresses, no file) or of a file (offsets).
    struct Range {
        uintptr_t begin, end;
        int file = -1;
    };

    void request(Range range);
    void work();
    void fetch(int file, uintptr_t at, size_t bytes);

    std::mutex life_;  // held while the thread is started or ended
    std::thread thread_;
    std::mutex mutex_;  // guards the members below
    std::condition_variable wake_;
    std::deque<Range> queue_;
    std::atomic<bool> stop_{false};
    std::vector<char> sink_;  // receives the data read, which is not used
};

// Unmaps the pages that [data, data + bytes) touches. Resident memory falls, and the page cache keeps the pages. Only
// for read-only mappings of files.
void drop_pages(const void* data, size_t bytes);
// Whether an address is the start of a page, as every mapping's is.
bool is_page_start(const void* data);

}  // namespace fb
