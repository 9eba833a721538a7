// The contract of values: put, create, get and get_into, for every place and form of the verbs.

#include <complex>
#include <cstring>

#include "stage.hpp"

TEST_P(Contract, arrays_round_trip) {
    const std::vector<std::pair<std::size_t, hoplite::Shape>> cases{
        {100, {10, 10}}, {100, 100}, {LARGE, {50, 10, 100}}, {LARGE, LARGE}, {0, {0, 4}}, {0, 0}, {1, {}}};
    for (const auto& [count, shape] : cases) {
        const auto values = numbers(count);
        const hoplite::Ref ref = mine(putter->put({values, shape}));
        const auto view = getter->get<float>(ref);
        same(view, values);
        EXPECT_EQ(axes(view.shape()), axes(shape.axes()));
        EXPECT_EQ(view.dtype(), "float32");
        EXPECT_EQ(view.form(), "plain");
        EXPECT_EQ(view.nbytes(), 4 * count);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data()) % 64, 0U);
    }
}

TEST_P(Contract, elements_are_found_by_their_indices) {
    const auto values = numbers<std::int32_t>(24);
    const auto view = getter->get<std::int32_t>(mine(putter->put({values, {2, 3, 4}})));
    EXPECT_EQ(view[23], values[23]);
    EXPECT_EQ(view(1, 2, 3), values[23]);
    EXPECT_EQ(view(0, 1, 2), values[6]);
    // A view keeps its shape when it is put.
    EXPECT_EQ(axes(getter->get(mine(putter->put(view))).shape()), (std::vector<std::uint64_t>{2, 3, 4}));
}

