// The contract of objects: names, deletion, timeouts, wait, latest, leases and reservations.

#include "stage.hpp"

TEST_P(Contract, a_name_works_on_every_node_and_can_be_put_once) {
    for (const std::size_t size : {SMALL, LARGE}) {
        const std::string object = name(size);
        EXPECT_EQ(putter->put(numbers(size), {.name = object}), hoplite::Ref(object));
        for (const Verbs* verbs : all) {
            same(verbs->get<float>(object), numbers(size));
            fails<hoplite::NameTaken>([&] { verbs->put(numbers(size), {.name = object}); }, {object.c_str()});
            fails<hoplite::NameTaken>([&] { verbs->put("", {.name = object}); }, {object.c_str()});
        }
    }
}

TEST_P(Contract, names_that_are_not_valid_are_rejected) {
    fails<hoplite::InvalidArgument>([&] { putter->put("x", {.name = ""}); });
    fails<hoplite::InvalidArgument>([&] { putter->put("x", {.name = std::string(5000, 'x')}); });
    fails<hoplite::InvalidArgument>([&] { (void)getter->get(""); });
    fails<hoplite::InvalidArgument>([&] { (void)getter->get(static_cast<const char*>(nullptr)); }, {"ref"});
}

TEST_P(Contract, newest_refuses_to_go_back) {
    putter->put("7", {.name = name("v/7"), .newest = true});
    fails<hoplite::InvalidArgument>([&] { getter->put("6", {.name = name("v/6"), .newest = true}); }, {"v/7"});
    getter->put("8", {.name = name("v/8"), .newest = true});
}

TEST_P(Contract, exist_ok_returns_the_existing_object) {
    const std::string object = name();
    for (unsigned turn = 0; turn < 3; ++turn) {
        EXPECT_EQ(verbs(turn).put(numbers(LARGE, turn), {.name = object, .exist_ok = true}), hoplite::Ref(object));
    }
    same(getter->get<float>(object), numbers(LARGE, 0));
    EXPECT_NE(mine(putter->put("", {.exist_ok = true})), mine(putter->put("", {.exist_ok = true})));
}

TEST_P(Contract, options_out_of_range_are_rejected) {
    fails<hoplite::InvalidArgument>([&] { putter->put("x", {.replicas = 0}); }, {"replicas is 0"});
    fails<hoplite::InvalidArgument>([&] { putter->put("x", {.name = name("a/1"), .retain = 0}); }, {"retain is 0"});
    fails<hoplite::InvalidArgument>([&] { putter->put("x", {.name = name("text"), .retain = 1}); }, {"retain"});
    fails<hoplite::InvalidArgument>([&] { putter->put("x", {.ttl = 0s}); }, {"ttl is 0"});
    fails<hoplite::InvalidArgument>([&] { putter->put("x", {.ttl = -1s}); }, {"ttl is -1"});
    fails<hoplite::InvalidArgument>([&] { putter->put("x", {.timeout = -1s}); }, {"timeout", "-1"});
    fails<hoplite::InvalidArgument>([&] { (void)putter->create(3, {.replicas = 0}); }, {"replicas is 0"});
    fails<hoplite::InvalidArgument>([&] { (void)getter->get("x", {.timeout = std::chrono::duration<double>(NAN)}); });
}

TEST_P(Contract, timeout_0_returns_only_local_objects) {
    fails<hoplite::Timeout>([&] { (void)getter->get(name("nobody"), {.timeout = 0s}); }, {"nobody", "0 s"});
    const hoplite::Ref ref = mine(putter->put(numbers(LARGE)));
    same(putter->get<float>(ref, {.timeout = 0s}), numbers(LARGE));
    (void)getter->get(ref);
    same(getter->get<float>(ref, {.timeout = 0s}), numbers(LARGE));
}

TEST_P(Contract, a_timeout_names_the_object) {
    const auto begun = std::chrono::steady_clock::now();
    fails<hoplite::Timeout>([&] { (void)getter->get(name("nobody"), {.timeout = 30ms}); }, {"nobody", "0.03 s"});
    EXPECT_GE(std::chrono::steady_clock::now() - begun, 30ms);
    settled();
}

