//! Functions about the life and the place of objects: delete, leases, locations, and the status of the node.

use std::ffi::c_char;

use crate::{
    arguments::{limited, refs as texts, required, text as in_text},
    client,
    code::Code,
    errors::call,
    open::{LEASES, LOCATIONS, TEXTS},
    outputs::{open_locations, open_text, take_id},
    values::{Client, Lease, Locations, Text},
    versioned::Out,
};

/// Deletes all copies of objects on all nodes. Views of them stay valid; the names can be put again.
///
/// @param refs refs or names; may be NULL if `n` is 0.
/// @param n number of refs.
/// @param timeout seconds to wait for the confirmation of the objects' owners.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_delete(
    client: Client,
    refs: *const *const c_char,
    n: usize,
    timeout: f64,
) -> Code {
    call(|| {
        let client = client::of(client)?;
        // SAFETY: the obligations of the header.
        Ok(limited(client.delete(unsafe { texts(refs, n) }?), timeout)?.wait()?)
    })
}

/// Takes a lease of an object, which need not exist yet.
///
/// @param ref ref or name of the object.
/// @param timeout seconds to wait until the owner of the object has registered the lease.
/// @param[out] lease handle of the lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_lease_acquire(
    client: Client,
    r#ref: *const c_char,
    timeout: f64,
    lease: *mut Lease,
) -> Code {
    call(|| {
        let out = required(lease, "lease")?;
        let client = client::of(client)?;
        // SAFETY: the obligations of the header.
        let lease = client.lease(unsafe { in_text(r#ref, "ref") }?);
        let id = LEASES.insert(limited(lease, timeout)?.wait()?)?;
        // SAFETY: the obligations of the header.
        unsafe { out.write(Lease { id }) };
        Ok(())
    })
}

/// Ends a lease, without waiting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_lease_release(lease: Lease) -> Code {
    call(|| {
        LEASES.remove(lease.id)?.release();
        Ok(())
    })
}

/// Lists the nodes that hold an object, completely or in part.
///
/// @param ref ref or name of the object.
/// @param timeout seconds to wait for the reply of the object's owner.
/// @param[out] locations the nodes; none if the object does not exist. Set its `size` before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_get_locations(
    client: Client,
    r#ref: *const c_char,
    timeout: f64,
    locations: *mut Locations,
) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let (out, r#ref) = unsafe { (Out::new(locations, "locations")?, in_text(r#ref, "ref")?) };
        let client = client::of(client)?;
        open_locations(out, &limited(client.locations(r#ref), timeout)?.wait()?)
    })
}

/// Releases a list of locations: its pointers must not be used afterwards.
///
/// @param locations its `id` becomes 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_locations_release(locations: *mut Locations) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let id = unsafe { take_id(locations, "locations", |list| &raw mut (*list).id) }?;
        drop(LOCATIONS.remove(id)?);
        Ok(())
    })
}

/// Returns the state of the node and its cluster as JSON.
///
/// @param timeout seconds to wait for the node.
/// @param[out] text the JSON. Set its `size` before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_status(client: Client, timeout: f64, text: *mut Text) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        let out = unsafe { Out::new(text, "text") }?;
        let client = client::of(client)?;
        open_text(out, &limited(client.status(), timeout)?.wait()?)
    })
}

/// Releases a text: its pointer must not be used afterwards.
///
/// @param text its `id` becomes 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hoplite_text_release(text: *mut Text) -> Code {
    call(|| {
        // SAFETY: the obligations of the header.
        drop(TEXTS.remove(unsafe { take_id(text, "text", |text| &raw mut (*text).id) }?)?);
        Ok(())
    })
}
