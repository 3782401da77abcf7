#include "host/memory.h"

#include <mach/mach.h>
#include <sys/resource.h>

namespace fb {

MemoryUse memory_now() {
    task_vm_info_data_t info;
    mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
    if (task_info(mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&info), &count) != KERN_SUCCESS)
        return {};
    return {int64_t(info.phys_footprint), int64_t(info.resident_size)};
}

MemoryUse memory_sample() { return memory_now(); }

int64_t peak_rss() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return int64_t(usage.ru_maxrss);
}

}  // namespace fb
