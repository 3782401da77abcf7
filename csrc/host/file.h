// Files that are read in place or by offset. One implementation for each system: posix/ and windows/.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace fb {

// Throws std::runtime_error with the path and the reason if the system refuses.
class File {
public:
    // A file that exists, for reading.
    static File open(const std::string& path);
    // A new, empty file for writing, which only its owner may read. An older one of this name is removed.
    static File create(const std::string& path);
    // A new file without a name in `folder`, for reading and writing. It is gone when it is closed.
    static File unnamed(const std::string& folder);
    File(File&& other) noexcept;
    File& operator=(File&&) = delete;
    ~File();

    int64_t size() const;
    void read(int64_t offset, void* into, size_t bytes) const;
    void write(int64_t offset, const void* from, size_t bytes) const;
    // Makes it this long; what is new reads as zeros.
    void extend(int64_t bytes) const;
    // Returns when what was written has reached the disk.
    void sync() const;
    // Changes when the file's content does: its size, and the time of its last change.
    std::pair<int64_t, int64_t> stamp() const;
    // The whole file, mapped for reading until this object ends. At least one byte long.
    const uint8_t* map();

private:
    explicit File(intptr_t handle, std::string path) : handle_(handle), path_(std::move(path)) {}

    intptr_t handle_;
    std::string path_;
    void* mapped_ = nullptr;
    size_t mapped_bytes_ = 0;
};

// Renames a complete file, which replaces the other.
void replace(const std::string& path, const std::string& by);
void remove_file(const std::string& path);

}  // namespace fb
