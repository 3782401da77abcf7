#include "bindings/arrays.h"
#include "core/thread_pool.h"
#include "host/meter.h"
#include "host/pager.h"

namespace fb {

bool profiling = false;

std::map<std::string, ProfileEntry>& profile_table() {
    static std::map<std::string, ProfileEntry> table;
    return table;
}

namespace {

void profile(bool on) {
    profiling = on;
    if (on) profile_table().clear();
}

nb::dict profile_report() {
    nb::dict report;
    for (const auto& [name, entry] : profile_table())
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

std::pair<int64_t, int64_t> as_pair(const MemoryUse& use) { return {use.footprint, use.rss}; }

}  // namespace

void bind_runtime(nb::module_& m) {
    m.def("available", &available, "Names of the kernel sets this CPU runs, slowest first");
    m.def("use", &use, nb::arg("name"));
    m.def("current", [] { return std::string(ops().name); });
    m.def("threads", &threads);
    m.def("set_threads", &set_threads, nb::arg("count"));
    m.def("profile", &profile, nb::arg("on"), "Begin (with an empty table) or end timing every operation");
    m.def("profile_report", &profile_report, "{operation: (calls, seconds, floating-point operations)}");
    m.def("memory_now", [] { return as_pair(memory_now()); }, "(footprint, resident) bytes of this process");
    m.def("meter_start", &meter_start, nb::call_guard<nb::gil_scoped_release>());
    m.def("meter_peak", [] { return as_pair(meter_peak()); }, "(footprint, resident) peaks in bytes since meter_start");
    m.def("meter_stop", &meter_stop, nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "read_ahead", [](ByteRange range) { read_ahead(range.data(), range.size()); }, nb::arg("range"),
        "Have a helper thread read these mapped bytes into the page cache");
    m.def("read_through", &read_through, nb::arg("file"), nb::arg("offset"), nb::arg("bytes"),
          "Have a helper thread read this part of an open file into the page cache, in large pieces");
    m.def(
        "drop_pages", [](ByteRange range) { drop_pages(range.data(), range.size()); }, nb::arg("range"),
        "Unmap these read-only mapped bytes' pages until they are touched again");
    m.def("stop_read_ahead", &stop_read_ahead, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace fb
