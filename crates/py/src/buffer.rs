//! Implements Python's buffer protocol for stored objects, and reads the buffers of Python objects.
//!
//! This is the only module with unsafe code outside `crates/shm`.

#![allow(unsafe_code)]

use std::{
    borrow::Cow,
    ffi::c_int,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use pyo3::{
    exceptions::PyBufferError,
    ffi,
    prelude::*,
    types::{PyString, PyTuple},
};

use crate::{arguments, errors, wait::Pending};

/// Read-only view of a stored object, without a copy. It pins the memory while any buffer of it exists.
#[pyclass(frozen)]
pub(crate) struct View(pub(crate) hoplite_node::View);

#[pymethods]
impl View {
    /// `bytes`, or the dtype of the array.
    #[getter]
    fn kind(&self) -> Cow<'static, str> {
        arguments::kind(self.0.meta()).0
    }

    /// Type of the value: `plain`, `torch`, `arrow` or `pickle`.
    #[getter]
    fn form(&self) -> &'static str {
        self.0.meta().form.name()
    }

    /// The shape of the array; empty for bytes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, arguments::kind(self.0.meta()).1)
    }

    /// Size in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.meta().size
    }

    /// Exports the bytes, read-only.
    ///
    /// # Safety
    /// Python calls this with a `view` to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().0.as_bytes();
        let len = ffi::Py_ssize_t::try_from(bytes.len())
            .map_err(|_| PyBufferError::new_err("the object is too large for a Python buffer"))?;
        let read_only = 1;
        // SAFETY: Python passes `view` to be filled. The bytes neither move nor change while `slf` lives, and the
        // buffer holds a reference to `slf` until it is released. Python itself rejects writable requests.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                bytes.as_ptr().cast_mut().cast(),
                len,
                read_only,
                flags,
            )
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// The bytes of a Python object that exports a C-contiguous buffer, held until this is dropped.
pub(crate) struct Exported(Box<ffi::Py_buffer>);

// SAFETY: the fields are numbers and pointers that stay valid until the release, on any thread. `drop` releases the
// buffer with the interpreter attached.
unsafe impl Send for Exported {}
// SAFETY: as above; nothing changes behind a shared reference.
unsafe impl Sync for Exported {}

