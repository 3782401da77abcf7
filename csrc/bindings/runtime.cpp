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
    m.def("set_threads", &set_threads, nb::arg("count"));
    m.def("profile", &profile, nb::arg("on"), "Begin (with an empty table) or end timing every operation");
    m.def("profile_report", &profile_report, "{operation: (calls, seconds, floating-point operations)}");
    m.def("memory_now", [] { return pair_of(memory_now()); }, "(footprint, resident) bytes of this process");
    m.def("meter_start", &meter_start, nb::call_guard<nb::gil_scoped_release>());
    m.def("meter_peak", [] { return pair_of(meter_peak()); }, "(footprint, resident) peaks in bytes since meter_start");
    m.def("meter_stop", &meter_stop, nb::call_guard<nb::gil_scoped_release>());
    m.def("scratch_peak", &scratch_peak, "Most bytes of scratch that a thread asked for since the last call of this");
    m.def("watch_maps", &watch_maps,
          "Have pages of mapped files that are no longer there read as zeros, and counted; calls nest");
    m.def("unwatch_maps", &unwatch_maps);
    m.def("lost_pages", &lost_pages, "Pages of mapped files found missing since the process began");
    nb::class_<ReadAhead>(m, "ReadAhead",
                          "A thread that brings bytes of files into the page cache, once it is asked to.")
        .def(nb::init<>())
        .def(
            "map", [](ReadAhead& self, ByteRange range) { self.map(range.data(), range.size()); }, nb::arg("range"),
            "Have these mapped bytes read")
        .def("file", &ReadAhead::file, nb::arg("file"), nb::arg("offset"), nb::arg("bytes"),
             "Have this part of an open file read, in large pieces")
        .def("close", &ReadAhead::close, nb::call_guard<nb::gil_scoped_release>(),
             "End the thread. What was not begun is forgotten; a later request starts another thread");
    m.def(
        "drop_pages", [](ByteRange range) { drop_pages(range.data(), range.size()); }, nb::arg("range"),
        "Unmap these read-only mapped bytes' pages until they are touched again");
}

}  // namespace fb
