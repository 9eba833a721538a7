// The verbs that return a `Result`, which is std::expected if the compiler has it. Compiled as C++20 and as C++23.

#include "support.hpp"

#if HOPLITE_HAS_EXPECTED
static_assert(std::same_as<hoplite::Result<int>, std::expected<int, hoplite::Error>>);
#endif

TEST(Results, verbs_return_values_or_errors) {
    const auto node = hoplite::Node::try_start({.capacity = 64 * hoplite::MiB, .socket = fresh(".sock")});
    ASSERT_TRUE(node.has_value()) << node.error().what();
    const auto client = node->try_client();
    ASSERT_TRUE(client);
    const auto ref = client->try_put(numbers(LARGE), {.name = "object/1"});
    ASSERT_TRUE(ref);
    const auto view = client->try_get<float>(*ref, {.timeout = SOON});
    ASSERT_TRUE(view);
    same(*view, numbers(LARGE));
    std::vector<float> out(LARGE);
    EXPECT_EQ(*client->try_get_into(*ref, out, {.timeout = SOON}), 4 * LARGE);
    auto buffer = client->try_create<float>(LARGE);
    ASSERT_TRUE(buffer);
    std::ranges::copy(out, buffer->begin());
    const auto sealed = buffer->try_seal();
    ASSERT_TRUE(sealed);
    EXPECT_EQ(client->try_wait({*ref, *sealed}, {.timeout = SOON})->ready.size(), 2U);
    const auto total = client->try_reduce({*ref, *sealed});
    ASSERT_TRUE(total);
    EXPECT_EQ(client->try_inputs(*total, {.timeout = SOON})->size(), 2U);
    EXPECT_EQ(client->try_lost(*total)->size(), 0U);
    EXPECT_EQ(client->try_latest("object/")->number(), 1U);
    EXPECT_EQ(client->try_locations(*ref)->size(), 1U);
    EXPECT_TRUE(client->try_reserve());
    EXPECT_TRUE(client->try_lease(*ref));
    EXPECT_TRUE(client->try_status());
    EXPECT_TRUE(client->try_del(*ref));
    EXPECT_EQ(client->put_async("x").try_get().has_value(), true);
}

TEST(Results, errors_have_code_name_and_message) {
    const hoplite::Node node = lone_node();
    const hoplite::Client client = node.client();
    const auto missing = client.try_get("missing", {.timeout = 0s});
    ASSERT_FALSE(missing.has_value());
    EXPECT_EQ(missing.error().code(), HOPLITE_TIMEOUT);
    EXPECT_STREQ(missing.error().name(), "HOPLITE_TIMEOUT");
    EXPECT_NE(std::string(missing.error().what()).find("missing"), std::string::npos);
    fails<hoplite::Timeout>([&] { missing.error().raise(); }, {"missing"});
    EXPECT_EQ(client.try_put("x", {.replicas = 0}).error().code(), HOPLITE_INVALID_ARGUMENT);
    EXPECT_EQ(client.try_reduce({"a"}, "median").error().code(), HOPLITE_UNKNOWN_OP);
    EXPECT_EQ(client.try_create<float>({2, -1}).error().code(), HOPLITE_INVALID_ARGUMENT);
    EXPECT_EQ(hoplite::try_connect(fresh(".sock"), {.timeout = 0s}).error().code(), HOPLITE_CONNECT_ERROR);
    EXPECT_EQ(hoplite::Node::try_start({.capacity = 0}).error().code(), HOPLITE_INVALID_ARGUMENT);
    EXPECT_EQ(hoplite::Ref("no number").try_number().error().code(), HOPLITE_INVALID_ARGUMENT);
    EXPECT_EQ(hoplite::Ref("policy/17").number(), 17U);
    EXPECT_EQ(hoplite::Ref("policy/0017").number(), 17U);
    for (const char* text : {"policy/", "policy/x1", "17", "policy/99999999999999999999", "policy/-1"}) {
        fails<hoplite::InvalidArgument>([&] { (void)hoplite::Ref(text).number(); }, {text});
    }
}

TEST(Results, a_timeout_that_is_not_valid_is_an_error) {
    const hoplite::Node node = lone_node();
    const hoplite::Client client = node.client();
    for (const double seconds : {-1.0, -0.001, std::nan("")}) {
        const std::chrono::duration<double> timeout(seconds);
        EXPECT_EQ(client.try_get("x", {.timeout = timeout}).error().code(), HOPLITE_INVALID_ARGUMENT);
        EXPECT_EQ(client.try_status({.timeout = timeout}).error().code(), HOPLITE_INVALID_ARGUMENT);
        EXPECT_EQ(client.get_async("x", {.timeout = timeout}).try_get().error().code(), HOPLITE_INVALID_ARGUMENT);
    }
    EXPECT_TRUE(client.try_status({.timeout = std::chrono::duration<double>(1e300)}));
}
