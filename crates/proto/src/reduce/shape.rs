//! Shapes of a reduce tree: parents and children when inputs take positions one after another.
//!
//! Positions are numbered in order: left subtree, node, right subtree. The next input to arrive
//! takes the next position, so everything that it folds on its left has already arrived. Links
//! between arrived inputs therefore exist at once (Hoplite, SIGCOMM 2021, section 4). Seven inputs
//! in a binary tree and in a chain, a parent above its children:
//!
//! ```text
//!         3                     6
//!     1       5               5
//!   0   2   4   6           4
//!                         ...
//! ```
//!
//! A tree that is closed after `m` arrivals is the same tree without the positions from `m` on. A
//! vacant position is replaced by the top of its left subtree, since everything on its right is
//! vacant as well.
//!
//! Does not depend on nodes, inputs or time.

use alloc::vec::Vec;
use core::{fmt, ops::Range};

use serde::{Deserialize, Serialize};

/// Children per position, the paper's d: one of {1, 2, n}.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Degree {
    /// d = 1: each position folds the previous one and sends the result on.
    Chain,
    /// d = 2: a balanced tree.
    Binary,
    /// d = n: the caller fetches from every position itself.
    Star,
}

impl Degree {
    /// Every degree, in the order that decides ties.
    pub const ALL: [Self; 3] = [Self::Chain, Self::Binary, Self::Star];
}

impl fmt::Display for Degree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Chain => "1",
            Self::Binary => "2",
            Self::Star => "n",
        })
    }
}

/// A tree of `positions` positions, or a star, which consists of that many trees of one.
///
/// Methods that take a position panic if the shape does not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Children per position.
    pub degree: Degree,
    /// Number of positions, counted from 0.
    pub positions: u32,
}

impl Shape {
    /// The positions whose streams `position` folds, left before right; none in a star.
    pub fn children(&self, position: u32) -> Vec<u32> {
        self.children_within(position, self.positions)
    }

    /// The children of `position`, left before right, if only the positions below `assigned` are
    /// taken.
    pub fn children_within(&self, position: u32, assigned: u32) -> Vec<u32> {
        self.check(position);
        assert!(position < assigned, "position {position} is vacant with {assigned} seated");
        match self.degree {
            Degree::Chain => position.checked_sub(1).into_iter().collect(),
            Degree::Binary => {
                let span = self.span(position);
                let sides = [span.start..position, position + 1..span.end];
                sides.into_iter().filter_map(|side| top(side, assigned)).collect()
            }
            Degree::Star => Vec::new(),
        }
    }

    /// The positions that the caller fetches from, if only those below `assigned` are taken.
    ///
    /// All of a star, exactly one of other shapes, and none if no position is taken.
    pub fn tops_within(&self, assigned: u32) -> Vec<u32> {
        let assigned = assigned.min(self.positions);
        match self.degree {
            Degree::Chain => assigned.checked_sub(1).into_iter().collect(),
            Degree::Binary => top(0..self.positions, assigned).into_iter().collect(),
            Degree::Star => (0..assigned).collect(),
        }
    }

    /// Whether all children of `position` in the full shape are below `assigned`, so that they are
    /// final.
    pub fn children_ready(&self, position: u32, assigned: u32) -> bool {
        self.children(position).into_iter().all(|child| child < assigned)
    }

    /// The span of positions in the subtree of `position` in the binary tree.
    fn span(&self, position: u32) -> Range<u32> {
        let mut span = 0..self.positions;
        loop {
            let middle = middle(&span);
            match position.cmp(&middle) {
                core::cmp::Ordering::Equal => return span,
                core::cmp::Ordering::Less => span.end = middle,
                core::cmp::Ordering::Greater => span.start = middle + 1,
            }
        }
    }

    fn check(&self, position: u32) {
        assert!(position < self.positions, "position {position} of a shape of {}", self.positions);
    }
}

/// The root of a subtree. With an even number of positions the left side gets one more, since it
/// fills first.
const fn middle(span: &Range<u32>) -> u32 {
    span.start + (span.end - span.start) / 2
}

