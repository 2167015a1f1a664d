"""Prints C++ that takes a compiler memory for templates: make_cpp.py TYPES"""
import sys

print("""#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>
""")
for n in range(int(sys.argv[1])):
    print(f"""struct T{n} {{
    long key; std::string name; std::vector<double> values;
    bool operator<(const T{n} &that) const {{ return std::tie(key, name) < std::tie(that.key, that.name); }}
}};
double use{n}(long count) {{
    std::map<std::string, std::shared_ptr<T{n}>> by_name;
    std::unordered_map<long, std::vector<T{n}>> by_key;
    std::vector<std::variant<long, std::string, T{n}>> any;
    for (long i = 0; i < count; i++) {{
        T{n} one{{i * {n + 3} % 101, std::to_string(i), {{1.0 * i, {n}.5}}}};
        by_name[one.name] = std::make_shared<T{n}>(one);
        by_key[one.key % 7].push_back(one);
        if (i % 2) any.push_back(std::move(one)); else any.push_back(i);
    }}
    std::function<double(const T{n} &)> sum = [&](const T{n} &of) {{
        return std::accumulate(of.values.begin(), of.values.end(), double(of.key));
    }};
    double total = 0;
    for (auto &[key, list] : by_key) {{
        std::stable_sort(list.begin(), list.end());
        for (auto &one : list) total += sum(one) + key;
    }}
    for (auto &[name, one] : by_name) total += sum(*one) + name.size();
    for (auto &one : any) total += std::visit([&](const auto &held) -> double {{
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, T{n}>) return sum(held); else return 1;
    }}, one);
    return total;
}}""")
