#include <hoplite/hoplite.hpp>
#include <iostream>
#include <vector>

using namespace std::chrono_literals;

int main() {
    auto hp = hoplite::init();
    auto total = hp.reduce({"grad/1", "grad/2", "grad/3"}, "sum", {.count = 2});  // returns at once
    hp.put(std::vector<float>(4, 1.0f), {.name = "grad/1"});
    hp.put(std::vector<float>(4, 2.0f), {.name = "grad/3"});
    std::cout << hp.get<float>(total, {.timeout = 30s})[0] << "\n";
    for (const auto& input : hp.inputs(total)) std::cout << input.text() << "\n";
    hp.del({total, "grad/1", "grad/3"});
}
