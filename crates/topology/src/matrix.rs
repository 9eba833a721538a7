//! The round-trip times between machines, as a symmetric matrix.

/// Above this a round trip isn't believed: 1000 s.
pub const RTT_US_MAX: f64 = 1e9;

/// Why numbers are no matrix of round-trip times.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// There is no machine.
    #[error("there is no machine")]
    Empty,
    /// The count of numbers is no square of the count of machines.
    #[error("{got} numbers are no matrix of {machines} machines, which has {}", machines * machines)]
    Shape {
        /// How many machines there are.
        machines: usize,
        /// How many numbers came.
        got: usize,
    },
    /// A number is none, negative or absurdly large.
    #[error("the time from machine {row} to machine {column} is {value}, not 0 to 1e9 us")]
    Value {
        /// The machine that asks.
        row: usize,
        /// The machine that answers.
        column: usize,
        /// What came.
        value: f64,
    },
    /// The two directions of a pair differ.
    #[error(
        "machines {row} and {column} have the times {there} and {back} us in the two directions"
    )]
    Asymmetric {
        /// The one machine.
        row: usize,
        /// The other one.
        column: usize,
        /// The time as the first measured it.
        there: f64,
        /// The time as the second measured it.
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
    /// A matrix of its rows, one after the other; the diagonal isn't looked at.
    ///
    /// # Errors
    /// The numbers are no symmetric matrix of round-trip times.
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

    /// A matrix of what a function says of each pair, the lower number second.
    ///
    /// # Panics
    /// The function gives a number that is no round-trip time.
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

    /// How many machines there are.
    #[expect(clippy::len_without_is_empty, reason = "a matrix has at least one machine")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The time between two machines.
    #[inline]
    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.cells[row * self.len + column]
    }

    /// The times from a machine to each.
    #[inline]
    pub fn row(&self, row: usize) -> &[f64] {
        &self.cells[row * self.len..(row + 1) * self.len]
    }

    /// All times, row by row.
    pub fn cells(&self) -> &[f64] {
        &self.cells
    }

    /// The longest time.
    pub fn max(&self) -> f64 {
        self.cells.iter().copied().fold(0.0, f64::max)
    }

    /// The matrix of some of the machines, in that order.
    pub fn part(&self, machines: &[u32]) -> Self {
        Self::of(machines.len(), |row, column| {
            self.at(machines[row] as usize, machines[column] as usize)
        })
    }

    /// For each machine the `count` others that are nearest, the nearest first.
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
    fn numbers_that_are_no_times_are_refused() {
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
