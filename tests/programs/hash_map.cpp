// A hash map of strings to strings: filled, looked up at random, a part deleted, filled again: hash_map COUNT
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <unordered_map>

static uint64_t state = 88172645463325252ull;
static uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

int main(int argc, char **argv) {
    const uint64_t count = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1000000;
    std::unordered_map<std::string, std::string> map;
    uint64_t sum = 0;
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < count; i++) {
            const uint64_t key = next() % (2 * count);
            map["key:" + std::to_string(key)] = "a value of some length, number " + std::to_string(key * i);
        }
        for (uint64_t i = 0; i < count; i++) {
            const auto found = map.find("key:" + std::to_string(next() % (2 * count)));
            if (found != map.end()) sum = sum * 31 + found->second.size() + found->second.back();
        }
        for (uint64_t i = 0; i < count / 4; i++) map.erase("key:" + std::to_string(next() % (2 * count)));
    }
    printf("%zu %llu\n", map.size(), (unsigned long long)sum);
}
