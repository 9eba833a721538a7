#include <hoplite/hoplite.hpp>
#include <iostream>

int main() {
    hoplite::Node node({.capacity = 64 * hoplite::MiB});
    auto hp = node.client();
    auto state = hp.create<double>({100, 10}, {.name = "state/1"});  // memory of the store
    for (double& value : state) value = 0.5;
    auto ref = state.seal();
    std::cout << ref << " has " << hp.locations(ref).size() << " copy\n";
}
