// The contract of reduce: ops, the first count inputs, names of results, and errors.

#include <cmath>

#include "stage.hpp"

namespace {

template <class T>
std::vector<T> fold(const std::string& op, const std::vector<std::vector<T>>& arrays) {
    std::vector<T> total = arrays[0];
    for (std::size_t number = 1; number < arrays.size(); ++number) {
        for (std::size_t place = 0; place < total.size(); ++place) {
            const T other = arrays[number][place];
            T& one = total[place];
            if (op == "sum" || op == "mean") one = static_cast<T>(one + other);
            if (op == "prod") one = static_cast<T>(one * other);
            if (op == "min") one = std::min(one, other);
            if (op == "max") one = std::max(one, other);
        }
    }
    if (op == "mean") {
        for (T& one : total) one = static_cast<T>(one / static_cast<T>(arrays.size()));
    }
    return total;
}

}  // namespace

TEST_P(Contract, a_reduce_is_the_fold_of_its_inputs) {
    for (const std::size_t size : {SMALL, LARGE}) {
        std::vector<std::string> names;
        std::vector<std::vector<float>> values;
        for (unsigned number = 0; number < 4; ++number) {
            names.push_back(name(std::to_string(size) + "-" + std::to_string(number)));
            values.push_back(numbers(size, number));
        }
        verbs(0).put(values[0], {.name = names[0]});
        verbs(1).put(values[1], {.name = names[1]});
        const std::vector<std::string> ops{"sum", "min", "max", "prod", "mean"};
        std::vector<hoplite::Ref> totals;
        for (const std::string& op : ops) totals.push_back(mine(reducer->reduce(names, op)));
        std::vector<std::future<hoplite::View<float>>> gets;
        for (const hoplite::Ref& total : totals) {
            gets.push_back(std::async(std::launch::async, [this, total] { return getter->get<float>(total); }));
        }
        verbs(2).put(values[2], {.name = names[2]});
        verbs(0).put(values[3], {.name = names[3]});
        for (std::size_t number = 0; number < ops.size(); ++number) {
            SCOPED_TRACE(ops[number]);
            same(gets[number].get(), fold(ops[number], values));
            auto inputs = reducer->inputs(totals[number]);
            std::ranges::sort(inputs);
            EXPECT_TRUE(std::ranges::equal(inputs, names, {}, &hoplite::Ref::text));
            EXPECT_TRUE(reducer->lost(totals[number]).empty());
        }
    }
}

TEST_P(Contract, a_reduce_folds_integers_and_truths) {
    const std::vector<std::uint8_t> bytes{250, 3};
    const hoplite::Ref one = mine(putter->put(bytes));
    const hoplite::Ref two = mine(putter->put(bytes));
    // Integers wrap around.
    same(getter->get<std::uint8_t>(mine(reducer->reduce({one, two}))), std::vector<std::uint8_t>{244, 6});
    const std::array<bool, 2> truths{true, false};
    const std::array<bool, 2> others{true, true};
    const hoplite::Ref three = mine(putter->put(truths));
    const hoplite::Ref four = mine(putter->put(others));
    same(getter->get<bool>(mine(reducer->reduce({three, four}, "any"))), others);
    same(getter->get<bool>(mine(reducer->reduce({three, four}, "all"))), truths);
}

TEST_P(Contract, a_reduce_folds_the_first_count_and_leaves_the_rest) {
    for (const std::size_t size : {SMALL, LARGE}) {
        const std::string prefix = std::to_string(size);
        std::vector<std::string> names;
        std::vector<std::vector<std::int64_t>> folded;
        for (int number = 0; number < 5; ++number) names.push_back(name(prefix + "/" + std::to_string(number)));
        const hoplite::Ref total = mine(reducer->reduce(names, "sum", {.count = 3}));
        fails<hoplite::Timeout>([&] { reducer->inputs(total, {.timeout = 0s}); }, {total.text().c_str()});
        for (const unsigned number : {4U, 1U, 2U}) {
            folded.push_back(numbers<std::int64_t>(size, number));
            verbs(number).put(folded.back(), {.name = names[number]});
        }
        same(getter->get<std::int64_t>(total), fold("sum", folded));
        std::vector<std::uint64_t> inputs;
        for (const hoplite::Ref& ref : reducer->inputs(total)) inputs.push_back(ref.number());
        std::ranges::sort(inputs);
        EXPECT_EQ(inputs, (std::vector<std::uint64_t>{1, 2, 4}));
        putter->put(numbers<std::int64_t>(size, 9), {.name = names[0]});
        same(getter->get<std::int64_t>(names[0]), numbers<std::int64_t>(size, 9));
    }
}

TEST_P(Contract, a_reduce_takes_a_name_for_its_result) {
    for (unsigned number = 0; number < 2; ++number) putter->put(numbers(LARGE, number), {.name = name(number)});
    const hoplite::Ref total = reducer->reduce({name(0), name(1)}, "sum", {.name = name("total")});
    EXPECT_EQ(total, hoplite::Ref(name("total")));
    same(getter->get<float>(name("total")), fold<float>("sum", {numbers(LARGE, 0), numbers(LARGE, 1)}));
}

