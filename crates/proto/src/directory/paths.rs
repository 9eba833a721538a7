//! A dynamic forest: root and depth of a vertex in amortized logarithmic time, whatever its depth.
//!
//! It is a link-cut forest: each tree is divided into paths, and each path is a splay tree in order from the root
//! down. A query makes the path from the root to its vertex one of these paths. Vertices are numbers; this module does
//! not know what they represent.
//!
//! Source: Sleator and Tarjan, "Self-adjusting binary search trees", Journal of the ACM 32(3), 1985, section 6.

use alloc::vec::Vec;

use crate::time::Instant;

/// No vertex.
pub(super) const NONE: u32 = u32::MAX;

/// The path from a root to a vertex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RootPath {
    pub(super) root: u32,
    /// The vertex below the root; [`NONE`] if the path ends at the root.
    pub(super) branch: u32,
    /// Edges of the path.
    pub(super) depth: u32,
    /// The latest stamp of its vertices.
    pub(super) stamp: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Paths(Vec<Vertex>);

#[derive(Clone, Copy, Debug)]
struct Vertex {
    /// The parent in the splay tree; for the top of a splay tree, the vertex from which the path hangs.
    up: u32,
    /// Left and right subtrees: the parts of the path nearer to the root and further from it.
    sides: [u32; 2],
    /// Vertices in this subtree.
    count: u32,
    stamp: Instant,
    /// The latest stamp in this subtree.
    latest: Instant,
}

impl Vertex {
    const ALONE: Self =
        Self { up: NONE, sides: [NONE; 2], count: 1, stamp: Instant(0), latest: Instant(0) };
}

impl Paths {
    /// Adds a vertex without edges: at the next number, or in place of one that has lost its edges.
    pub(super) fn add(&mut self, at: u32) {
        match self.0.get_mut(at as usize) {
            Some(vertex) => *vertex = Vertex::ALONE,
            None => self.0.push(Vertex::ALONE),
        }
    }

    /// Attaches the tree whose root is `child` below a vertex of another tree.
    pub(super) fn link(&mut self, child: u32, parent: u32) {
        self.access(child);
        self.access(parent);
        self.at(child).up = parent;
    }

    /// Removes the edge above a vertex.
    pub(super) fn cut(&mut self, child: u32) {
        self.access(child);
        let above = core::mem::replace(&mut self.at(child).sides[0], NONE);
        if above != NONE {
            self.at(above).up = NONE;
        }
        self.sum_up(child);
    }

    pub(super) fn stamp(&mut self, at: u32, stamp: Instant) {
        self.access(at);
        self.at(at).stamp = stamp;
        self.sum_up(at);
    }

    pub(super) fn path(&mut self, to: u32) -> RootPath {
        self.access(to);
        let Vertex { count, latest, .. } = *self.at(to);
        let root = self.first(to);
        let below = self.at(root).sides[1];
        let branch = if below == NONE { NONE } else { self.first(below) };
        RootPath { root, branch, depth: count - 1, stamp: latest }
    }

    fn at(&mut self, at: u32) -> &mut Vertex {
        &mut self.0[at as usize]
    }

    /// The vertex of a subtree that is nearest to the root; splays it to the top.
    fn first(&mut self, mut at: u32) -> u32 {
        while self.at(at).sides[0] != NONE {
            at = self.at(at).sides[0];
        }
        self.splay(at);
        at
    }

    /// Makes the path from the root to a vertex one splay tree, with the vertex on top.
    fn access(&mut self, to: u32) {
        let (mut at, mut below) = (to, NONE);
        while at != NONE {
            self.splay(at);
            self.at(at).sides[1] = below;
            self.sum_up(at);
            (below, at) = (at, self.at(at).up);
        }
        self.splay(to);
    }

    fn splay(&mut self, at: u32) {
        while let Some(side) = self.side(at) {
            let up = self.at(at).up;
            if let Some(other) = self.side(up) {
                self.rotate(if side == other { up } else { at });
            }
            self.rotate(at);
        }
    }

    /// On which side of its parent in the splay tree a vertex is; `None` if it is the top.
    fn side(&mut self, at: u32) -> Option<usize> {
        let up = self.at(at).up;
        if up == NONE {
            return None;
        }
        self.at(up).sides.iter().position(|side| *side == at)
    }

    fn rotate(&mut self, at: u32) {
        let up = self.at(at).up;
        let (above, above_side) = (self.at(up).up, self.side(up));
        let side = self.side(at).unwrap_or_default();
        let inner = core::mem::replace(&mut self.at(at).sides[1 - side], up);
        self.at(up).sides[side] = inner;
        if inner != NONE {
            self.at(inner).up = up;
        }
        (self.at(up).up, self.at(at).up) = (at, above);
        if let Some(side) = above_side {
            self.at(above).sides[side] = at;
        }
        self.sum_up(up);
        self.sum_up(at);
    }

    fn sum_up(&mut self, at: u32) {
        let Vertex { sides, stamp, .. } = *self.at(at);
        let (mut count, mut latest) = (1, stamp);
        for side in sides.into_iter().filter(|side| *side != NONE) {
            count += self.at(side).count;
            latest = latest.max(self.at(side).latest);
        }
        (self.at(at).count, self.at(at).latest) = (count, latest);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Finds the path to a vertex by walking.
    fn walk(parents: &[Option<u32>], stamps: &[u64], to: u32) -> RootPath {
        let (mut root, mut branch, mut depth, mut stamp) = (to, NONE, 0, stamps[to as usize]);
        while let Some(parent) = parents[root as usize] {
            (branch, root, depth) = (root, parent, depth + 1);
            stamp = stamp.max(stamps[root as usize]);
        }
        RootPath { root, branch, depth, stamp: Instant(stamp) }
    }

    proptest! {
        /// Goal: after any changes, each path equals the result of a walk to the root.
        #[test]
        fn ways_are_those_that_a_walk_finds(
            steps in prop::collection::vec((0..4u8, 0..12u32, 0..12u32), 0..200),
        ) {
            let (mut parents, mut stamps) = ([None; 12], [0; 12]);
            let mut paths = Paths::default();
            (0..12).for_each(|at| paths.add(at));
            for (kind, child, parent) in steps {
                match kind {
                    0..3 => {
                        paths.cut(child);
                        parents[child as usize] = None;
                        if kind < 2 && walk(&parents, &stamps, parent).root != child {
                            paths.link(child, parent);
                            parents[child as usize] = Some(parent);
                        }
                    }
                    _ => {
                        stamps[child as usize] = u64::from(parent);
                        paths.stamp(child, Instant(u64::from(parent)));
                    }
                }
                let asked = (child + parent) % 12;
                prop_assert_eq!(paths.path(asked), walk(&parents, &stamps, asked));
            }
        }
    }
}
