/// @file
/// Tensors of other libraries, by DLPack, both ways.
///
/// The structs here have the layout of those in dlpack.h, which a program may include too, in any order.

#ifndef HOPLITE_CPP_DLPACK_HPP
#define HOPLITE_CPP_DLPACK_HPP

#include "value.hpp"
#include "view.hpp"

namespace hoplite {
inline namespace HOPLITE_NAMESPACE {

/// The binary interface of DLPack: these structs may alias those of dlpack.h.
namespace dlpack {

#define HOPLITE_MAY_ALIAS __attribute__((may_alias))

/// Type and number of a device. Type 1 is the CPU, 3 is memory of the CPU that is pinned for CUDA.
struct HOPLITE_MAY_ALIAS Device {
    std::int32_t type;
    std::int32_t id;
};

/// Kind, bits and vector length of an element.
struct HOPLITE_MAY_ALIAS DataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

/// A tensor. `strides` are in elements; null is row-major order.
struct HOPLITE_MAY_ALIAS Tensor {
    void* data;
    Device device;
    std::int32_t ndim;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};

/// Layout of `::DLManagedTensor`.
struct HOPLITE_MAY_ALIAS ManagedTensor {
    Tensor tensor;
    void* context;
    void (*deleter)(::DLManagedTensor*);
};

/// Layout of `::DLManagedTensorVersioned`. Bit 0 of `flags` is set if the memory is read-only.
struct HOPLITE_MAY_ALIAS ManagedTensorVersioned {
    std::uint32_t major;
    std::uint32_t minor;
    void* context;
    void (*deleter)(::DLManagedTensorVersioned*);
    std::uint64_t flags;
    Tensor tensor;
};

#undef HOPLITE_MAY_ALIAS

/// The fields of a tensor, for programs without dlpack.h.
inline ManagedTensor& fields(::DLManagedTensor* tensor) noexcept { return *reinterpret_cast<ManagedTensor*>(tensor); }
inline const ManagedTensor& fields(const ::DLManagedTensor* tensor) noexcept {
    return *reinterpret_cast<const ManagedTensor*>(tensor);
}
inline ManagedTensorVersioned& fields(::DLManagedTensorVersioned* tensor) noexcept {
    return *reinterpret_cast<ManagedTensorVersioned*>(tensor);
}
inline const ManagedTensorVersioned& fields(const ::DLManagedTensorVersioned* tensor) noexcept {
    return *reinterpret_cast<const ManagedTensorVersioned*>(tensor);
}

}  // namespace dlpack

namespace detail {

struct DlpackDtype {
    std::uint8_t code;
    std::uint8_t bits;
    const char* name;
};

inline constexpr DlpackDtype dlpack_dtypes[] = {
    {0, 8, "int8"},
    {0, 16, "int16"},
    {0, 32, "int32"},
    {0, 64, "int64"},
    {1, 8, "uint8"},
    {1, 16, "uint16"},
    {1, 32, "uint32"},
    {1, 64, "uint64"},
    {2, 16, "float16"},
    {2, 32, "float32"},
    {2, 64, "float64"},
    {4, 16, "bfloat16"},
    {5, 64, "complex64"},
    {5, 128, "complex128"},
    {6, 8, "bool"},
    {7, 8, "float8_e3m4"},
    {8, 8, "float8_e4m3"},
    {9, 8, "float8_e4m3b11fnuz"},
    {10, 8, "float8_e4m3fn"},
    {11, 8, "float8_e4m3fnuz"},
    {12, 8, "float8_e5m2"},
    {13, 8, "float8_e5m2fnuz"},
    {14, 8, "float8_e8m0fnu"},
    {1, 8, "bytes"},
};

inline Result<const char*> dlpack_name(dlpack::DataType dtype) {
    for (const DlpackDtype& known : dlpack_dtypes) {
        if (known.code == dtype.code && known.bits == dtype.bits && dtype.lanes == 1) return known.name;
    }
    return failure(
        Error(HOPLITE_UNSUPPORTED_DTYPE, "the tensor has elements of code " + std::to_string(dtype.code) + ", " +
                                             std::to_string(dtype.bits) + " bits and " + std::to_string(dtype.lanes) +
                                             " lanes: convert it to a dtype that Hoplite has, such as float32"));
}

inline bool is_row_major(const dlpack::Tensor& tensor) noexcept {
    std::int64_t expected = 1;
    if (tensor.strides == nullptr) return true;
    for (std::int32_t axis = tensor.ndim - 1; axis >= 0; --axis) {
        if (tensor.shape[axis] == 0) return true;
        if (tensor.shape[axis] != 1 && tensor.strides[axis] != expected) return false;
        expected *= tensor.shape[axis];
    }
    return true;
}

inline std::byte* gather(const dlpack::Tensor& tensor, std::size_t item, std::int32_t axis, const std::byte* from,
                         std::byte* to) noexcept {
    if (axis == tensor.ndim) {
        std::memcpy(to, from, item);
        return to + item;
    }
    const std::int64_t step = tensor.strides[axis] * static_cast<std::int64_t>(item);
    for (std::int64_t row = 0; row < tensor.shape[axis]; ++row)
        to = gather(tensor, item, axis + 1, from + row * step, to);
    return to;
}

inline Result<Value> value_of(const dlpack::Tensor& tensor) {
    if (tensor.device.type != 1 && tensor.device.type != 3) {
        return failure(Error(HOPLITE_UNSUPPORTED_DTYPE, "the tensor is on a device of DLPack type " +
                                                            std::to_string(tensor.device.type) +
                                                            ": copy it to the CPU first"));
    }
    const Result<const char*> name = dlpack_name(tensor.dtype);
    if (!name) return failure(name.error());
    const std::size_t item = tensor.dtype.bits / 8U;
    Shape shape(std::span(tensor.shape, static_cast<std::size_t>(tensor.ndim)));
    if (auto valid = shape.check(); !valid) return failure(valid.error());
    const std::uint64_t nbytes = shape.elements().value_or(0) * item;
    const std::byte* const data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
    if (is_row_major(tensor)) return Value::raw(*name, data, nbytes, std::move(shape));
    auto copy = std::make_shared<std::vector<std::byte>>(nbytes);
    gather(tensor, item, 0, data, copy->data());
    const void* const copied = copy->data();
    return Value::raw(*name, copied, nbytes, std::move(shape), std::move(copy));
}

/// A view that another library holds as a tensor.
template <class Managed>
struct Exported {
    Managed managed{};
    View<void> view;
    std::vector<std::int64_t> shape;
};

template <class Managed, class Public>
Result<Public*> export_view(View<void>& view) {
    if (!view)
        return failure(Error(HOPLITE_INVALID_HANDLE, "this view was moved from or released: get the object again"));
    const DlpackDtype* dtype = nullptr;
    for (const DlpackDtype& known : dlpack_dtypes) {
        if (view.dtype() == known.name) dtype = &known;
    }
    if (dtype == nullptr) {
        return failure(Error(HOPLITE_UNSUPPORTED_DTYPE,
                             "DLPack has no dtype " + std::string(view.dtype()) + ": use bytes() of the view"));
    }
    auto* const exported = new Exported<Managed>;
    for (const std::uint64_t axis : view.shape()) exported->shape.push_back(static_cast<std::int64_t>(axis));
    if (view.dtype() == "bytes") exported->shape.push_back(static_cast<std::int64_t>(view.nbytes()));
    dlpack::Tensor& tensor = exported->managed.tensor;
    tensor.data = const_cast<std::byte*>(view.bytes().data());
    tensor.device = {1, 0};
    tensor.ndim = static_cast<std::int32_t>(exported->shape.size());
    tensor.dtype = {dtype->code, dtype->bits, 1};
    tensor.shape = exported->shape.data();
    exported->view = std::move(view);
    exported->managed.context = exported;
    exported->managed.deleter = [](Public* self) {
        if (self != nullptr) delete static_cast<Exported<Managed>*>(dlpack::fields(self).context);
    };
    return reinterpret_cast<Public*>(&exported->managed);
}

}  // namespace detail

inline Value::Value(const ::DLManagedTensor* tensor) {
    Result<Value> value = tensor == nullptr
                              ? Result<Value>(detail::failure(detail::invalid("the tensor is null: pass a tensor")))
                              : detail::value_of(dlpack::fields(tensor).tensor);
    if (value) {
        *this = std::move(*value);
    } else {
        error_ = value.error();
    }
}

inline Value::Value(const ::DLManagedTensorVersioned* tensor) {
    if (tensor == nullptr) {
        error_ = detail::invalid("the tensor is null: pass a tensor");
        return;
    }
    const dlpack::ManagedTensorVersioned& fields = dlpack::fields(tensor);
    if (fields.major != 1) {
        error_ = Error(HOPLITE_UNSUPPORTED_DTYPE,
                       "the tensor is of DLPack version " + std::to_string(fields.major) + ": export it in version 1");
        return;
    }
    Result<Value> value = detail::value_of(fields.tensor);
    if (value) {
        *this = std::move(*value);
    } else {
        error_ = value.error();
    }
}

inline Result<::DLManagedTensor*> View<void>::try_to_dlpack() && {
    return detail::export_view<dlpack::ManagedTensor, ::DLManagedTensor>(*this);
}

inline Result<::DLManagedTensorVersioned*> View<void>::try_to_dlpack_versioned() && {
    auto tensor = detail::export_view<dlpack::ManagedTensorVersioned, ::DLManagedTensorVersioned>(*this);
    if (tensor) {
        dlpack::fields(*tensor).major = 1;
        dlpack::fields(*tensor).flags = 1;
    }
    return tensor;
}

}  // namespace HOPLITE_NAMESPACE
}  // namespace hoplite

#endif
