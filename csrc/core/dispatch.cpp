#include "core/dispatch.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
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
struct Cpu {
    bool avx2, avx512, avx512_bf16;
};

bool bit(unsigned word, int at) { return word >> at & 1; }

// Reads the CPU's own report. The compilers' __builtin_cpu_supports is part of their run-time libraries, and answers
// "no" to everything if a library lacks it. Instructions count only if the system also saves their registers for each
// thread, which XCR0 reports.
Cpu read_cpu() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    __get_cpuid(1, &eax, &ebx, &ecx, &edx);
    const bool avx = bit(ecx, 28), fma = bit(ecx, 12), f16c = bit(ecx, 29), xgetbv = bit(ecx, 27);
    if (!avx || !xgetbv || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return {};
    const bool avx2 = bit(ebx, 5) && fma && f16c;
    const bool avx512 = bit(ebx, 16) && bit(ebx, 17) && bit(ebx, 30) && bit(ebx, 31);  // F, DQ, BW, VL
    const bool vnni = bit(ecx, 11);
    __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx);  // all zeros where the CPU has no such leaf
    const bool bf16 = bit(eax, 5);

    unsigned kept, high;
    __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
    const auto keeps = [kept](unsigned state) { return (kept & state) == state; };
    constexpr unsigned kYmm = 0x6;
#if defined(__APPLE__)
    constexpr unsigned kZmm = kYmm;  // XCR0 does not report AVX-512's registers before a thread's first use of them
#else
    constexpr unsigned kZmm = kYmm | 0xe0;
#endif
    Cpu found;
    found.avx2 = avx2 && keeps(kYmm);
    found.avx512 = avx512 && found.avx2 && keeps(kZmm);
    found.avx512_bf16 = found.avx512 && bf16 && vnni;
    return found;
}

const Cpu& cpu() {
    static const Cpu found = read_cpu();
    return found;
}

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
    if (cpu().avx2) tables.push_back(avx2_ops());
#if defined(FB_AVX512)
    if (cpu().avx512) tables.push_back(avx512_ops());
    if (cpu().avx512_bf16) tables.push_back(avx512bf16_ops());
#endif
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
