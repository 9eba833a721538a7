// A program of a user: puts an array and gets it. Prints the version of the library that it runs with.
#include <algorithm>
#include <hoplite/hoplite.hpp>
#include <iostream>
#include <vector>

using namespace std::chrono_literals;

int main() {
    const std::vector<float> numbers{1, 2, 3, 4};
    hoplite::Node node({.capacity = 16 << 20});
    auto hp = node.client();
    auto view = hp.get<float>(hp.put(numbers, {.timeout = 30s}), {.timeout = 30s});
    if (!std::ranges::equal(view.span(), numbers)) return 2;
    std::cout << hoplite_version() << "\n";
}
