#include <hoplite/hoplite.hpp>
#include <iostream>

using namespace std::chrono_literals;

int main() {
    auto hp = hoplite::init();
    auto weights = hp.get<float>("weights/1", {.timeout = 10s});  // a view of shared memory, not a copy
    std::cout << weights.dtype() << " " << weights.shape()[0] << "x" << weights.shape()[1] << "\n";
    std::cout << "last of " << weights.size() << ": " << weights(1, 2) << "\n";
}