TEST_P(Contract, a_get_waits_for_a_name_that_is_put_later) {
    for (const std::size_t size : {SMALL, LARGE}) {
        const std::string object = name(size);
        std::vector<std::unique_ptr<Later<std::function<hoplite::View<float>()>>>> gets;
        for (const Verbs* verbs : all) {
            gets.push_back(std::make_unique<Later<std::function<hoplite::View<float>()>>>(
                [verbs, object] { return verbs->get<float>(object); }));
        }
        eventually([&] { return waiting() == 3; });
        for (auto& get : gets) EXPECT_FALSE(get->done());
        putter->put(numbers(size), {.name = object});
        for (auto& get : gets) same(get->get(), numbers(size));
    }
}

TEST_P(Contract, delete_applies_to_all_nodes_and_views_stay_valid) {
    for (const std::size_t size : {SMALL, LARGE}) {
        std::vector<hoplite::Ref> refs;
        std::vector<hoplite::View<float>> views;
        for (unsigned seed = 0; seed < 3; ++seed) refs.push_back(putter->put(numbers(size, seed)));
        for (const hoplite::Ref& ref : refs) views.push_back(getter->get<float>(ref));
        reducer->del(refs[0]);
        reducer->del({refs[1], refs[2]});
        reducer->del({});
        for (const Verbs* verbs : all) {
            for (const hoplite::Ref& ref : refs) {
                fails<hoplite::ObjectDeleted>([&] { (void)verbs->get(ref); }, {ref.text().c_str()});
            }
        }
        for (unsigned seed = 0; seed < 3; ++seed) same(views[seed], numbers(size, seed));
    }
}

TEST_P(Contract, a_deletion_fails_pending_gets) {
    const std::string object = name();
    auto buffer = putter->create(LARGE, {.name = object});
    std::vector<std::future<void>> gets;
    std::vector<float> out(LARGE);
    for (const Verbs* verbs : all) {
        gets.push_back(std::async(std::launch::async, [verbs, object] { (void)verbs->get(object); }));
    }
    gets.push_back(std::async(std::launch::async, [&] { getter->get_into(object, out); }));
    // The owner of the name knows every node that waits: an unknown one would wait for the next object of this name.
    eventually([&] { return waiting() >= 4 && getter->locations(object).size() == node_count; });
    getter->del(object);
    for (auto& get : gets) fails<hoplite::ObjectDeleted>([&] { get.get(); }, {object.c_str()});
    buffer.discard();
}

TEST_P(Contract, a_deleted_name_is_free_again) {
    for (unsigned turn = 0; turn < 4; ++turn) {
        verbs(turn).put(numbers(LARGE, turn), {.name = name()});
        same(getter->get<float>(name()), numbers(LARGE, turn));
        verbs(turn + 1).del(name());
    }
}

TEST_P(Contract, a_time_to_live_deletes_an_object) {
    const hoplite::Ref ref = putter->put("brief", {.ttl = 20ms});
    eventually([&] {
        const auto result = getter->client.try_get(ref, {.timeout = SOON});
        return !result && result.error().code() == HOPLITE_OBJECT_DELETED;
    });
}

TEST_P(Contract, wait_returns_the_first_count_of_several) {
    const std::vector<std::string> names{name(1), name(2), name(3)};
    const hoplite::Waited none = getter->wait(names, {.count = 1, .timeout = 0s});
    EXPECT_TRUE(none.ready.empty());
    EXPECT_EQ(none.remaining.size(), 3U);
    Later wait([&] { return getter->wait(names, {.count = 2, .timeout = SOON}); });
    eventually([&] { return getter->waiting() > 0; });
    putter->put("x", {.name = names[2]});
    EXPECT_FALSE(wait.done(10ms));
    putter->put(numbers(LARGE), {.name = names[0]});
    const auto [ready, remaining] = wait.get();
    EXPECT_EQ(ready, (std::vector<hoplite::Ref>{hoplite::Ref(names[2]), hoplite::Ref(names[0])}));
    EXPECT_EQ(remaining, std::vector<hoplite::Ref>{hoplite::Ref(names[1])});
    EXPECT_TRUE(getter->wait({}).ready.empty());
    EXPECT_TRUE(getter->wait(names, {.count = 0}).ready.empty());
    fails<hoplite::InvalidArgument>([&] { getter->wait({names[0], names[0]}); });
    fails<hoplite::InvalidArgument>([&] { getter->wait(names, {.count = 4}); }, {"4", "3"});
}

