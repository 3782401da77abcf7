#include <map>
#include <mutex>

#include "bindings/arrays.h"
#include "core/thread_pool.h"
#include "host/faults.h"
#include "host/meter.h"
#include "host/pager.h"

namespace fb {

std::atomic<bool> profiling{false};

namespace {

// More than any machine has CPUs, and few enough for a system's limits: a thread takes a stack and a process number.
constexpr int kMaxThreads = 1024;

struct ProfileEntry {
    int64_t calls = 0;
    double seconds = 0, flops = 0;
};
using Profile = std::map<std::string, ProfileEntry>;

std::mutex profile_lock;
Profile profile_table;

void profile(bool on) {
    const std::lock_guard<std::mutex> lock(profile_lock);
    profiling = on;
    if (on) profile_table.clear();
}

nb::dict profile_report() {
    const Profile table = [] {  // a copy, because Python may run other threads while the report is made
        const std::lock_guard<std::mutex> lock(profile_lock);
        return profile_table;
    }();
    nb::dict report;
    for (const auto& [name, entry] : table)
        report[name.c_str()] = nb::make_tuple(entry.calls, entry.seconds, entry.flops);
    return report;
}

using ByteRange = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<std::string> available() {
    std::vector<std::string> names;
    for (const Ops* table : available_ops()) names.emplace_back(table->name);
    return names;
}

void use(const std::string& name) {
    for (const Ops* table : available_ops())
        if (name == table->name) return use_ops(table);
    refuse("kernels for '" + name + "' are not available on this machine");
}

std::pair<int64_t, int64_t> pair_of(const MemoryUse& use) { return {use.footprint, use.rss}; }

}  // namespace

void add_to_profile(const char* name, double seconds, double flops) {
    const std::lock_guard<std::mutex> lock(profile_lock);
    ProfileEntry& entry = profile_table[name];
    entry.calls++;
    entry.seconds += seconds;
    entry.flops += flops;
}

void bind_runtime(nb::module_& m) {
    m.def("available", &available, "Names of the kernel sets this CPU runs, slowest first");
    m.def("use", &use, nb::arg("name"));
    m.def("current", [] { return std::string(ops().name); });
    m.def("threads", &threads);
    m.attr("MAX_THREADS") = kMaxThreads;
    m.def(
        "set_threads",
        [](int count) {
            if (count < 1 || count > kMaxThreads) refuse("threads must be 1 to " + std::to_string(kMaxThreads));
            set_threads(count);
        },
        nb::arg("count"));
    m.def("profile", &profile, nb::arg("on"), "Begin (with an empty table) or end timing every operation");
    m.def("profile_report", &profile_report, "{operation: (calls, seconds, floating-point operations)}");
    m.def("memory_now", [] { return pair_of(memory_now()); }, "(footprint, resident) bytes of this process");
    m.def("meter_start", &meter_start, nb::call_guard<nb::gil_scoped_release>());
    m.def("meter_peak", [] { return pair_of(meter_peak()); }, "(footprint, resident) peaks in bytes since meter_start");
    m.def("meter_stop", &meter_stop, nb::call_guard<nb::gil_scoped_release>());
    m.def("scratch_peak", &scratch_peak, "Most bytes of scratch that a thread asked for since the last call of this");
    nb::class_<MapGuard>(m, "MapGuard",
                         "While it exists, pages of these mapped bytes that are no longer there read as zeros.")
        .def(
            "__init__", [](MapGuard* self, ByteRange range) { new (self) MapGuard(range.data(), range.size()); },
            nb::arg("range"))
        .def_prop_ro("lost", &MapGuard::lost, "The number of pages found missing so far")
        .def("close", &MapGuard::close, "End the guard. The number of lost pages stays");
    nb::class_<ReadAhead>(m, "ReadAhead",
                          "A thread that brings bytes of files into the page cache, once it is asked to.")
        .def(nb::init<>())
        .def(
            "map", [](ReadAhead& self, ByteRange range) { self.map(range.data(), range.size()); }, nb::arg("range"),
            "Have these mapped bytes read")
        .def(
            "file",
            [](ReadAhead& self, int file, int64_t offset, int64_t bytes) {
                product({offset}, "offset");
                product({bytes}, "bytes");
                self.file(file, offset, bytes);
            },
            nb::arg("file"), nb::arg("offset"), nb::arg("bytes"),
            "Have this part of an open file read, in large pieces")
        .def("close", &ReadAhead::close, nb::call_guard<nb::gil_scoped_release>(),
             "End the thread. What was not begun is forgotten; a later request starts another thread");
    m.def(
        "drop_pages", [](ByteRange range) { drop_pages(range.data(), range.size()); }, nb::arg("range"),
        "Unmap these read-only mapped bytes' pages until they are touched again");
}

}  // namespace fb
