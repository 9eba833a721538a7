//! Round-trip times between machines, as a symmetric matrix.

/// Longest accepted round-trip time: 1000 s.
pub const RTT_US_MAX: f64 = 1e9;

/// Numbers that are not a matrix of round-trip times.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The matrix has no machine.
    #[error("the matrix has no machine: pass at least one")]
    Empty,
    /// The number of values is not the square of the number of machines.
    #[error("a matrix of {machines} machines must have {} numbers, not {got}", machines * machines)]
    Shape {
        /// Number of machines.
        machines: usize,
        /// Number of values passed.
        got: usize,
    },
    /// A value is NaN, negative or too large.
    #[error(
        "the time from machine {row} to machine {column} is {value} us: pass a value from 0 to 1e9"
    )]
    Value {
        /// The machine that measured.
        row: usize,
        /// The machine that replied.
        column: usize,
        /// The value passed.
        value: f64,
    },
    /// The two directions of a pair differ.
    #[error(
        "the times between machines {row} and {column} differ by direction ({there} and {back} us): pass equal times"
    )]
    Asymmetric {
        /// The first machine.
        row: usize,
        /// The second machine.
        column: usize,
        /// The time measured by the first machine.
        there: f64,
        /// The time measured by the second machine.
        back: f64,
    },
}

/// Round-trip times in microseconds; the diagonal is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    len: usize,
    cells: Vec<f64>,
}

impl Matrix {
    /// Creates a matrix from its rows, concatenated. Values on the diagonal are ignored.
    ///
    /// # Errors
    /// The numbers are not a symmetric matrix of round-trip times.
    pub fn new(len: usize, mut cells: Vec<f64>) -> Result<Self, Error> {
        if len == 0 {
            return Err(Error::Empty);
        }
        if len.checked_mul(len) != Some(cells.len()) {
            return Err(Error::Shape { machines: len, got: cells.len() });
        }
        for row in 0..len {
            cells[row * len + row] = 0.0;
            for column in 0..len {
                let value = cells[row * len + column];
                if column != row && !(0.0..=RTT_US_MAX).contains(&value) {
                    return Err(Error::Value { row, column, value });
                }
            }
        }
        for row in 0..len {
            for column in 0..row {
                let (there, back) = (cells[row * len + column], cells[column * len + row]);
                if (there - back).abs() > 1e-9 * there.max(back) {
                    return Err(Error::Asymmetric { row, column, there, back });
                }
                cells[column * len + row] = there;
            }
        }
        Ok(Self { len, cells })
    }

    /// Creates a matrix by calling `time` for each pair, with the higher number first.
    ///
    /// # Panics
    /// The function returns an invalid round-trip time.
    pub fn of(len: usize, mut time: impl FnMut(usize, usize) -> f64) -> Self {
        let mut cells = vec![0.0; len * len];
        for row in 0..len {
            for column in 0..row {
                let value = time(row, column);
                cells[row * len + column] = value;
                cells[column * len + row] = value;
            }
        }
        Self::new(len, cells).expect("a matrix that is computed")
    }

    /// Number of machines.
    #[expect(clippy::len_without_is_empty, reason = "a matrix has at least one machine")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Time between two machines.
    #[inline]
    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.cells[row * self.len + column]
    }

    /// Times from a machine to every machine.
    #[inline]
    pub fn row(&self, row: usize) -> &[f64] {
        &self.cells[row * self.len..(row + 1) * self.len]
    }

    /// All times, row by row.
    pub fn cells(&self) -> &[f64] {
        &self.cells
    }

    /// Longest time.
    pub fn max(&self) -> f64 {
        self.cells.iter().copied().fold(0.0, f64::max)
    }

    /// Matrix of a subset of the machines, in the given order.
    pub fn part(&self, machines: &[u32]) -> Self {
        Self::of(machines.len(), |row, column| {
            self.at(machines[row] as usize, machines[column] as usize)
        })
    }

    /// For each machine, the `count` nearest others, nearest first.
    pub fn nearest(&self, count: usize) -> Vec<Vec<u32>> {
        (0..self.len)
            .map(|machine| {
                let row = self.row(machine);
                let mut others: Vec<u32> = Vec::with_capacity(count + 1);
                let mut last = f64::INFINITY;
                for (other, &time) in row.iter().enumerate() {
                    if other == machine || (others.len() >= count && time >= last) {
                        continue;
                    }
                    let at = others.partition_point(|&before| row[before as usize] <= time);
                    others.insert(at, other as u32);
                    others.truncate(count);
                    last = others.last().map_or(f64::NEG_INFINITY, |&last| row[last as usize]);
                }
                others
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_times_are_refused() {
        assert_eq!(Matrix::new(0, vec![]), Err(Error::Empty));
        assert_eq!(Matrix::new(2, vec![0.0; 3]), Err(Error::Shape { machines: 2, got: 3 }));
        for bad in [f64::NAN, -1.0, f64::INFINITY, 2e9] {
            let error = Matrix::new(2, vec![0.0, bad, bad, 0.0]).unwrap_err();
            assert!(matches!(error, Error::Value { row: 0, column: 1, .. }), "{error}");
        }
        let error = Matrix::new(2, vec![0.0, 1.0, 2.0, 0.0]).unwrap_err();
        assert_eq!(error, Error::Asymmetric { row: 1, column: 0, there: 2.0, back: 1.0 });
        assert!(Matrix::new(2, vec![f64::NAN, 1.0, 1.0, -3.0]).is_ok());
    }

    #[test]
    fn the_nearest_come_in_order() {
        let line = Matrix::of(5, |a, b| (a as f64 - b as f64).abs());
        assert_eq!(line.nearest(2)[0], [1, 2]);
        assert_eq!(line.nearest(9)[2], [1, 3, 0, 4]);
    }
}