TEST_P(Contract, latest_returns_the_highest_number_above_after) {
    const std::string prefix = name("");
    fails<hoplite::Timeout>([&] { getter->latest(prefix, {.timeout = 0s}); }, {prefix.c_str()});
    for (const std::size_t number : {2U, 10U, 9U}) verbs(number).put("x", {.name = name(number)});
    for (const Verbs* verbs : all) {
        EXPECT_EQ(verbs->latest(prefix).number(), 10U);
        EXPECT_EQ(verbs->latest(prefix, {.after = 9, .timeout = SOON}).number(), 10U);
        fails<hoplite::Timeout>([&] { verbs->latest(prefix, {.after = 10, .timeout = 20ms}); }, {prefix.c_str()});
    }
    Later newest([&] { return getter->latest(prefix, {.after = 10, .timeout = SOON}); });
    eventually([&] { return getter->waiting() > 0; });
    putter->put(numbers(LARGE), {.name = name(11)});
    EXPECT_EQ(newest.get(), hoplite::Ref(name(11)));
    putter->del(name(11));
    EXPECT_EQ(getter->latest(prefix).number(), 10U);
    fails<hoplite::InvalidArgument>([&] { getter->latest("policy"); }, {"policy"});
}

TEST_P(Contract, retain_deletes_older_versions) {
    for (std::size_t number = 1; number <= 4; ++number) {
        putter->put(numbers(LARGE), {.name = name(number), .retain = 2});
    }
    // The put does not wait for the deletions.
    eventually([&] { return getter->client.locations(name(1)).empty() && getter->client.locations(name(2)).empty(); });
    fails<hoplite::ObjectDeleted>([&] { (void)getter->get(name(2)); }, {name(2).c_str()});
    same(getter->get<float>(name(3)), numbers(LARGE));
    same(getter->get<float>(name(4)), numbers(LARGE));
}

TEST_P(Contract, a_reservation_lets_others_wait) {
    const hoplite::Ref ref = mine(putter->reserve());
    Later get([&] { return getter->get<float>(ref); });
    eventually([&] { return getter->waiting() > 0; });
    EXPECT_EQ(putter->put(numbers(LARGE), {.name = ref}), ref);
    same(get.get(), numbers(LARGE));
    fails<hoplite::Error>([&] { putter->put("again", {.name = ref}); });
    const hoplite::Ref other = putter->reserve();
    Verbs stranger = another();
    fails<hoplite::InvalidArgument>([&] { stranger.put("not mine", {.name = other}); }, {other.text().c_str()});
    putter->del(other);
    fails<hoplite::ObjectDeleted>([&] { (void)getter->get(other); });
}

TEST_P(Contract, the_reservation_of_a_client_ends_with_it) {
    Verbs client = another();
    const hoplite::Ref ref = client.reserve();
    Later get([&] { (void)getter->get(ref); });
    eventually([&] { return getter->waiting() > 0; });
    client.client.close();
    fails<hoplite::ObjectLost>([&] { get.get(); }, {ref.text().c_str()});
}

TEST_P(Contract, a_reserved_name_is_lost_with_its_client) {
    Verbs client = another();
    const hoplite::Ref ref = client.reserve({.name = name(), .timeout = SOON});
    EXPECT_EQ(ref, hoplite::Ref(name()));
    fails<hoplite::NameTaken>([&] { putter->put("not mine", {.name = name()}); }, {name().c_str()});
    Later get([&] { (void)getter->get(name()); });
    eventually([&] { return getter->waiting() > 0; });
    client.client.close();
    fails<hoplite::ObjectLost>([&] { get.get(); }, {name().c_str()});
    putter->reserve({.name = name(), .timeout = SOON});
    putter->put(numbers(LARGE), {.name = name()});
    same(getter->get<float>(name()), numbers(LARGE));
}

