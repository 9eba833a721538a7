//! Implements Python's buffer protocol for stored objects, and reads the buffers of Python objects.
//!
//! This is the only module with unsafe code outside `crates/shm`.

#![allow(unsafe_code)]

use std::{
    borrow::Cow,
    ffi::c_int,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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

/// The buffers that a verb of the core uses, once it has returned them.
///
/// The core drops what a verb uses on its own threads. Releasing a buffer there would wait for the interpreter, which
/// may wait for that thread, or be gone.
#[derive(Clone, Default)]
pub(crate) struct Home(Arc<Mutex<Vec<Exported>>>);

impl Home {
    /// Lends a buffer to a verb.
    pub(crate) fn lend(&self, buffer: Exported) -> Lent {
        Lent { buffer: Some(buffer), home: self.clone() }
    }
}

/// A lent buffer; returned when it is dropped.
pub(crate) struct Lent {
    buffer: Option<Exported>,
    home: Home,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], Exported::bytes)
    }
}

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], Exported::bytes_mut)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.0.lock().unwrap_or_else(PoisonError::into_inner).extend(self.buffer.take());
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
        let sealing = sealing.map_err(|error| errors::of(py, error))?;
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
            let space = writer.into_space().map_err(|error| errors::of(slf.py(), error))?;
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
