//! Fills the cells of PyO3 when this module is imported.
//!
//! PyO3 keeps the names of fields and some types in static cells, and fills each on first use. The thread that fills
//! one waits for the interpreter meanwhile. A child that another thread forks at that moment has no such thread, and
//! its first use of the cell never returns. So no call of a program may be the first use of a cell.

use pyo3::prelude::*;

use crate::{arguments, node};

/// Uses each cell that a function of this module may use.
///
/// # Errors
/// A struct that is extracted by the names of its fields has another field than its example here.
pub(crate) fn fill(py: Python<'_>) -> PyResult<()> {
    arguments::fill_cells(py)?;
    node::fill_cells(py)?;
    // A bool of NumPy, and the errors of an argument.
    let bool_of_numpy =
        c"type('bool_', (), {'__module__': 'numpy', '__bool__': lambda self: True})()";
    py.eval(bool_of_numpy, None, None)?.extract::<bool>()?;
    drop(py.None().extract::<Vec<u64>>(py));
    drop(wrap_pyfunction!(arguments::check_name, py)?.call1((py.None(),)));
    Ok(())
}
