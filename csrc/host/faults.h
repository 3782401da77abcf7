// Mapped files that become shorter while they are read.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fb {

// While it exists, a vanished page of a mapped file (the file was truncated, or its disk failed) reads as zeros and is
// counted, instead of ending the process with SIGBUS. Everything computed from such a page must be discarded. Throws
// std::runtime_error if the process has guarded kMostMaps already.
class MapGuard {
public:
    MapGuard(const void* data, size_t bytes);
    MapGuard(const MapGuard&) = delete;
    ~MapGuard() { close(); }

    // The number of pages found missing so far.
    int64_t lost() const;
    // Ends the guard, before or after the file is unmapped. The number of lost pages stays.
    void close();

private:
    int slot_;
    int64_t lost_ = 0;
};

constexpr int kMostMaps = 1 << 14;

}  // namespace fb