TEST_P(Contract, any_client_fills_a_slot_once) {
    Verbs client = another();
    const std::vector<hoplite::Ref> slots = client.slots(3);
    ASSERT_EQ(slots.size(), 3U);
    EXPECT_EQ(getter->put(numbers(LARGE), {.name = slots[0]}), slots[0]);
    EXPECT_EQ(reducer->put(numbers(LARGE), {.name = slots[1]}), slots[1]);
    fails<hoplite::NameTaken>([&] { putter->put("late", {.name = slots[1]}); }, {slots[1].text().c_str()});
    same(client.get<float>(slots[0]), numbers(LARGE));
    same(putter->get<float>(slots[1]), numbers(LARGE));
    Later get([&] { (void)getter->get(slots[2]); });
    eventually([&] { return getter->waiting() > 0; });
    client.client.close();
    fails<hoplite::ObjectLost>([&] { get.get(); }, {slots[2].text().c_str()});
    putter->del({slots[0], slots[1]});
}

TEST_P(Contract, a_call_without_a_timeout_has_that_of_its_client) {
    const hoplite::ClientOptions options{.default_timeout = 20ms};
    const hoplite::Node& node = Stage::get().nodes[0];
    const Verbs verbs{place() == Place::attached ? hoplite::connect(*node.socket(), options) : node.client(options),
                      how()};
    fails<hoplite::Timeout>([&] { (void)verbs.get(name(), {}); }, {name().c_str(), "0.02"});
    EXPECT_EQ(verbs.wait(name(), {}).ready.size(), 0U);
    auto pending = verbs.client.get_async(name(), {.timeout = hoplite::no_timeout});
    EXPECT_FALSE(pending.wait_for(50ms));
    putter->put("came", {.name = name()});
    EXPECT_EQ(pending.get().nbytes(), 4U);
    fails<hoplite::InvalidArgument>([&] { (void)node.client({.default_timeout = 0s}); }, {"default_timeout"});
}

TEST_P(Contract, a_lease_belongs_to_its_client) {
    const hoplite::Ref ref = mine(putter->put(numbers(LARGE)));
    hoplite::Lease lease = getter->lease(ref);
    EXPECT_EQ(lease.ref(), ref);
    EXPECT_FALSE(lease.released());
    lease.release();
    lease.release();
    EXPECT_TRUE(lease.released());
    Verbs client = another();
    const hoplite::Lease other = client.lease(ref);
    client.client.close();
    EXPECT_TRUE(other.released());
    // The object is deleted 5 s after that, unless there is another lease.
    const hoplite::Lease last = reducer->lease(ref);
    same(getter->get<float>(ref), numbers(LARGE));
}

TEST_P(Contract, locations_list_the_nodes_with_a_copy) {
    const hoplite::Ref ref = mine(putter->put(numbers(LARGE)));
    std::vector<hoplite::Location> locations = getter->locations(ref);
    ASSERT_EQ(locations.size(), 1U);
    EXPECT_EQ(locations[0].node, Stage::get().nodes[0].id());
    EXPECT_EQ(locations[0].address, Stage::get().nodes[0].address());
    EXPECT_TRUE(locations[0].complete);
    EXPECT_TRUE(getter->locations(name("never")).empty());
    putter->del(ref);
    fails<hoplite::ObjectDeleted>([&] { getter->locations(ref); }, {ref.text().c_str()});
}

TEST_P(Contract, replicas_are_on_several_nodes) {
    const hoplite::Ref ref = mine(putter->put(numbers(LARGE), {.replicas = 2, .timeout = SOON}));
    EXPECT_EQ(getter->locations(ref).size(), 2U);
    EXPECT_EQ(ref.replicas(), 2U);
    auto buffer = putter->create(LARGE, {.replicas = 3});
    std::ranges::copy(numbers(LARGE), buffer.begin());
    const hoplite::Ref sealed = mine(putter->seal(buffer, {.timeout = SOON}));
    EXPECT_EQ(getter->locations(sealed).size(), 3U);
    EXPECT_EQ(sealed.replicas(), 3U);
    EXPECT_EQ(hoplite::Ref(ref.text()).replicas(), std::nullopt);
}

TEST_P(Contract, status_reports_the_node) {
    const hoplite::Ref ref = mine(putter->put(numbers(LARGE)));
    const std::string status = putter->status();
    EXPECT_NE(status.find(Stage::get().nodes[0].id()), std::string::npos);
    EXPECT_NE(status.find(*Stage::get().nodes[0].address()), std::string::npos);
    EXPECT_EQ(integer(status, "capacity"), 128 << 20);
    EXPECT_GE(integer(status, "used"), static_cast<long long>(4 * LARGE));
    EXPECT_EQ(integer(status, "waiting"), 0);
    EXPECT_EQ(integer(status, "objects"), 1);
}

