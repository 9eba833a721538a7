// Handles and structs: moved-from, closed and stale objects, double release, sizes of options, null pointers.

#include <cstring>

#include "support.hpp"

namespace {

class Lifetimes : public testing::Test {
protected:
    hoplite::Node node = lone_node();
    hoplite::Client client = node.client();

    // What a test forgets to release.
    hoplite_client left{};
    hoplite_pending left_pending{};
};

std::string message() { return hoplite_last_error(); }

}  // namespace

TEST_F(Lifetimes, moved_objects_name_themselves) {
    const hoplite::Client moved_to = std::move(client);
    fails<hoplite::InvalidHandle>([&] { client.put("x"); }, {"client", "moved"});
    fails<hoplite::InvalidHandle>([&] { client.put_async("x").get(); }, {"client", "moved"});
    EXPECT_FALSE(client);
    EXPECT_TRUE(client.closed());
    client.close();
    auto view = moved_to.get<float>(moved_to.put(numbers(LARGE)), {.timeout = SOON});
    auto other = std::move(view);
    EXPECT_FALSE(view);
    EXPECT_TRUE(other);
    fails<hoplite::InvalidHandle>([&] { (void)view.size(); }, {"view", "moved"});
    fails<hoplite::InvalidHandle>([&] { (void)view[0]; }, {"view", "moved"});
    fails<hoplite::InvalidHandle>([&] { moved_to.put(view); }, {"view"});
    fails<hoplite::InvalidHandle>([&] { (void)std::move(view).to_dlpack(); }, {"view"});
    other.release();
    other.release();
    fails<hoplite::InvalidHandle>([&] { (void)other.shape(); }, {"view", "released"});
    auto buffer = moved_to.create(LARGE);
    auto target = std::move(buffer);
    fails<hoplite::InvalidHandle>([&] { (void)buffer.data(); }, {"buffer", "moved"});
    fails<hoplite::InvalidHandle>([&] { buffer.seal(); }, {"buffer", "moved"});
    fails<hoplite::InvalidHandle>([&] { buffer.seal_async().get(); }, {"buffer", "moved"});
    target = moved_to.create(SMALL);
    EXPECT_EQ(target.size(), SMALL);
    hoplite::Lease lease = moved_to.lease("x");
    const hoplite::Lease leased = std::move(lease);
    EXPECT_TRUE(lease.released());
    EXPECT_FALSE(leased.released());
    hoplite::Node home = std::move(node);
    fails<hoplite::NodeDown>([&] { (void)node.client(); }, {"node", "moved"});
    EXPECT_TRUE(node.closed());
    EXPECT_TRUE(node.close());
    home.close(1s);
    home.close(1s);
    EXPECT_TRUE(home.closed());
    fails<hoplite::NodeDown>([&] { (void)home.client(); }, {"node", "closed"});
    fails<hoplite::NodeDown>([&] { moved_to.put("x"); });
}

TEST_F(Lifetimes, copies_of_a_client_share_it) {
    {
        hoplite::Client copy = client;
        const hoplite::Client again = copy;
        copy = again;
        EXPECT_EQ(copy.raw().id, client.raw().id);
    }
    client.put("x", {.name = "kept"});
    hoplite::Client copy = client;
    copy.close();
    EXPECT_TRUE(client.closed());
    fails<hoplite::ClientClosed>([&] { client.put("x"); }, {"closed"});
}

TEST_F(Lifetimes, views_outlive_everything) {
    auto view = client.get<float>(client.put(numbers(LARGE)), {.timeout = SOON});
    auto small = client.get<float>(client.put(numbers(SMALL)), {.timeout = SOON});
    client.close();
    client = hoplite::Client();
    node.close(0s);
    same(view, numbers(LARGE));
    same(small, numbers(SMALL));
}

TEST_F(Lifetimes, a_call_keeps_its_client_open) {
    auto pending = node.client().get_async<char>("later");
    client.put("x", {.name = "later"});
    EXPECT_EQ(pending.get().text(), "x");
    auto buffer = node.client().create(LARGE);
    EXPECT_EQ(client.get(buffer.seal(), {.timeout = SOON}).nbytes(), 4 * LARGE);
}

