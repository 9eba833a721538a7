// Clients for the contract cases: of one node or of three, with each form of the verbs.
//
// A case is written once, with the verbs of `Verbs`, which block and throw. `Verbs` runs the asynchronous forms too.
// After every case, no request is pending, and its objects are deleted.
#pragma once

#include <memory>
#include <mutex>

#include "support.hpp"

enum class Place { embedded, attached, cluster };
enum class How { blocking, future, coroutine };

// A coroutine that no one waits for.
struct Detached {
    struct promise_type {
        Detached get_return_object() { return {}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
};

// Awaits a call in a coroutine, and blocks this thread until it is over.
template <class T>
T run_coroutine(hoplite::Pending<T> call) {
    std::promise<T> promise;
    std::future<T> future = promise.get_future();
    [](hoplite::Pending<T> pending, std::promise<T> result) -> Detached {
        try {
            if constexpr (std::is_void_v<T>) {
                co_await pending;
                result.set_value();
            } else {
                result.set_value(co_await pending);
            }
        } catch (...) {
            result.set_exception(std::current_exception());
        }
    }(std::move(call), std::move(promise));
    return future.get();
}

template <class T>
T finish(How how, hoplite::Pending<T> call) {
    return how == How::coroutine ? run_coroutine(std::move(call)) : std::move(call).future().get();
}

// The verbs of a client in one of their forms.
class Verbs {
public:
    Verbs(hoplite::Client of, How as) : client(std::move(of)), how(as) {}

    hoplite::Ref put(const hoplite::Value& value, const hoplite::PutOptions& options = {}) const {
        return how == How::blocking ? client.put(value, options) : finish(how, client.put_async(value, options));
    }
    template <class T = float>
    hoplite::Buffer<T> create(const hoplite::Shape& shape, const hoplite::CreateOptions& options = {}) const {
        return how == How::blocking ? client.create<T>(shape, options)
                                    : finish(how, client.create_async<T>(shape, options));
    }
    template <class T>
    hoplite::Ref seal(hoplite::Buffer<T>& buffer, const hoplite::SealOptions& options = {}) const {
        return how == How::blocking ? buffer.seal(options) : finish(how, buffer.seal_async(options));
    }
    template <class T = void>
    hoplite::View<T> get(hoplite::Name ref, const hoplite::GetOptions& options = {.timeout = SOON}) const {
        return how == How::blocking ? client.get<T>(ref, options) : finish(how, client.get_async<T>(ref, options));
    }
    template <class R>
    std::uint64_t get_into(hoplite::Name ref, R&& out,
                           const hoplite::GetIntoOptions& options = {.timeout = SOON}) const {
        return how == How::blocking ? client.get_into(ref, out, options)
                                    : finish(how, client.get_into_async(ref, out, options));
    }
    hoplite::Waited wait(const hoplite::Names& refs, const hoplite::WaitOptions& options = {.timeout = SOON}) const {
        return how == How::blocking ? client.wait(refs, options) : finish(how, client.wait_async(refs, options));
    }
    hoplite::Ref reduce(const hoplite::Names& inputs, const std::string& op = "sum",
                        const hoplite::ReduceOptions& options = {}) const {
        return how == How::blocking ? client.reduce(inputs, op, options)
                                    : finish(how, client.reduce_async(inputs, op, options));
    }
    std::vector<hoplite::Ref> inputs(hoplite::Name ref,
                                     const hoplite::WaitingOptions& options = {.timeout = SOON}) const {
        return how == How::blocking ? client.inputs(ref, options) : finish(how, client.inputs_async(ref, options));
    }
    std::vector<hoplite::Ref> lost(hoplite::Name ref,
                                   const hoplite::WaitingOptions& options = {.timeout = SOON}) const {
        return how == How::blocking ? client.lost(ref, options) : finish(how, client.lost_async(ref, options));
    }
    hoplite::Ref latest(hoplite::Name prefix, const hoplite::LatestOptions& options = {.timeout = SOON}) const {
        return how == How::blocking ? client.latest(prefix, options)
                                    : finish(how, client.latest_async(prefix, options));
    }
    void del(const hoplite::Names& refs, const hoplite::WaitingOptions& options = {.timeout = SOON}) const {
        how == How::blocking ? client.del(refs, options) : finish(how, client.del_async(refs, options));
    }
    hoplite::Ref reserve(const hoplite::ReserveOptions& options = {.timeout = SOON}) const {
        return how == How::blocking ? client.reserve(options) : finish(how, client.reserve_async(options));
    }
    std::vector<hoplite::Ref> slots(std::uint32_t count) const {
        return how == How::blocking ? client.slots(count) : finish(how, client.slots_async(count));
    }
    hoplite::Lease lease(hoplite::Name ref) const {
        return how == How::blocking ? client.lease(ref) : finish(how, client.lease_async(ref));
    }
    std::vector<hoplite::Location> locations(hoplite::Name ref) const {
        return how == How::blocking ? client.locations(ref) : finish(how, client.locations_async(ref));
    }
    std::string status() const { return how == How::blocking ? client.status() : finish(how, client.status_async()); }
    long long waiting() const { return integer(client.status(), "waiting"); }

    hoplite::Client client;
    How how;
};

// Three nodes and their clients, shared by all cases.
class Stage {
public:
    static Stage& get();
    static void close();

    std::vector<hoplite::Node> nodes;
    // The putter, getter and reducer of each place.
    std::vector<hoplite::Client> clients[3];

private:
    Stage();
};

class Contract : public testing::TestWithParam<std::tuple<Place, How>> {
protected:
    void SetUp() override;
    void TearDown() override;

    // A name that no other case uses, and that is deleted after the case.
    std::string name(const std::string& text = "object");
    std::string name(std::size_t number) { return name(std::to_string(number)); }

    // Deletes an object after the case.
    hoplite::Ref mine(hoplite::Ref ref);

    // A new client of the putter's node, of the same kind.
    Verbs another() const;

    const Verbs& verbs(std::size_t number) const { return *all[number % 3]; }

    // Requests that wait on all nodes of the case.
    long long waiting() const;

    // Waits until no node has a pending request or an active reduce.
    void settled() const;

    Place place() const { return std::get<0>(GetParam()); }
    How how() const { return std::get<1>(GetParam()); }

    std::unique_ptr<Verbs> putter, getter, reducer;
    std::vector<const Verbs*> all;
    std::size_t node_count = 1;

private:
    std::string prefix_;
    std::vector<std::string> names_;
};