TEST_P(Contract, calls_of_a_closed_client_fail) {
    Verbs verbs = another();
    const hoplite::Client& client = verbs.client;
    const hoplite::Ref ref = mine(verbs.put(numbers(LARGE)));
    const auto view = verbs.get<float>(ref);
    auto small = verbs.create(SMALL, {.name = name("small")});
    auto large = verbs.create(LARGE, {.name = name("large")});
    EXPECT_FALSE(client.closed());
    verbs.client.close();
    verbs.client.close();
    EXPECT_TRUE(client.closed());
    std::vector<float> out(LARGE);
    const std::vector<std::function<void()>> calls{
        [&] { verbs.put(""); },
        [&] { verbs.put(numbers(LARGE)); },
        [&] { (void)verbs.get(ref); },
        [&] { verbs.get_into(ref, out); },
        [&] { (void)verbs.create(LARGE); },
        [&] { (void)verbs.create(SMALL); },
        [&] { verbs.wait(ref); },
        [&] { verbs.reduce(ref); },
        [&] { verbs.inputs(ref); },
        [&] { verbs.lost(ref); },
        [&] { verbs.del(ref); },
        [&] { verbs.latest("a/"); },
        [&] { verbs.reserve(); },
        [&] { verbs.reserve({.name = name("reserved")}); },
        [&] { verbs.slots(1); },
        [&] { (void)verbs.lease(ref); },
        [&] { verbs.locations(ref); },
        [&] { verbs.status(); },
        [&] { verbs.seal(small); },
        [&] { verbs.seal(large); },
    };
    for (const auto& call : calls) fails<hoplite::ClientClosed>(call, {"closed"});
    same(view, numbers(LARGE));
    same(getter->get<float>(ref), numbers(LARGE));
    fails<hoplite::Timeout>([&] { (void)getter->get(name("large"), {.timeout = 0s}); });
}

TEST_P(Contract, close_ends_every_pending_call) {
    Verbs verbs = another();
    const std::string missing = name("missing");
    const hoplite::Ref total = verbs.reduce(missing);
    std::vector<float> out(LARGE);
    std::vector<std::future<void>> waits;
    const auto later = [&](std::function<void()> call) {
        waits.push_back(std::async(std::launch::async, std::move(call)));
    };
    const long long before = waiting();
    later([&] { (void)verbs.get(missing, {}); });
    later([&] { (void)verbs.get(missing, {.timeout = 1000s}); });
    later([&] { verbs.get_into(missing, out, {}); });
    later([&] { verbs.wait(missing, {}); });
    later([&] { verbs.latest(name(""), {}); });
    later([&] { verbs.inputs(total, {}); });
    eventually([&] { return waiting() >= before + 6; });
    verbs.client.close();
    for (auto& wait : waits) fails<hoplite::ClientClosed>([&] { wait.get(); }, {"this client is closed"});
    putter->del(total);
}

TEST_P(Contract, closing_during_a_put_that_waits_for_capacity_leaves_no_object) {
    Verbs verbs = another();
    const std::vector<std::uint8_t> large(100 << 20);
    const hoplite::Ref held = verbs.put(large);
    std::future<void> put = std::async(std::launch::async, [&] { verbs.put(large, {.name = name("late")}); });
    eventually([&] { return putter->waiting() > 0; });
    verbs.client.close();
    fails<hoplite::ClientClosed>([&] { put.get(); }, {"this client is closed"});
    putter->del(held);
    settled();
    fails<hoplite::Timeout>([&] { (void)getter->get(name("late"), {.timeout = 0s}); }, {"late"});
}

TEST_P(Contract, the_objects_of_a_job_share_a_lifetime) {
    const hoplite::Node& node = Stage::get().nodes[0];
    const hoplite::ClientOptions options{.job = "job-of-" + name("case")};
    const hoplite::Client client =
        place() == Place::attached ? hoplite::connect(*node.socket(), options) : node.client(options);
    const hoplite::Ref ref = mine(client.put(numbers(LARGE)));
    same(getter->get<float>(ref), numbers(LARGE));
}