/// The root of a subtree or, while that is vacant, the top of its left side.
fn top(mut span: Range<u32>, assigned: u32) -> Option<u32> {
    while !span.is_empty() {
        let middle = middle(&span);
        if middle < assigned {
            return Some(middle);
        }
        span.end = middle;
    }
    None
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString, vec};

    use super::*;

    impl Shape {
        /// The position that folds the stream of `position`; `None` for a top.
        fn parent(&self, position: u32) -> Option<u32> {
            match self.degree {
                Degree::Chain => Some(position + 1).filter(|parent| *parent < self.positions),
                Degree::Binary => {
                    let (mut parent, mut span) = (None, 0..self.positions);
                    while middle(&span) != position {
                        let top = middle(&span);
                        span = if position < top { span.start..top } else { top + 1..span.end };
                        parent = Some(top);
                    }
                    parent
                }
                Degree::Star => None,
            }
        }

        /// Number of positions from a top to the deepest leaf, including both.
        fn depth(&self) -> u32 {
            match self.degree {
                Degree::Chain => self.positions,
                Degree::Binary => u32::BITS - self.positions.leading_zeros(),
                Degree::Star => self.positions.min(1),
            }
        }
    }

    const POSITIONS_MAX: u32 = 64;

    fn all_shapes() -> impl Iterator<Item = Shape> {
        Degree::ALL.into_iter().flat_map(|degree| {
            (0..=POSITIONS_MAX).map(move |positions| Shape { degree, positions })
        })
    }

    /// How often a walk from the tops visits each taken position.
    fn visits(shape: Shape, assigned: u32) -> Vec<u32> {
        let mut visits = vec![0; assigned as usize];
        let mut next = shape.tops_within(assigned);
        while let Some(position) = next.pop() {
            visits[position as usize] += 1;
            next.extend(shape.children_within(position, assigned));
        }
        visits
    }

    /// Goal: no input is lost or folded twice, whenever the arrivals stop.
    /// Method: walk every shape from its tops.
    #[test]
    fn every_seated_position_is_reached_exactly_once() {
        for shape in all_shapes() {
            for assigned in 0..=shape.positions {
                assert_eq!(
                    visits(shape, assigned),
                    vec![1; assigned as usize],
                    "{shape:?}: {assigned}"
                );
                let roots = shape.tops_within(assigned).len();
                match shape.degree {
                    Degree::Star => assert_eq!(roots, assigned as usize),
                    _ => {
                        assert_eq!(roots, usize::from(assigned > 0), "{shape:?}: {assigned} seated")
                    }
                }
            }
        }
    }

    #[test]
    fn children_keep_to_the_degree_and_to_their_side() {
        for shape in all_shapes() {
            for assigned in 1..=shape.positions {
                for position in 0..assigned {
                    let children = shape.children_within(position, assigned);
                    let most = match shape.degree {
                        Degree::Chain => 1,
                        Degree::Binary => 2,
                        Degree::Star => 0,
                    };
                    assert!(children.len() <= most, "{shape:?}: {position} has {children:?}");
                    assert!(children.is_sorted());
                    assert!(children.iter().all(|child| *child < assigned && *child != position));
                    // At most one child on each side: a later arrival never comes between a
                    // position and its left child.
                    assert!(children.iter().filter(|child| **child < position).count() <= 1);
                    assert!(children.iter().filter(|child| **child > position).count() <= 1);
                }
            }
        }
    }

    #[test]
    fn children_that_are_ready_never_change() {
        for shape in all_shapes() {
            for assigned in 1..=shape.positions {
                for position in 0..assigned {
                    let full = shape.children(position);
                    let ready = shape.children_ready(position, assigned);
                    assert_eq!(ready, full.iter().all(|child| *child < assigned));
                    if ready {
                        assert_eq!(shape.children_within(position, assigned), full, "{shape:?}");
                    }
                }
            }
        }
    }

    /// Goal: links between arrived inputs exist at once; only ancestors of the next arrival wait.
    #[test]
    fn few_positions_wait_for_a_child() {
        for shape in all_shapes() {
            for assigned in 0..=shape.positions {
                let waiting = (0..assigned).filter(|p| !shape.children_ready(*p, assigned)).count();
                match shape.degree {
                    Degree::Binary => assert!(waiting < shape.depth().max(1) as usize, "{shape:?}"),
                    _ => assert_eq!(waiting, 0, "{shape:?}"),
                }
            }
        }
    }

    #[test]
    fn parents_and_children_agree() {
        for shape in all_shapes() {
            for position in 0..shape.positions {
                match shape.parent(position) {
                    Some(parent) => assert!(shape.children(parent).contains(&position)),
                    None => assert!(shape.tops_within(shape.positions).contains(&position)),
                }
                for child in shape.children(position) {
                    assert_eq!(shape.parent(child), Some(position), "{shape:?}");
                }
            }
        }
    }

    /// Goal: the depth is correct and minimal.
    /// Method: measure it by climbing from every position.
    #[test]
    fn depth_is_minimal() {
        for shape in all_shapes() {
            let climb = |position| {
                core::iter::successors(Some(position), |position| shape.parent(*position)).count()
            };
            let measured = (0..shape.positions).map(climb).max().unwrap_or(0);
            assert_eq!(shape.depth() as usize, measured, "{shape:?}");
            if shape.degree == Degree::Binary {
                // ceil(log2(n + 1)): a tree with one level less has at most n - 1 positions.
                assert_eq!(shape.depth(), (shape.positions + 1).next_power_of_two().ilog2());
            }
        }
    }

    #[test]
    fn the_largest_shape_neither_overflows_nor_wanders() {
        let shape = Shape { degree: Degree::Binary, positions: u32::MAX };
        assert_eq!(shape.depth(), 32);
        assert_eq!(shape.parent(u32::MAX / 2), None);
        assert_eq!(shape.children(u32::MAX - 1).len(), 0);
        assert_eq!(shape.tops_within(1), [0]);
        assert_eq!(Shape { degree: Degree::Chain, positions: u32::MAX }.parent(u32::MAX - 1), None);
    }

    #[test]
    #[should_panic = "position 3 of a shape of 3"]
    fn a_position_outside_is_a_bug() {
        Shape { degree: Degree::Chain, positions: 3 }.children(3);
    }

    #[test]
    fn degrees_read_as_the_paper_writes_them() {
        assert_eq!(Degree::ALL.map(|degree| degree.to_string()), ["1", "2", "n"]);
    }
}