TEST_F(Lifetimes, handles_are_released_once) {
    hoplite_client raw{};
    ASSERT_EQ(hoplite_connect(node.socket()->c_str(), nullptr, 10, &raw), HOPLITE_OK);
    EXPECT_EQ(hoplite_client_close(raw), HOPLITE_OK);
    EXPECT_EQ(hoplite_client_close(raw), HOPLITE_INVALID_HANDLE);
    EXPECT_NE(message().find("client"), std::string::npos) << message();
    hoplite_ref ref{};
    EXPECT_EQ(hoplite_reserve(raw, nullptr, 1, &ref), HOPLITE_CLIENT_CLOSED);
    EXPECT_EQ(hoplite_client_close(hoplite_client{}), HOPLITE_INVALID_HANDLE);
    EXPECT_EQ(hoplite_client_close(hoplite_client{0xDEAD'BEEF'0000'0001}), HOPLITE_INVALID_HANDLE);

    const hoplite_client own = client.raw();
    ASSERT_EQ(hoplite_reserve(own, nullptr, 1, &ref), HOPLITE_OK);
    client.put("x", {.name = ref.text});
    hoplite_view view{};
    view.size = sizeof view;
    ASSERT_EQ(hoplite_get(own, ref.text, nullptr, 10, &view), HOPLITE_OK);
    hoplite_view copy = view;
    EXPECT_EQ(hoplite_view_release(&view), HOPLITE_OK);
    EXPECT_EQ(view.id, 0U);
    EXPECT_EQ(hoplite_view_release(&view), HOPLITE_INVALID_HANDLE);
    EXPECT_EQ(hoplite_view_release(&copy), HOPLITE_INVALID_HANDLE);
    EXPECT_NE(message().find("view"), std::string::npos) << message();

    hoplite_buffer buffer{};
    buffer.size = sizeof buffer;
    const std::uint64_t length = 3;
    ASSERT_EQ(hoplite_create(own, "float32", 1, &length, nullptr, 1, &buffer), HOPLITE_OK);
    hoplite_buffer stale = buffer;
    EXPECT_EQ(hoplite_seal(&buffer, 1, nullptr), HOPLITE_OK);
    EXPECT_EQ(buffer.id, 0U);
    EXPECT_EQ(hoplite_seal(&stale, 1, nullptr), HOPLITE_INVALID_HANDLE);
    EXPECT_EQ(hoplite_discard(&stale), HOPLITE_INVALID_HANDLE);

    hoplite_lease lease{};
    ASSERT_EQ(hoplite_lease_acquire(own, "leased", 1, &lease), HOPLITE_OK);
    EXPECT_EQ(hoplite_lease_release(lease), HOPLITE_OK);
    EXPECT_EQ(hoplite_lease_release(lease), HOPLITE_INVALID_HANDLE);

    hoplite_pending pending{};
    ASSERT_EQ(hoplite_status_async(own, 1, &pending), HOPLITE_OK);
    hoplite_text text{};
    text.size = sizeof text;
    EXPECT_EQ(hoplite_pending_take_ref(pending, &ref), HOPLITE_INVALID_ARGUMENT);
    EXPECT_EQ(hoplite_pending_take_text(pending, &text), HOPLITE_OK);
    EXPECT_EQ(hoplite_pending_take_text(pending, &text), HOPLITE_INVALID_HANDLE);
    EXPECT_EQ(hoplite_pending_cancel(pending), HOPLITE_INVALID_HANDLE);
    EXPECT_EQ(hoplite_pending_wait(pending, 1), HOPLITE_INVALID_HANDLE);
    EXPECT_EQ(hoplite_text_release(&text), HOPLITE_OK);
    EXPECT_EQ(hoplite_text_release(&text), HOPLITE_INVALID_HANDLE);
}

TEST_F(Lifetimes, handles_of_another_type_are_rejected) {
    hoplite_queue queue{};
    ASSERT_EQ(hoplite_queue_new(&queue), HOPLITE_OK);
    hoplite_ref ref{};
    EXPECT_EQ(hoplite_reserve(hoplite_client{queue.id}, nullptr, 1, &ref), HOPLITE_INVALID_HANDLE);
    EXPECT_EQ(hoplite_lease_release(hoplite_lease{client.raw().id}), HOPLITE_INVALID_HANDLE);
    EXPECT_EQ(hoplite_queue_close(queue), HOPLITE_OK);
}

TEST_F(Lifetimes, options_of_an_older_size_take_defaults) {
    // An older program knows the fields up to `replicas` alone. What follows in its memory is not read.
    hoplite_put_options options;
    std::memset(&options, 0xFF, sizeof options);
    options.size = offsetof(hoplite_put_options, retain);
    options.name = "old";
    options.replicas = 1;
    hoplite_array value{};
    value.data = "bytes";
    value.nbytes = 5;
    hoplite_ref ref{};
    EXPECT_EQ(hoplite_put(client.raw(), &value, &options, 10, &ref), HOPLITE_OK) << message();
    EXPECT_STREQ(ref.text, "old");
    options = {};
    EXPECT_EQ(hoplite_put(client.raw(), &value, &options, 10, &ref), HOPLITE_INVALID_ARGUMENT);
    EXPECT_NE(message().find("size of the hoplite_put_options is 0"), std::string::npos) << message();
    // A newer program passes fields that this library lacks: they must be 0.
    struct Newer {
        hoplite_put_options known;
        std::uint64_t more;
    } newer{};
    newer.known.size = sizeof newer;
    EXPECT_EQ(hoplite_put(client.raw(), &value, &newer.known, 10, &ref), HOPLITE_OK) << message();
    newer.more = 1;
    EXPECT_EQ(hoplite_put(client.raw(), &value, &newer.known, 10, &ref), HOPLITE_INVALID_ARGUMENT);
    // No version of the library had a view without its shape.
    hoplite_view view{};
    view.size = offsetof(hoplite_view, shape);
    EXPECT_EQ(hoplite_get(client.raw(), "old", nullptr, 10, &view), HOPLITE_INVALID_ARGUMENT);
    EXPECT_NE(message().find("hoplite_view"), std::string::npos) << message();
}

TEST_F(Lifetimes, null_pointers_are_errors_that_name_the_parameter) {
    hoplite_ref ref{};
    const hoplite_client raw = client.raw();
    EXPECT_EQ(hoplite_put(raw, nullptr, nullptr, 1, &ref), HOPLITE_INVALID_ARGUMENT);
    EXPECT_NE(message().find("value"), std::string::npos) << message();
    EXPECT_EQ(hoplite_get(raw, "x", nullptr, 1, nullptr), HOPLITE_INVALID_ARGUMENT);
    EXPECT_NE(message().find("view"), std::string::npos) << message();
    EXPECT_EQ(hoplite_get_async(raw, nullptr, nullptr, 1, nullptr), HOPLITE_INVALID_ARGUMENT);
    EXPECT_EQ(hoplite_node_start(nullptr, nullptr), HOPLITE_INVALID_ARGUMENT);
    EXPECT_EQ(hoplite_view_release(nullptr), HOPLITE_INVALID_ARGUMENT);
    EXPECT_EQ(hoplite_delete(raw, nullptr, 1, 1), HOPLITE_INVALID_ARGUMENT);
    EXPECT_NE(message().find("refs"), std::string::npos) << message();
    hoplite_array array{};
    array.nbytes = 5;
    EXPECT_EQ(hoplite_put(raw, &array, nullptr, 1, &ref), HOPLITE_INVALID_ARGUMENT);
    EXPECT_NE(message().find("data"), std::string::npos) << message();
    EXPECT_EQ(hoplite_get(raw, "\xFF\xFE", nullptr, 1, nullptr), HOPLITE_INVALID_ARGUMENT);
    EXPECT_STREQ(hoplite_code_name(HOPLITE_TIMEOUT), "HOPLITE_TIMEOUT");
    EXPECT_STREQ(hoplite_version(), HOPLITE_VERSION);
}

TEST_F(Lifetimes, leaked_handles_harm_nobody) {
    std::thread leaking([this] {
        hoplite_client raw{};
        ASSERT_EQ(hoplite_connect(node.socket()->c_str(), nullptr, 10, &raw), HOPLITE_OK);
        hoplite_pending pending{};
        EXPECT_EQ(hoplite_get_async(raw, "never", nullptr, HOPLITE_NO_TIMEOUT, &pending), HOPLITE_OK);
        // The client stays open: this program forgets it.
        left = raw;
        left_pending = pending;
    });
    leaking.join();
    EXPECT_EQ(client.get<char>(client.put("x"), {.timeout = SOON}).text(), "x");
    node.close(0s);
    EXPECT_EQ(hoplite_pending_take_view(left_pending, nullptr), HOPLITE_INVALID_ARGUMENT);
    EXPECT_EQ(hoplite_pending_cancel(left_pending), HOPLITE_OK);
    EXPECT_EQ(hoplite_client_close(left), HOPLITE_OK);
}
