#include "host/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace fb {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path) {
    throw std::runtime_error(what + " " + path + ": " + std::strerror(errno));
}

// Repeats a positioned read or write until all bytes have moved.
template <class Move>
void whole(const Move& move, size_t bytes, const char* what, const std::string& path) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = move(done);
        if (n > 0) {
            done += size_t(n);
        } else if (n == 0) {
            throw std::runtime_error(path + " is shorter than it says");
        } else if (errno != EINTR) {
            fail(what, path);
        }
    }
}

}  // namespace

File File::open(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) fail("cannot open", path);
    return File(file, path);
}

File File::create(const std::string& path) {
    unlink(path.c_str());
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) fail("cannot write", path);
    return File(file, path);
}

File File::unnamed(const std::string& folder) {
    std::string path = folder + "/.featherback-XXXXXX";
    const int file = mkstemp(path.data());
    if (file >= 0) fcntl(file, F_SETFD, FD_CLOEXEC);
    if (file < 0) fail("cannot make a file in", folder);
    unlink(path.c_str());
    return File(file, "a file in " + folder);
}

File::File(File&& other) noexcept
    : handle_(other.handle_),
      path_(std::move(other.path_)),
      mapped_(other.mapped_),
      mapped_bytes_(other.mapped_bytes_) {
    other.handle_ = -1;
    other.mapped_ = nullptr;
}

File::~File() {
    if (mapped_) munmap(mapped_, mapped_bytes_);
    if (handle_ >= 0) ::close(int(handle_));
}

int64_t File::size() const {
    struct stat about;
    if (fstat(int(handle_), &about)) fail("cannot read", path_);
    if (!S_ISREG(about.st_mode)) throw std::runtime_error(path_ + " is not a file");
    return about.st_size;
}

void File::read(int64_t offset, void* into, size_t bytes) const {
    whole(
        [&](size_t done) {
            return pread(int(handle_), static_cast<char*>(into) + done, bytes - done, offset + int64_t(done));
        },
        bytes, "cannot read", path_);
}

void File::write(int64_t offset, const void* from, size_t bytes) const {
    whole(
        [&](size_t done) {
            return pwrite(int(handle_), static_cast<const char*>(from) + done, bytes - done, offset + int64_t(done));
        },
        bytes, "cannot write", path_);
}

void File::extend(int64_t bytes) const {
    if (ftruncate(int(handle_), bytes)) fail("cannot write", path_);
}

void File::sync() const {
    if (fsync(int(handle_))) fail("cannot write", path_);
}

std::pair<int64_t, int64_t> File::stamp() const {
    struct stat about;
    if (fstat(int(handle_), &about)) fail("cannot read", path_);
#if defined(__APPLE__)
    const timespec& at = about.st_mtimespec;
#else
    const timespec& at = about.st_mtim;
#endif
    return {about.st_size, int64_t(at.tv_sec) * 1000000000 + at.tv_nsec};
}

const uint8_t* File::map() {
    if (mapped_) return static_cast<const uint8_t*>(mapped_);
    const size_t bytes = size_t(size());
    if (!bytes) throw std::runtime_error(path_ + " is empty");
    void* at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, int(handle_), 0);
    if (at == MAP_FAILED) fail("cannot map", path_);
    mapped_ = at;
    mapped_bytes_ = bytes;
    return static_cast<const uint8_t*>(at);
}

void replace(const std::string& path, const std::string& by) {
    struct stat about;
    if (!lstat(path.c_str(), &about) && !S_ISREG(about.st_mode)) throw std::runtime_error(path + " is not a file");
    if (std::rename(by.c_str(), path.c_str())) fail("cannot replace", path);
}

void remove_file(const std::string& path) { unlink(path.c_str()); }

}  // namespace fb
