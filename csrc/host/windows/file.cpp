#include "host/file.h"

#include <windows.h>

#include <stdexcept>

namespace fb {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path) {
    throw std::runtime_error(what + " " + path + ": error " + std::to_string(GetLastError()));
}

std::wstring wide(const std::string& utf8) {
    const int n = MultiByteToWideChar(CP_UTF8, 0, utf8.data(), int(utf8.size()), nullptr, 0);
    std::wstring text(size_t(n), 0);
    MultiByteToWideChar(CP_UTF8, 0, utf8.data(), int(utf8.size()), text.data(), n);
    return text;
}

OVERLAPPED at(int64_t offset) {
    OVERLAPPED place = {};
    place.Offset = DWORD(uint64_t(offset));
    place.OffsetHigh = DWORD(uint64_t(offset) >> 32);
    return place;
}

constexpr size_t kMost = size_t(1) << 30;  // bytes of one call

}  // namespace

File File::open(const std::string& path) {
    const HANDLE file = CreateFileW(wide(path).c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr,
                                    OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
    if (file == INVALID_HANDLE_VALUE) fail("cannot open", path);
    return File(intptr_t(file), path);
}

File File::create(const std::string& path) {
    const HANDLE file =
        CreateFileW(wide(path).c_str(), GENERIC_WRITE, 0, nullptr, CREATE_ALWAYS, FILE_ATTRIBUTE_NORMAL, nullptr);
    if (file == INVALID_HANDLE_VALUE) fail("cannot write", path);
    return File(intptr_t(file), path);
}

File File::unnamed(const std::string& folder) {
    wchar_t name[MAX_PATH];
    if (!GetTempFileNameW(wide(folder).c_str(), L"fb", 0, name)) fail("cannot make a file in", folder);
    const HANDLE file = CreateFileW(name, GENERIC_READ | GENERIC_WRITE, 0, nullptr, CREATE_ALWAYS,
                                    FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE, nullptr);
    if (file == INVALID_HANDLE_VALUE) fail("cannot make a file in", folder);
    return File(intptr_t(file), "a file in " + folder);
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
    if (mapped_) UnmapViewOfFile(mapped_);
    if (handle_ != -1) CloseHandle(HANDLE(handle_));
}

int64_t File::size() const {
    LARGE_INTEGER bytes;
    if (!GetFileSizeEx(HANDLE(handle_), &bytes)) fail("cannot read", path_);
    return bytes.QuadPart;
}

void File::read(int64_t offset, void* into, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
        OVERLAPPED place = at(offset + int64_t(done));
        DWORD moved = 0;
        if (!ReadFile(HANDLE(handle_), static_cast<char*>(into) + done,
                      DWORD(bytes - done < kMost ? bytes - done : kMost), &moved, &place) ||
            !moved)
            fail("cannot read", path_);
        done += moved;
    }
}

void File::write(int64_t offset, const void* from, size_t bytes) const {
    for (size_t done = 0; done < bytes;) {
        OVERLAPPED place = at(offset + int64_t(done));
        DWORD moved = 0;
        if (!WriteFile(HANDLE(handle_), static_cast<const char*>(from) + done,
                       DWORD(bytes - done < kMost ? bytes - done : kMost), &moved, &place))
            fail("cannot write", path_);
        done += moved;
    }
}

void File::extend(int64_t bytes) const {
    LARGE_INTEGER end;
    end.QuadPart = bytes;
    if (!SetFilePointerEx(HANDLE(handle_), end, nullptr, FILE_BEGIN) || !SetEndOfFile(HANDLE(handle_)))
        fail("cannot write", path_);
}

void File::sync() const {
    if (!FlushFileBuffers(HANDLE(handle_))) fail("cannot write", path_);
}

std::pair<int64_t, int64_t> File::stamp() const {
    FILETIME at;
    if (!GetFileTime(HANDLE(handle_), nullptr, nullptr, &at)) fail("cannot read", path_);
    return {size(), int64_t(uint64_t(at.dwHighDateTime) << 32 | at.dwLowDateTime)};
}

const uint8_t* File::map() {
    if (mapped_) return static_cast<const uint8_t*>(mapped_);
    const HANDLE section = CreateFileMappingW(HANDLE(handle_), nullptr, PAGE_READONLY, 0, 0, nullptr);
    if (!section) fail("cannot map", path_);
    mapped_ = MapViewOfFile(section, FILE_MAP_READ, 0, 0, 0);
    CloseHandle(section);
    if (!mapped_) fail("cannot map", path_);
    mapped_bytes_ = size_t(size());
    return static_cast<const uint8_t*>(mapped_);
}

void replace(const std::string& path, const std::string& by) {
    if (!MoveFileExW(wide(by).c_str(), wide(path).c_str(), MOVEFILE_REPLACE_EXISTING)) fail("cannot replace", path);
}

void remove_file(const std::string& path) { DeleteFileW(wide(path).c_str()); }

}  // namespace fb