impl Exported {
    /// Requests a read-only buffer of `object`.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::with_flags(object, ffi::PyBUF_SIMPLE)
    }

    /// Requests a read-only buffer of each object.
    pub(crate) fn of_all(objects: &[Bound<'_, PyAny>]) -> PyResult<Vec<Self>> {
        objects.iter().map(Self::of).collect()
    }

    /// Requests a writable buffer of `object`.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::with_flags(object, ffi::PyBUF_WRITABLE)
    }

    fn with_flags(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut buffer = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive, and we own the buffer to fill. `drop` releases it exactly once.
        let got = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *buffer, flags) };
        if got == 0 { Ok(Self(buffer)) } else { Err(PyErr::fetch(object.py())) }
    }

    /// Returns the bytes. If another Python thread changes them meanwhile, a put stores the changed bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        let len = usize::try_from(self.0.len).unwrap_or_default();
        if len == 0 || self.0.buf.is_null() {
            return &[];
        }
        // SAFETY: the exporter keeps `len` bytes at `buf` until the release, and `self` is not released yet.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast::<u8>(), len) }
    }

    /// Returns the bytes of a writable buffer; empty if the buffer is read-only.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = usize::try_from(self.0.len).unwrap_or_default();
        if len == 0 || self.0.buf.is_null() || self.0.readonly != 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`, and the exporter allows writes. Python code that accesses the bytes meanwhile in
        // another thread races with its own request, as with any call that fills a buffer.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf.cast::<u8>(), len) }
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        Python::attach(|_| {
            // SAFETY: filled by `with_flags`, and not released before.
            unsafe { ffi::PyBuffer_Release(&mut *self.0) };
        });
    }
}

/// Memory for a new object: written at once, or filled in place through the buffer protocol, then sealed.
#[pyclass(frozen)]
pub(crate) struct Space {
    room: Mutex<Room>,
    /// Number of buffers of it that Python holds.
    exports: AtomicUsize,
}

enum Room {
    Untouched(hoplite_node::Writer),
    Exported(hoplite_node::Space),
    Gone,
}

impl Space {
    pub(crate) fn new(writer: hoplite_node::Writer) -> Self {
        Self { room: Mutex::new(Room::Untouched(writer)), exports: AtomicUsize::new(0) }
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the room if no buffer of it exists; otherwise returns the number of buffers.
    fn take(&self) -> Result<Room, usize> {
        // A thread that exports a buffer counts it before it releases this lock.
        let mut room = self.room();
        match self.exports.load(Ordering::Acquire) {
            0 => Ok(std::mem::replace(&mut *room, Room::Gone)),
            views => Err(views),
        }
    }
}

#[pymethods]
impl Space {
    /// The ref of the object once it is sealed.
    #[getter]
    fn r#ref(&self) -> Option<String> {
        match &*self.room() {
            Room::Untouched(writer) => Some(writer.id().to_string()),
            Room::Exported(space) => Some(space.id().to_string()),
            Room::Gone => None,
        }
    }

    /// Number of buffers of it that Python holds.
    #[getter]
    fn exports(&self) -> usize {
        self.exports.load(Ordering::Acquire)
    }

    /// Copies all parts into the object. Receivers can read them while the copy is running.
    fn write(&self, py: Python<'_>, parts: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let parts = Exported::of_all(&parts)?;
        let written = py.detach(|| {
            let bytes: Vec<&[u8]> = parts.iter().map(Exported::bytes).collect();
            match &*self.room() {
                Room::Untouched(writer) => Some(writer.write_parts(&bytes)),
                Room::Exported(_) | Room::Gone => None,
            }
        });
        let written = written.ok_or_else(|| errors::raise(py, "InvalidArgument", GONE.into()))?;
        written.map_err(|error| errors::of(py, &error))
    }

    /// Seals the object: no more writes, also if the reply does not arrive within the timeout.
    fn seal(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Pending> {
        let timeout = arguments::timeout(py, timeout)?;
        let room = self.take().map_err(|views| {
            let message = format!(
                "{views} writable views of the buffer exist and could change the object after the seal: delete \
                 them first (del array), or fill the buffer with buf[...] = values"
            );
            errors::raise(py, "InvalidArgument", message)
        })?;
        let sealing = py.detach(|| match room {
            Room::Untouched(writer) if writer.is_complete() => Some(writer.seal(timeout)),
            // No view was taken: the object has whatever bytes the memory holds, as with a view that was never written.
            Room::Untouched(writer) => {
                Some(writer.into_space().and_then(|space| space.seal(timeout)))
            }
            Room::Exported(space) => Some(space.seal(timeout)),
            Room::Gone => None,
        });
        let sealing = sealing.ok_or_else(|| errors::raise(py, "InvalidArgument", GONE.into()))?;
        let sealing = sealing.map_err(|error| errors::of(py, &error))?;
        Ok(Pending::new(sealing, |py, id| {
            Ok(PyString::new(py, &id.to_string()).into_any().unbind())
        }))
    }

    /// Returns the memory. If buffers of it exist, the last one returns it.
    fn discard(&self, py: Python<'_>) {
        if let Ok(room) = self.take() {
            py.detach(|| drop(room));
        }
    }

    /// Exports the bytes, writable.
    ///
    /// # Safety
    /// Python calls this with a `view` to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let mut room = this.room();
        if let Room::Untouched(_) = *room
            && let Room::Untouched(writer) = std::mem::replace(&mut *room, Room::Gone)
        {
            let space = writer.into_space().map_err(|error| errors::of(slf.py(), &error))?;
            *room = Room::Exported(space);
        }
        let Room::Exported(space) = &mut *room else {
            return Err(PyBufferError::new_err(GONE));
        };
        let bytes = space.bytes();
        let len = ffi::Py_ssize_t::try_from(bytes.len())
            .map_err(|_| PyBufferError::new_err("the object is too large for a Python buffer"))?;
        // SAFETY: Python passes `view` to be filled. The bytes do not move until `slf` is sealed, which is refused
        // while `exports` counts this buffer. The buffer holds a reference to `slf`. No other code has these bytes: all
        // of them are claimed until the seal.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), bytes.as_mut_ptr().cast(), len, 0, flags)
        };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        this.exports.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Counts a buffer as released.
    ///
    /// # Safety
    /// Python calls this once for each successful `__getbuffer__`.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, Ordering::AcqRel);
    }
}

const GONE: &str =
    "the buffer is already sealed or discarded: create a new buffer for another object";

/// Copies an object that is still arriving into memory of the caller, block by block.
#[pyclass(frozen)]
pub(crate) struct Copier(Mutex<Copying>);

struct Copying {
    out: Exported,
    from: Option<hoplite_node::PartialView>,
    /// Bytes before this offset have been copied.
    end: u64,
}

#[pymethods]
impl Copier {
    #[new]
    fn new(out: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(Mutex::new(Copying { out: Exported::writable(out)?, from: None, end: 0 })))
    }

    /// Copies from `growing` from now on. Returns its kind, shape, form and size, or `None` if it was already taken.
    fn follow(
        &self,
        growing: &Growing,
    ) -> Option<(Cow<'static, str>, Vec<u64>, &'static str, u64)> {
        let growing = growing.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let meta = growing.meta();
        let (kind, shape) = arguments::kind(meta);
        let message = (kind, shape.to_vec(), meta.form.name(), meta.size);
        self.copying().from = Some(growing);
        Some(message)
    }

    /// Copies the blocks that have arrived since the last call. Returns the total number of bytes copied.
    fn more(&self, py: Python<'_>) -> u64 {
        py.detach(|| {
            let Copying { out, from, end } = &mut *self.copying();
            if let Some(growing) = from {
                *end = growing.copy_to(*end, out.bytes_mut());
            }
            *end
        })
    }

    /// Copies the rest of the object. The memory must be exactly as long as the object.
    fn finish(&self, py: Python<'_>, view: &View) -> PyResult<()> {
        let fits = py.detach(|| {
            let Copying { out, from, end } = &mut *self.copying();
            let is_same = from.take().is_some_and(|growing| growing.becomes(&view.0));
            let start = if is_same { usize::try_from(*end).unwrap_or_default() } else { 0 };
            let (bytes, out) = (view.0.as_bytes(), out.bytes_mut());
            let fits = bytes.len() == out.len();
            if fits {
                out[start..].copy_from_slice(&bytes[start..]);
                view.0.note_copied();
            }
            fits
        });
        if fits {
            Ok(())
        } else {
            Err(PyBufferError::new_err(
                "out and the object have different sizes: pass an out of the object's size",
            ))
        }
    }
}

impl Copier {
    fn copying(&self) -> MutexGuard<'_, Copying> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An object that is still arriving.
#[pyclass(frozen)]
pub(crate) struct Growing(pub(crate) Mutex<Option<hoplite_node::PartialView>>);
