#include "core/dispatch.h"

#include <atomic>

#if defined(FB_WITH_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace fb {
namespace {

std::atomic<const Ops*> chosen{nullptr};

#if defined(__x86_64__)
bool cpu_has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool cpu_has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool cpu_has_avx512_bf16() {
    return cpu_has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#if defined(FB_WITH_AMX)
// The tiles' 8 KB are part of a thread's state, which Linux saves only in processes that asked for it.
bool cpu_has_amx_bf16() {
    static const bool granted = [] {
        unsigned a, b, c, d;
        if (!cpu_has_avx512_bf16() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
        const bool bf16 = d >> 22 & 1, tile = d >> 24 & 1;
        constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
        return bf16 && tile && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    }();
    return granted;
}
#endif
#elif defined(__aarch64__)
bool cpu_has_bf16() {
#if defined(__linux__)
    return getauxval(AT_HWCAP2) >> 14 & 1;  // HWCAP2_BF16
#elif defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, nullptr, 0) == 0 && has;
#else
    return false;
#endif
}
#endif

}  // namespace

std::vector<const Ops*> available_ops() {
    std::vector<const Ops*> tables{reference_ops(), portable_ops()};
#if defined(__x86_64__)
    if (cpu_has_avx2()) tables.push_back(avx2_ops());
    if (cpu_has_avx512()) tables.push_back(avx512_ops());
#if defined(FB_WITH_AMX)
    // Before the last, which is chosen: the tiles have been proven in emulation, but never run on the real ones.
    if (cpu_has_amx_bf16()) tables.push_back(amx_bf16_ops());
#endif
    if (cpu_has_avx512_bf16()) tables.push_back(avx512bf16_ops());
#elif defined(__aarch64__)
    if (cpu_has_bf16()) tables.push_back(neon_bf16_ops());
#endif
    return tables;
}

const Ops& ops() {
    const Ops* table = chosen;
    if (!table) chosen = table = available_ops().back();
    return *table;
}

void use_ops(const Ops* table) { chosen = table; }

}  // namespace fb