TEST_P(Contract, a_reduce_can_not_take_the_name_of_an_object) {
    putter->put("here", {.name = name()});
    fails<hoplite::NameTaken>([&] { reducer->reduce(name("never"), "sum", {.name = name()}); }, {name().c_str()});
    EXPECT_EQ(getter->get<char>(name()).text(), "here");
}

TEST_P(Contract, the_name_of_a_pending_reduce_is_taken) {
    reducer->reduce(name("never"), "sum", {.name = name()});
    for (const Verbs* verbs : all) {
        fails<hoplite::NameTaken>([&] { verbs->reduce(name("other"), "sum", {.name = name()}); }, {name().c_str()});
        for (const std::size_t size : {SMALL, LARGE}) {
            fails<hoplite::NameTaken>([&] { verbs->put(numbers(size), {.name = name()}); }, {name().c_str()});
        }
    }
    getter->del(name());
    settled();
    putter->put("free", {.name = name()});
    EXPECT_EQ(getter->get<char>(name()).text(), "free");
}

TEST_P(Contract, inputs_that_differ_fail_a_reduce) {
    putter->put(numbers(3), {.name = name(0)});
    putter->put(numbers(4), {.name = name(1)});
    fails<hoplite::ShapeMismatch>(
        [&] {
            const hoplite::Ref total = reducer->reduce({name(0), name(1)}, "sum", {.name = name("total")});
            (void)getter->get(total);
        },
        {name(0).c_str(), name(1).c_str(), "3", "4"});
    putter->put("free", {.name = name("total")});
    EXPECT_EQ(reducer->get<char>(name("total")).text(), "free");
    fails<hoplite::UnsupportedDtype>([&] {
        const hoplite::Ref total = mine(reducer->reduce(name("total")));
        (void)getter->get(total);
    });
    fails<hoplite::UnsupportedDtype>([&] {
        const hoplite::Ref total = mine(reducer->reduce(name(0), "any"));
        (void)getter->get(total);
    });
}

TEST_P(Contract, arguments_of_a_reduce_are_checked) {
    fails<hoplite::InvalidArgument>([&] { reducer->reduce({}); });
    fails<hoplite::InvalidArgument>([&] { reducer->reduce({"a", "a"}); });
    fails<hoplite::InvalidArgument>([&] { reducer->reduce({"a", "b"}, "sum", {.count = 0}); }, {"count is 0", "2"});
    fails<hoplite::InvalidArgument>([&] { reducer->reduce({"a", "b"}, "sum", {.count = 3}); }, {"count is 3", "2"});
    fails<hoplite::InvalidArgument>([&] { reducer->reduce({"a", "b"}, "sum", {.ttl = 0s}); }, {"ttl is 0"});
    fails<hoplite::UnknownOp>([&] { reducer->reduce({"a", "b"}, "average"); }, {"average", "mean"});
}

TEST_P(Contract, the_timeout_of_a_reduce_names_the_missing_inputs) {
    putter->put(numbers(SMALL), {.name = name("came")});
    const hoplite::Ref total = mine(reducer->reduce({name("came"), name("missing")}, "sum", {.timeout = 30ms}));
    fails<hoplite::Timeout>([&] { (void)getter->get(total); }, {"missing"});
    fails<hoplite::Timeout>([&] { reducer->inputs(total); }, {"missing"});
}

TEST_P(Contract, a_deleted_input_or_result_ends_a_reduce) {
    for (const std::string which : {"input", "result"}) {
        const std::string input = name(which);
        const hoplite::Ref total = reducer->reduce({input, name("never")});
        Later get([&] { (void)getter->get(total); });
        eventually([&] { return getter->waiting() > 0; });
        putter->put(numbers(SMALL), {.name = input});
        putter->del(which == "input" ? input : total.text());
        fails<hoplite::ObjectDeleted>([&] { get.get(); });
    }
}

TEST_P(Contract, inputs_are_available_for_reduces_of_this_node) {
    const hoplite::Ref plain = mine(putter->put(numbers(3)));
    fails<hoplite::InvalidArgument>([&] { reducer->inputs(plain); }, {plain.text().c_str()});
    fails<hoplite::InvalidArgument>([&] { reducer->lost(plain); }, {plain.text().c_str()});
    const hoplite::Ref total = mine(reducer->reduce(plain));
    EXPECT_EQ(reducer->inputs(total), std::vector<hoplite::Ref>{plain});
}

TEST_P(Contract, a_reduce_without_enough_inputs_lists_the_lost_ones) {
    Verbs client = another();
    const hoplite::Ref reserved = client.reserve();
    const hoplite::Ref total = mine(reducer->reduce({reserved.text(), name("late")}, "sum", {.count = 1}));
    client.client.close();
    eventually([&] { return reducer->lost(total) == std::vector<hoplite::Ref>{reserved}; });
    putter->put(numbers(SMALL), {.name = name("late")});
    same(getter->get<float>(total), numbers(SMALL));
    EXPECT_EQ(reducer->inputs(total), std::vector<hoplite::Ref>{hoplite::Ref(name("late"))});
}
