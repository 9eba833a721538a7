//! Results of calls: converts those of the client core to structs of the header, and keeps what their pointers need.

use std::{
    ffi::{CStr, CString},
    ptr::{NonNull, null},
    sync::{Mutex, PoisonError},
};

use crate::{
    arguments::Flag,
    code::Code,
    errors::{Failure, Result},
    names,
    open::{BUFFERS, LOCATIONS, OpenLocations, OpenRefs, OpenView, REFS, TEXTS, VIEWS},
    values::{Buffer, Location, Locations, REF_BYTES, Ref, Refs, Text, View},
    versioned::{self, Out},
};

/// Writes a ref.
///
/// # Safety
/// `out` points to writable memory for a ref.
pub(crate) unsafe fn write_ref(out: NonNull<Ref>, reference: &hoplite::Ref) -> Result<()> {
    let text = reference.as_str();
    if text.len() >= REF_BYTES {
        let message = format!("the ref has {} bytes, more than {REF_BYTES}", text.len());
        return Err(Failure::new(Code::Internal, message));
    }
    let to = out.as_ptr();
    // SAFETY: the memory is writable, and the text with its NUL fits.
    unsafe {
        let characters = (&raw mut (*to).text).cast::<u8>();
        characters.copy_from_nonoverlapping(text.as_ptr(), text.len());
        characters.add(text.len()).write(0);
        (&raw mut (*to).replicas).write(reference.replicas().unwrap_or_default());
    }
    Ok(())
}

/// Writes the result of a wait.
///
/// # Safety
/// `ready` is null or has writable memory for `room` numbers, and `number` for one.
pub(crate) unsafe fn write_ready(
    found: &[usize],
    ready: *mut usize,
    room: usize,
    number: NonNull<usize>,
) -> Result<()> {
    if found.len() > room {
        let message = format!(
            "ready has room for {room} indices, but {} refs are ready: pass the n of the call",
            found.len()
        );
        return Err(Failure::argument(message));
    }
    if ready.is_null() && !found.is_empty() {
        return Err(versioned::null("ready"));
    }
    // SAFETY: as the caller ensures.
    unsafe {
        if !found.is_empty() {
            ready.copy_from_nonoverlapping(found.as_ptr(), found.len());
        }
        number.write(found.len());
    }
    Ok(())
}

/// Opens a view for the caller.
pub(crate) fn open_view(out: Out<View>, view: hoplite::View) -> Result<()> {
    let known = names::dtype(view.dtype());
    let owned = if known.is_none() { Some(c_text(view.dtype())) } else { None };
    // On the heap, so that the pointers stay valid when the table grows.
    let open = Box::new(OpenView { view, dtype: owned });
    let (bytes, shape) = (open.view.bytes(), open.view.shape());
    let mut written = View {
        size: 0,
        id: 0,
        data: bytes.as_ptr().cast(),
        nbytes: bytes.len() as u64,
        dtype: known.or(open.dtype.as_deref()).map_or(null(), CStr::as_ptr),
        form: names::form(open.view.form()).as_ptr(),
        ndim: shape.len() as u32,
        shape: shape.as_ptr(),
    };
    written.id = VIEWS.insert(open)?;
    out.write(&written);
    Ok(())
}

/// Opens a buffer for the caller.
pub(crate) fn open_buffer(out: Out<Buffer>, mut buffer: hoplite::Buffer) -> Result<()> {
    let mut written = Buffer {
        size: 0,
        id: 0,
        data: buffer.bytes_mut().as_mut_ptr().cast(),
        nbytes: buffer.nbytes(),
        r#ref: Ref { text: [0; REF_BYTES], replicas: 0 },
    };
    // SAFETY: the ref is memory of this function.
    unsafe { write_ref(NonNull::from(&mut written.r#ref), buffer.reference()) }?;
    written.id = BUFFERS.insert(Mutex::new(buffer))?;
    out.write(&written);
    Ok(())
}

/// Takes a buffer back, and marks the caller's struct as released.
///
/// # Safety
/// `buffer` is null or points to a struct of the header.
pub(crate) unsafe fn take_buffer(buffer: *mut Buffer) -> Result<hoplite::Buffer> {
    // SAFETY: as the caller ensures.
    let handle = unsafe { take_id(buffer, "buffer", |buffer| &raw mut (*buffer).id) }?;
    Ok(BUFFERS.remove(handle)?.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Takes the handle out of the caller's struct, and leaves 0.
///
/// # Safety
/// `out` is null or points to a struct of the header, of which `field` returns the field with the handle.
pub(crate) unsafe fn take_id<T>(
    out: *mut T,
    parameter: &str,
    field: impl FnOnce(*mut T) -> *mut u64,
) -> Result<u64> {
    let out = crate::arguments::required(out, parameter)?;
    // SAFETY: the pointer leads to a field of the caller's struct.
    Ok(unsafe { field(out.as_ptr()).replace(0) })
}

/// Opens a list of refs for the caller.
pub(crate) fn open_refs(out: Out<Refs>, refs: &[hoplite::Ref]) -> Result<()> {
    let texts: Vec<_> = refs.iter().map(|reference| c_text(reference.as_str())).collect();
    let pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
    let open = OpenRefs { _texts: texts, pointers };
    let (items, count) = (open.pointers.as_ptr(), open.pointers.len());
    let id = REFS.insert(open)?;
    out.write(&Refs { size: 0, id, items, count });
    Ok(())
}

/// Opens a list of locations for the caller.
pub(crate) fn open_locations(out: Out<Locations>, all: &[hoplite::Location]) -> Result<()> {
    let texts: Vec<_> = all
        .iter()
        .map(|location| (c_text(&location.node), location.address.as_deref().map(c_text)))
        .collect();
    let item =
        |(location, (node, address)): (&hoplite::Location, &(CString, Option<CString>))| Location {
            node: node.as_ptr(),
            address: address.as_deref().map_or(null(), CStr::as_ptr),
            complete: Flag::new(location.complete),
        };
    let items: Vec<_> = all.iter().zip(&texts).map(item).collect();
    let open = OpenLocations { _texts: texts, items };
    let (items, count) = (open.items.as_ptr(), open.items.len());
    let id = LOCATIONS.insert(open)?;
    out.write(&Locations { size: 0, id, items, count });
    Ok(())
}

/// Opens a text for the caller.
pub(crate) fn open_text(out: Out<Text>, text: &str) -> Result<()> {
    let open = c_text(text);
    let (text, length) = (open.as_ptr(), open.as_bytes().len());
    let id = TEXTS.insert(open)?;
    out.write(&Text { size: 0, id, text, length });
    Ok(())
}

/// A text with a final NUL. One that has a NUL inside ends there.
pub(crate) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}
