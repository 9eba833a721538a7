//! Python's buffer protocol, both ways: the only unsafe code outside `crates/shm`.

#![allow(unsafe_code)]

use std::ffi::c_int;

use pyo3::{exceptions::PyBufferError, ffi, prelude::*, types::PyTuple};

use crate::arguments;

/// An object of the store, read-only, without a copy. It holds the memory for as long as anything looks at it.
#[pyclass(frozen)]
pub(crate) struct View(pub(crate) hoplite_node::View);

#[pymethods]
impl View {
    /// `bytes`, or the dtype of the array.
    #[getter]
    fn kind(&self) -> &'static str {
        arguments::kind(self.0.meta()).0
    }

    /// The shape of the array; empty for bytes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, arguments::kind(self.0.meta()).1)
    }

    /// How many bytes there are.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.meta().size
    }

    /// Exports the bytes, read-only.
    ///
    /// # Safety
    /// Called by Python with a `view` to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().0.as_bytes();
        let len = ffi::Py_ssize_t::try_from(bytes.len())
            .map_err(|_| PyBufferError::new_err("too long for a buffer"))?;
        let read_only = 1;
        // SAFETY: `view` is Python's to be filled. The bytes stay where they are and never change while `slf` lives,
        // and the buffer holds a reference to `slf` until it is released. Python refuses writable requests itself.
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

// SAFETY: the fields are plain numbers and pointers that stay valid until the release, whichever thread looks at them;
// the release itself happens in `release`, with the interpreter attached.
unsafe impl Send for Exported {}
// SAFETY: as above; nothing here changes behind a shared reference.
unsafe impl Sync for Exported {}

impl Exported {
    /// Asks `object` for its bytes.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut buffer = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive and the buffer ours to be filled; it is released exactly once, in `release`.
        let got =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *buffer, ffi::PyBUF_SIMPLE) };
        if got == 0 { Ok(Self(buffer)) } else { Err(PyErr::fetch(object.py())) }
    }

    /// The bytes. Whoever changes them meanwhile, from another Python thread, puts what is then there.
    pub(crate) fn bytes(&self) -> &[u8] {
        let len = usize::try_from(self.0.len).unwrap_or_default();
        if len == 0 || self.0.buf.is_null() {
            return &[];
        }
        // SAFETY: the exporter keeps `len` bytes there until the release, and `self` is not released yet.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast::<u8>(), len) }
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        Python::attach(|_| {
            // SAFETY: filled by `of`, and not released before.
            unsafe { ffi::PyBuffer_Release(&mut *self.0) };
        });
    }
}
