//! Shared by the searches for an order: the clock, Ctrl-C, and errors. Independent of cost models.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use pyo3::{import_exception, prelude::*};

import_exception!(hoplite.errors, InvalidArgument);

/// Interval of checks for signals such as Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// The time limit of a search, which Ctrl-C ends too.
pub(crate) struct Clock {
    begun: Instant,
    limit: Duration,
    looked: Cell<Instant>,
    is_cut: Cell<bool>,
    interrupted: RefCell<Option<PyErr>>,
}

impl Clock {
    pub(crate) fn new(seconds: f64) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            limit: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            looked: Cell::new(begun),
            is_cut: Cell::new(false),
            interrupted: RefCell::new(None),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        if self.begun.elapsed() >= self.limit {
            self.is_cut.set(true);
        } else if self.looked.get().elapsed() >= SIGNALS_EVERY {
            self.looked.set(Instant::now());
            if let Err(error) = Python::attach(|py| py.check_signals()) {
                self.interrupted.replace(Some(error));
                self.is_cut.set(true);
            }
        }
        self.is_cut.get()
    }

    /// Returns the elapsed seconds, and whether the search was cut short.
    pub(crate) fn read(self) -> PyResult<(f64, bool)> {
        match self.interrupted.into_inner() {
            Some(error) => Err(error),
            None => Ok((self.begun.elapsed().as_secs_f64(), self.is_cut.get())),
        }
    }
}

/// Checks that all machines of an order exist, without duplicates.
pub(crate) fn check_order(order: &[u32], machines: usize) -> PyResult<()> {
    let mut is_in = vec![false; machines];
    for &machine in order {
        match is_in.get_mut(machine as usize) {
            Some(is_in) if !*is_in => *is_in = true,
            _ => {
                return Err(invalid(format!(
                    "{machine} is a duplicate in the order, or not a machine"
                )));
            }
        }
    }
    Ok(())
}

/// Converts an error of `hoplite-topology`, or a description of an invalid argument.
pub(crate) fn invalid(said: impl ToString) -> PyErr {
    InvalidArgument::new_err(said.to_string())
}
