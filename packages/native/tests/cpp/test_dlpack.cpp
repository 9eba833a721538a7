// Tensors of other libraries. This file has structs of its own, as programs that include dlpack.h do.

#include <cstddef>
#include <cstdint>

struct DLManagedTensor {
    struct {
        void* data;
        std::int32_t device_type, device_id, ndim;
        std::uint8_t code, bits;
        std::uint16_t lanes;
        std::int64_t* shape;
        std::int64_t* strides;
        std::uint64_t byte_offset;
    } dl_tensor;
    void* manager_ctx;
    void (*deleter)(DLManagedTensor* self);
};

#include "support.hpp"

static_assert(sizeof(hoplite::dlpack::ManagedTensor) == sizeof(DLManagedTensor));
static_assert(offsetof(DLManagedTensor, dl_tensor.strides) == offsetof(hoplite::dlpack::ManagedTensor, tensor.strides));
static_assert(offsetof(DLManagedTensor, deleter) == offsetof(hoplite::dlpack::ManagedTensor, deleter));

namespace {

class Dlpack : public testing::Test {
protected:
    hoplite::Node node = lone_node();
    hoplite::Client client = node.client();

    // A float32 tensor over values.
    static DLManagedTensor tensor(std::vector<float>& values, std::vector<std::int64_t>& shape,
                                  std::int64_t* strides = nullptr) {
        DLManagedTensor made{};
        made.dl_tensor = {values.data(), 1,       0, static_cast<std::int32_t>(shape.size()), 2, 32, 1,
                          shape.data(),  strides, 0};
        return made;
    }
};

}  // namespace

TEST_F(Dlpack, a_tensor_is_put) {
    for (const std::size_t rows : {std::size_t{10}, LARGE / 10}) {
        std::vector<float> values = numbers(10 * rows);
        std::vector<std::int64_t> shape{static_cast<std::int64_t>(rows), 10};
        const DLManagedTensor managed = tensor(values, shape);
        const auto view = client.get<float>(client.put(&managed), {.timeout = SOON});
        same(view, values);
        EXPECT_EQ(axes(view.shape()), (std::vector<std::uint64_t>{rows, 10}));
        same(client.get<float>(client.put_async(&managed).get(), {.timeout = SOON}), values);
    }
}

TEST_F(Dlpack, strides_and_offsets_are_followed) {
    std::vector<float> values{0, 1, 2, 3, 4, 5, 6};
    std::vector<std::int64_t> shape{3, 2};
    std::vector<std::int64_t> transposed{1, 3};
    DLManagedTensor managed = tensor(values, shape, transposed.data());
    same(client.get<float>(client.put(&managed), {.timeout = SOON}), std::vector<float>{0, 3, 1, 4, 2, 5});
    std::vector<std::int64_t> row_major{2, 1};
    managed = tensor(values, shape, row_major.data());
    managed.dl_tensor.byte_offset = 4;
    same(client.get<float>(client.put(&managed), {.timeout = SOON}), std::vector<float>{1, 2, 3, 4, 5, 6});
    std::vector<std::int64_t> scalar;
    managed = tensor(values, scalar);
    EXPECT_EQ(client.get<float>(client.put(&managed), {.timeout = SOON}).rank(), 0U);
}

TEST_F(Dlpack, tensors_that_hoplite_can_not_store_are_rejected) {
    std::vector<float> values(4);
    std::vector<std::int64_t> shape{4};
    DLManagedTensor managed = tensor(values, shape);
    managed.dl_tensor.device_type = 2;
    fails<hoplite::UnsupportedDtype>([&] { client.put(&managed); }, {"device", "2"});
    managed = tensor(values, shape);
    managed.dl_tensor.bits = 24;
    fails<hoplite::UnsupportedDtype>([&] { client.put(&managed); }, {"24 bits"});
    managed = tensor(values, shape);
    managed.dl_tensor.lanes = 4;
    fails<hoplite::UnsupportedDtype>([&] { client.put(&managed); }, {"4 lanes"});
    shape[0] = -4;
    managed = tensor(values, shape);
    fails<hoplite::InvalidArgument>([&] { client.put(&managed); }, {"negative"});
    fails<hoplite::InvalidArgument>([&] { client.put(static_cast<const DLManagedTensor*>(nullptr)); }, {"null"});
}

TEST_F(Dlpack, a_view_is_exported_and_keeps_its_memory) {
    const hoplite::Ref ref = client.put({numbers(LARGE), {10, LARGE / 10}});
    auto view = client.get<float>(ref, {.timeout = SOON});
    const float* const data = view.data();
    DLManagedTensor* const managed = std::move(view).to_dlpack();
    EXPECT_FALSE(view);
    client.del(ref);
    EXPECT_EQ(managed->dl_tensor.data, data);
    EXPECT_EQ(managed->dl_tensor.ndim, 2);
    EXPECT_EQ(managed->dl_tensor.shape[0], 10);
    EXPECT_EQ(managed->dl_tensor.code, 2);
    EXPECT_EQ(managed->dl_tensor.bits, 32);
    EXPECT_EQ(managed->dl_tensor.lanes, 1);
    EXPECT_EQ(managed->dl_tensor.device_type, 1);
    EXPECT_EQ(managed->dl_tensor.strides, nullptr);
    same(std::span(data, LARGE), numbers(LARGE));
    // What is exported can be put again.
    same(client.get<float>(client.put(managed), {.timeout = SOON}), numbers(LARGE));
    EXPECT_GE(integer(client.status(), "used"), static_cast<long long>(8 * LARGE));
    managed->deleter(managed);
    eventually([&] { return integer(client.status(), "used") < static_cast<long long>(8 * LARGE); });
}

TEST_F(Dlpack, a_versioned_tensor_states_that_it_is_read_only) {
    auto* const managed = client.get(client.put("bytes"), {.timeout = SOON}).to_dlpack_versioned();
    const hoplite::dlpack::ManagedTensorVersioned& fields = hoplite::dlpack::fields(managed);
    EXPECT_EQ(fields.major, 1U);
    EXPECT_EQ(fields.flags, 1U);
    EXPECT_EQ(fields.tensor.ndim, 1);
    EXPECT_EQ(fields.tensor.shape[0], 5);
    same(client.get<std::uint8_t>(client.put(managed), {.timeout = SOON}), std::string("bytes"));
    fields.deleter(managed);
}

TEST_F(Dlpack, a_view_of_a_dtype_that_dlpack_lacks_stays) {
    const std::vector<std::int64_t> days(3);
    const hoplite::Ref ref = client.put(hoplite::Value::raw("datetime64[ns]", days.data(), 24, hoplite::Shape(3)));
    auto view = client.get(ref, {.timeout = SOON});
    fails<hoplite::UnsupportedDtype>([&] { (void)std::move(view).to_dlpack(); }, {"datetime64"});
    EXPECT_TRUE(view);
}