TEST_P(Contract, bytes_round_trip) {
    for (const std::string& text : {std::string(), std::string("hello"), std::string(100'000, '\0') + "end"}) {
        const hoplite::Ref ref = mine(putter->put(text));
        EXPECT_TRUE(getter->get<char>(ref).text() == text);
        const auto view = getter->get<std::byte>(ref);
        EXPECT_EQ(view.dtype(), "bytes");
        EXPECT_EQ(view.size(), text.size());
        EXPECT_EQ(view.rank(), 0U);
    }
    EXPECT_EQ(getter->get<char>(mine(putter->put("literal"))).text(), "literal");
}

template <class T>
void round_trip(const Verbs& putter, const Verbs& getter, std::vector<hoplite::Ref>& refs) {
    SCOPED_TRACE(hoplite::dtype_of<T>::name);
    const auto values = numbers<T>(5);
    refs.push_back(putter.put(values));
    const auto view = getter.get<T>(refs.back());
    same(view, values);
    EXPECT_EQ(view.dtype(), hoplite::dtype_of<T>::name);
    refs.push_back(putter.put(values[4]));
    const auto scalar = getter.get<T>(refs.back());
    EXPECT_EQ(scalar.rank(), 0U);
    EXPECT_EQ(scalar[0], values[4]);
}

TEST_P(Contract, every_dtype_round_trips) {
    std::vector<hoplite::Ref> refs;
    round_trip<float>(*putter, *getter, refs);
    round_trip<double>(*putter, *getter, refs);
    round_trip<std::int8_t>(*putter, *getter, refs);
    round_trip<std::int16_t>(*putter, *getter, refs);
    round_trip<std::int32_t>(*putter, *getter, refs);
    round_trip<std::int64_t>(*putter, *getter, refs);
    round_trip<long long>(*putter, *getter, refs);
    round_trip<std::uint8_t>(*putter, *getter, refs);
    round_trip<std::uint16_t>(*putter, *getter, refs);
    round_trip<std::uint32_t>(*putter, *getter, refs);
    round_trip<std::uint64_t>(*putter, *getter, refs);
    round_trip<std::complex<float>>(*putter, *getter, refs);
    round_trip<std::complex<double>>(*putter, *getter, refs);
    const std::array<bool, 3> truths{true, false, true};
    refs.push_back(putter->put(truths));
    same(getter->get<bool>(refs.back()), truths);
    for (const hoplite::Ref& ref : refs) mine(ref);
}

// A type of the program with the layout of a dtype.
struct Half {
    std::uint16_t bits;
    bool operator==(const Half&) const = default;
};
template <>
struct hoplite::dtype_of<Half> {
    static constexpr const char* name = "float16";
};

TEST_P(Contract, a_program_can_add_types_of_other_dtypes) {
    const std::vector<Half> ones(5, Half{0x3C00});
    const hoplite::Ref ref = mine(putter->put(ones));
    same(getter->get<Half>(ref), ones);
    // Two bytes each, of a dtype that has no type here.
    const std::vector<std::uint16_t> bits(5, 0x3F80);
    const hoplite::Ref brain =
        mine(putter->put(hoplite::Value::raw("bfloat16", bits.data(), 2 * bits.size(), hoplite::Shape(5))));
    const auto view = getter->get(brain);
    EXPECT_EQ(view.dtype(), "bfloat16");
    EXPECT_EQ(std::memcmp(view.bytes().data(), bits.data(), 10), 0);
}

TEST_P(Contract, a_view_of_another_type_is_rejected) {
    for (const std::size_t size : {SMALL, LARGE}) {
        const hoplite::Ref ref = mine(putter->put(numbers(size)));
        fails<hoplite::ShapeMismatch>([&] { (void)getter->get<double>(ref); },
                                      {ref.text().c_str(), "float32", "float64"});
        fails<hoplite::ShapeMismatch>([&] { (void)getter->get<std::byte>(ref); }, {"float32", "bytes"});
        fails<hoplite::ShapeMismatch>([&] { (void)getter->get(ref).as<std::int32_t>(); }, {"float32", "int32"});
        same(getter->get(ref).as<float>(), numbers(size));
    }
}

TEST_P(Contract, a_value_whose_shape_does_not_fit_is_rejected) {
    const auto values = numbers(6);
    fails<hoplite::InvalidArgument>([&] { putter->put({values, {2, 4}}); }, {"(2, 4)", "6 elements"});
    fails<hoplite::InvalidArgument>([&] { putter->put({values, {-2, -3}}); }, {"(-2, -3)", "negative"});
    fails<hoplite::InvalidArgument>([&] { (void)putter->create<float>({2, -3}); }, {"(2, -3)", "negative"});
    fails<hoplite::UnsupportedDtype>(
        [&] { putter->put(hoplite::Value::raw("float17", values.data(), 24, hoplite::Shape(6))); }, {"float17"});
    fails<hoplite::InvalidArgument>(
        [&] { putter->put(hoplite::Value::raw("float32", values.data(), 23, hoplite::Shape(6))); }, {"23"});
}

TEST_P(Contract, values_may_be_moved_into_a_call) {
    const hoplite::Ref ref = mine(putter->put(numbers(LARGE)));
    same(getter->get<float>(ref), numbers(LARGE));
    auto pending = putter->client.put_async(numbers(LARGE, 1));
    same(getter->get<float>(mine(pending.get())), numbers(LARGE, 1));
}

TEST_P(Contract, a_created_object_exists_from_its_seal) {
    for (const std::size_t size : {SMALL, LARGE}) {
        const std::string object = name(size);
        auto buffer = putter->create<float>(size, {.name = object});
        EXPECT_EQ(buffer.ref().text(), object);
        EXPECT_EQ(buffer.size(), size);
        EXPECT_EQ(axes(buffer.shape()), std::vector<std::uint64_t>{size});
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
        std::ranges::copy(numbers(size), buffer.begin());
        fails<hoplite::Timeout>([&] { (void)getter->get(object, {.timeout = 0s}); }, {object.c_str()});
        EXPECT_EQ(putter->seal(buffer).text(), object);
        EXPECT_FALSE(buffer);
        same(getter->get<float>(object), numbers(size));
    }
    auto matrix = putter->create<std::int64_t>({2, 3});
    for (int row = 0; row < 2; ++row) {
        for (int column = 0; column < 3; ++column) matrix(row, column) = 10 * row + column;
    }
    const auto view = getter->get<std::int64_t>(mine(putter->seal(matrix)));
    EXPECT_EQ(view(1, 2), 12);
    EXPECT_EQ(axes(view.shape()), (std::vector<std::uint64_t>{2, 3}));
    auto text = putter->create<char>(5);
    std::memcpy(text.data(), "hello", 5);
    EXPECT_EQ(getter->get<char>(mine(putter->seal(text))).text(), "hello");
}

TEST_P(Contract, a_discarded_buffer_creates_no_object) {
    for (const std::size_t size : {SMALL, LARGE}) {
        const std::string object = name(size);
        auto buffer = putter->create(size, {.name = object});
        buffer.discard();
        buffer.discard();
        fails<hoplite::InvalidHandle>([&] { putter->seal(buffer); }, {"sealed, discarded or moved from"});
        {
            const auto dropped = putter->create(size, {.name = name("dropped" + object)});
        }
        putter->put(numbers(size), {.name = object});
        same(getter->get<float>(object), numbers(size));
    }
}

TEST_P(Contract, a_part_is_some_rows_or_bytes) {
    const auto values = numbers<std::int32_t>(LARGE);
    const hoplite::Ref ref = mine(putter->put({values, {LARGE / 10, 10}}));
    const auto rows = getter->get<std::int32_t>(ref, {.part = {2, 5}, .timeout = SOON});
    EXPECT_EQ(axes(rows.shape()), (std::vector<std::uint64_t>{3, 10}));
    same(rows, std::span(values).subspan(20, 30));
    same(getter->get<std::int32_t>(ref, {.part = {-2, {}}, .timeout = SOON}), std::span(values).last(20));
    same(getter->get<std::int32_t>(ref, {.part = {.stop = 1}, .timeout = SOON}), std::span(values).first(10));
    EXPECT_EQ(getter->get<std::int32_t>(ref, {.part = {3, 3}, .timeout = SOON}).size(), 0U);
    const hoplite::Ref text = mine(putter->put("rows of a table"));
    EXPECT_EQ(getter->get<char>(text, {.part = {0, 4}, .timeout = SOON}).text(), "rows");
    EXPECT_EQ(getter->get<char>(text, {.part = {-5, 1000}, .timeout = SOON}).text(), "table");
    const hoplite::Ref scalar = mine(putter->put(1.5F));
    fails<hoplite::InvalidArgument>([&] { (void)getter->get(scalar, {.part = {0, 1}, .timeout = SOON}); });
}

TEST_P(Contract, out_is_filled) {
    for (const std::size_t size : {SMALL, LARGE}) {
        const auto values = numbers(size);
        const hoplite::Ref ref = mine(putter->put(values));
        for (int turn = 0; turn < 2; ++turn) {
            std::vector<float> out(size, 9);
            EXPECT_EQ(getter->get_into(ref, out), 4 * size);
            EXPECT_EQ(out, values);
        }
        std::vector<float> rows(3 * size, 9);
        getter->get_into(ref, std::span(rows).subspan(size, size));
        same(std::span(rows).subspan(size, size), values);
        EXPECT_EQ(rows[size - 1], 9);
        EXPECT_EQ(rows[2 * size], 9);
        // Bytes accept every dtype.
        std::vector<std::byte> bytes(4 * size);
        EXPECT_EQ(getter->get_into(ref, bytes), 4 * size);
        EXPECT_EQ(std::memcmp(bytes.data(), values.data(), bytes.size()), 0);
        const hoplite::Ref matrix = mine(putter->put({values, {10, size / 10}}));
        std::vector<float> out(size, 9);
        getter->get_into(matrix, out, {.shape = hoplite::Shape(10, size / 10), .timeout = SOON});
        EXPECT_EQ(out, values);
    }
}

TEST_P(Contract, out_is_filled_while_the_object_arrives) {
    for (const std::size_t size : {SMALL, LARGE}) {
        const std::string object = name(size);
        std::vector<float> out(size, 9);
        Later get([&] { return getter->get_into(object, out); });
        eventually([&] { return getter->waiting() > 0; });
        auto buffer = putter->create(size, {.name = object});
        std::ranges::copy(numbers(size), buffer.begin());
        EXPECT_FALSE(get.done(20ms));
        putter->seal(buffer);
        EXPECT_EQ(get.get(), 4 * size);
        EXPECT_EQ(out, numbers(size));
    }
}

TEST_P(Contract, out_that_does_not_fit_is_rejected) {
    for (const std::size_t size : {SMALL, LARGE}) {
        const hoplite::Ref ref = mine(putter->put(numbers(size)));
        std::vector<float> longer(size + 1);
        fails<hoplite::ShapeMismatch>([&] { getter->get_into(ref, longer); }, {"float32"});
        std::vector<std::int32_t> integers(size);
        fails<hoplite::ShapeMismatch>([&] { getter->get_into(ref, integers); }, {"float32", "int32"});
        std::vector<std::byte> few(3);
        fails<hoplite::ShapeMismatch>([&] { getter->get_into(ref, few); });
        std::vector<float> flat(size);
        fails<hoplite::ShapeMismatch>(
            [&] { getter->get_into(ref, flat, {.shape = hoplite::Shape(size, 1), .timeout = SOON}); });
        fails<hoplite::InvalidArgument>(
            [&] { getter->get_into(ref, flat, {.shape = hoplite::Shape(size, 2), .timeout = SOON}); });
        settled();
    }
}

TEST_P(Contract, a_get_into_memory_respects_its_timeout) {
    std::vector<float> out(SMALL);
    for (const auto limit : {0ms, 30ms}) {
        fails<hoplite::Timeout>([&] { getter->get_into(name("never"), out, {.timeout = limit}); }, {"never"});
    }
}

static std::string case_name(const testing::TestParamInfo<std::tuple<Place, How>>& info) {
    static const char* places[] = {"embedded", "attached", "cluster"};
    static const char* forms[] = {"blocking", "future", "coroutine"};
    return std::string(places[static_cast<int>(std::get<0>(info.param))]) + "_" +
           forms[static_cast<int>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(All, Contract,
                         testing::Combine(testing::Values(Place::embedded, Place::attached, Place::cluster),
                                          testing::Values(How::blocking, How::future, How::coroutine)),
                         case_name);
