// Runs threads concurrently under the thread sanitiser: two jobs that compute in the pool and read their files ahead,
// while others change the number of threads and the table of operations, start and stop the meter, and truncate mapped
// files. The results are checked as well.
//
//   stress_test [rounds]
//
// Exits with 1 after a wrong result.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "core/dispatch.h"
#include "core/thread_pool.h"
#include "host/faults.h"
#include "host/meter.h"
#include "host/pager.h"
#include "host/processors.h"

namespace fb {
namespace {

std::atomic<int> failures{0};

void expect(bool good, const char* what) {
    if (good) return;
    failures++;
    std::printf("FAILED %s\n", what);
}

// A file of ones. At the end only its mapping remains.
class MappedFile {
public:
    explicit MappedFile(size_t floats) : size_(floats * sizeof(float)) {
        const char* folder = std::getenv("TMPDIR");
        std::string path = std::string(folder ? folder : "/tmp") + "/stress_test.XXXXXX";
        file_ = mkstemp(path.data());
        unlink(path.c_str());
        const std::vector<float> ones(floats, 1.0f);
        if (file_ < 0 || write(file_, ones.data(), size_) != ssize_t(size_)) throw std::bad_alloc();
        data_ = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file_, 0);
        if (data_ == MAP_FAILED) throw std::bad_alloc();
    }
    MappedFile(const MappedFile&) = delete;
    ~MappedFile() {
        munmap(data_, size_);
        close(file_);
    }
    const float* data() const { return static_cast<const float*>(data_); }
    size_t size() const { return size_; }
    int file() const { return file_; }
    void cut() { expect(ftruncate(file_, 0) == 0, "cutting a file short"); }

private:
    size_t size_;
    int file_;
    void* data_;
};

// Opens a "model" each round: its weights are read ahead, multiplied in the pool, dropped, and the file closed.
void job(int rounds) {
    constexpr int64_t kTokens = 9, kInputs = 96, kOutputs = 700;
    std::vector<float> x(kTokens * kInputs, 2.0f), out(kTokens * kOutputs);
    for (int round = 0; round < rounds; round++) {
        const MappedFile file(kInputs * kOutputs);
        Matrix w;
        w.data = reinterpret_cast<const uint8_t*>(file.data());
        w.row_bytes = kInputs * sizeof(float);
        w.rows = kOutputs;
        w.cols = kInputs;
        ReadAhead ahead;
        ahead.file(file.file(), 0, int64_t(file.size()));
        ahead.map(file.data(), file.size());
        ops().linear({x.data(), Dtype::f32, kTokens, kInputs, kInputs}, w, nullptr, {}, {},
                     {out.data(), Dtype::f32, kTokens, kOutputs, kOutputs}, false);
        meter_look();
        for (const float value : out)
            if (value != 2.0f * kInputs) return expect(false, "a product");
        drop_pages(file.data(), file.size());
        if (round % 2) ahead.close();
    }
}

// Units of very unequal work with their own scratch, and occasionally one that throws.
void pool(int rounds) {
    for (int round = 0; round < rounds; round++) {
        std::vector<int64_t> sums(41);
        parallel_for(int64_t(sums.size()), [&](int64_t unit) {
            const size_t count = size_t(unit) * 50 + 1;
            int64_t* scratch = static_cast<int64_t*>(thread_scratch(count * sizeof(int64_t)));
            std::iota(scratch, scratch + count, 0);
            sums[size_t(unit)] = std::accumulate(scratch, scratch + count, int64_t(0));
        });
        for (int64_t unit = 0; unit < int64_t(sums.size()); unit++)
            expect(sums[size_t(unit)] == unit * 50 * (unit * 50 + 1) / 2, "a sum in the pool");
        std::vector<int64_t> nested(12);
        parallel_for(3, [&](int64_t unit) {
            parallel_for(4, [&](int64_t inner) { nested[size_t(unit * 4 + inner)] = unit * 4 + inner + 1; });
        });
        expect(std::accumulate(nested.begin(), nested.end(), int64_t(0)) == 78, "units of a unit");
        scratch_peak();
        bool thrown = false;
        try {
            parallel_for(23, [&](int64_t unit) {
                if (unit % 5 == 3) throw std::bad_alloc();
            });
        } catch (const std::bad_alloc&) {
            thrown = true;
        }
        expect(thrown, "a unit that throws");
    }
}

void settings(int rounds) {
    const std::vector<const Ops*> tables = available_ops();
    for (int round = 0; round < rounds; round++) {
        set_threads(1 + round % 4);
        expect(threads() >= 1, "the number of threads");
        use_ops(tables[size_t(round) % tables.size()]);
    }
}

void meter(int rounds) {
    for (int round = 0; round < rounds; round++) {
        meter_start();
        std::vector<char> held(size_t(1 + round % 5) << 20, 1);
        meter_look();
        expect(meter_peak().rss > 0 && memory_now().footprint > 0, "the meter");
        if (round % 3) meter_stop();
    }
    meter_stop();
}

void missing_pages(int rounds) {
    for (int round = 0; round < rounds; round++) {
        MappedFile file(3000);
        MapGuard guard(file.data(), file.size());
        ReadAhead ahead;
        ahead.map(file.data(), file.size());
        expect(file.data()[round] == 1.0f, "a page");
        file.cut();
        ahead.file(file.file(), 0, int64_t(file.size()));
        expect(file.data()[0] == 0.0f && guard.lost() > 0, "a missing page");
        ahead.close();
    }
}

// One read-ahead thread, used and closed by two threads.
void shared_ahead(ReadAhead& ahead, const MappedFile& file, int rounds) {
    for (int round = 0; round < rounds; round++) {
        ahead.file(file.file(), 0, int64_t(file.size()));
        ahead.map(file.data(), file.size());
        if (round % 3 == 0) ahead.close();
    }
}

bool may_run_where(int thread, const cpu_set_t& expected) {
    cpu_set_t found;
    return sched_getaffinity(thread, sizeof found, &found) == 0 && CPU_EQUAL(&found, &expected);
}

// A thread is moved to every processor and keeps its affinity, also a narrow one.
void moving() {
    std::atomic<int> number{0};
    std::atomic<bool> end{false};
    std::thread busy([&] {
        number = this_thread();
        while (!end) {
        }
    });
    while (!number) {
    }
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    const int here = this_processor();
    for (int next = processor_after(here), i = 0; i < 2 * CPU_COUNT(&all); next = processor_after(next), i++) {
        expect(CPU_ISSET(next, &all), "the next processor");
        move_thread(number, next);
        expect(may_run_where(number, all), "the affinity of a thread that was moved");
    }
    while (stands_still(number)) {  // until it gets a processor
    }
    CPU_ZERO(&one);
    CPU_SET(here, &one);
    sched_setaffinity(number, sizeof one, &one);
    move_thread(number, processor_after(here));
    move_thread(number, -1);
    move_thread(number, CPU_SETSIZE - 1);
    expect(may_run_where(number, one), "the affinity of a thread that may not be moved");
    end = true;
    busy.join();
    move_thread(number, here);  // it has ended
}

int run(int rounds) {
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    moving();
    set_threads(3);
    {
        const MappedFile file(1 << 18);
        ReadAhead ahead;
        std::vector<std::thread> all;
        for (const auto body : {job, job, pool, pool, settings, meter, meter, missing_pages, missing_pages})
            all.emplace_back(body, rounds);
        for (int i = 0; i < 2; i++) all.emplace_back([&] { shared_ahead(ahead, file, rounds); });
        for (auto& thread : all) thread.join();
    }
    parallel_for(8, [&](int64_t) { expect(may_run_where(0, all), "the affinity of a thread of the pool"); });
    set_threads(1);
    std::printf("stress_test: %d rounds, %d failures\n", rounds, failures.load());
    return failures ? 1 : 0;
}

}  // namespace
}  // namespace fb

int main(int count, char** arguments) { return fb::run(count > 1 ? std::atoi(arguments[1]) : 100); }
