// Sixteen threads that build, sort and walk containers of their own and read those of their neighbours.
// threads MEGABYTES
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

int main(int argc, char **argv) {
    const int threads = 16;
    const size_t count = strtoul(argc > 1 ? argv[1] : "160", nullptr, 10) * (1 << 20) / threads / 24;
    std::vector<std::vector<uint64_t>> arrays(threads);
    std::vector<uint64_t> results(threads);
    auto all = [&](auto body) {
        std::vector<std::thread> running;
        for (int n = 0; n < threads; n++) running.emplace_back(body, n);
        for (auto &thread : running) thread.join();
    };
    all([&](int n) {
        std::mt19937_64 random(n);
        std::map<uint64_t, std::string> tree;
        for (size_t i = 0; i < count / 6; i++) tree[random()] = std::string(i % 50, 'a' + n);
        for (size_t i = 0; i < count; i++) arrays[n].push_back(random());
        std::sort(arrays[n].begin(), arrays[n].end());
        for (auto &[key, text] : tree) results[n] = results[n] * 31 + key + text.size();
    });
    all([&](int n) {
        uint64_t sum = 0;
        for (uint64_t value : arrays[(n + 1) % threads]) sum = sum * 131 + value;
        results[n] ^= sum;
    });
    for (int n = 0; n < threads; n++) printf("%d %016lx\n", n, results[n]);
}
