// A program without exceptions and RTTI: the verbs that return a `Result`. Returns 0.

#include <unistd.h>

#include <cstdio>
#include <future>
#include <hoplite/hoplite.hpp>

static int check(bool holds, const char* what) {
    if (!holds) std::fprintf(stderr, "not so: %s\n", what);
    return holds ? 0 : 1;
}

int main() {
    const std::string socket = "/tmp/hoplite-no-exceptions-" + std::to_string(getpid()) + ".sock";
    auto node = hoplite::Node::try_start({.capacity = 64 * hoplite::MiB, .socket = socket});
    if (!node) {
        std::fprintf(stderr, "%s\n", node.error().what());
        return 1;
    }
    const auto client = node->try_client();
    const std::vector<float> values(50'000, 3);
    const auto ref = client->try_put(values);
    const auto view = client->try_get<float>(*ref);
    const auto other = client->try_get<double>(*ref);
    const auto later = client->get_async<float>(*ref).try_get();
    std::promise<bool> promise;
    client->get_async("never", {.timeout = std::chrono::duration<double>(0)})
        .then([&](hoplite::Result<hoplite::View<>> result) { promise.set_value(result.has_value()); });
    return check(view.has_value() && view->size() == 50'000 && (*view)[49'999] == 3, "the view has the values") +
           check(!other && other.error().code() == HOPLITE_SHAPE_MISMATCH, "another dtype is an error") +
           check(later.has_value(), "an asynchronous call has a result") +
           check(!promise.get_future().get(), "a callback gets the error") +
           check(node->try_close().has_value(), "the node closes");
}
