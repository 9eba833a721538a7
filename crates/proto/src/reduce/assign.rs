//! Assigns arrived inputs to positions of a reduce tree, and turns positions into orders.
//!
//! ```text
//! seat ──> waiting for children ──> ordered        a position
//! open ──────────── full or closed ──> settled     the tree
//! ```
//!
//! A position gets its order once its children can't change any more: either they have arrived, or
//! the tree is settled and vacant positions stay vacant. An order is never revoked; if a
//! contributor fails, a new tree is needed.
//!
//! Does not depend on bytes, time, or the reason of an arrival.

use alloc::vec::Vec;

use super::{cost::DegreeReason, shape::Shape};
use crate::id::{Instance, NodeId};

/// A taken position: inputs of one node, which folds them before it receives anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contributor<N, I> {
    /// The node that has the inputs.
    pub node: N,
    /// Its own inputs.
    pub inputs: Vec<I>,
}

/// The task of one position: fold its inputs with the streams of its children, for the node that
/// fetches the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order<N, I> {
    /// The position.
    pub position: u32,
    /// The node at this position.
    pub node: N,
    /// Its own inputs.
    pub inputs: Vec<I>,
    /// Node and position of each child, left before right.
    pub children: Vec<(N, u32)>,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) shape: PlanShape,
    /// Frame size of its streams in bytes.
    pub(super) frame: u32,
}

#[derive(Debug)]
pub(super) enum PlanShape {
    /// The coordinator folds all inputs from its messages.
    Inline,
    Tree {
        tree: Tree<NodeId, Instance>,
        /// Inputs on the calling node.
        local: Vec<Instance>,
        /// Why the tree has its degree.
        reason: DegreeReason,
    },
    /// A ring reduce; each of these nodes folds a part.
    Ring(Vec<NodeId>),
}

/// A reduce tree that fills while inputs arrive.
#[derive(Clone, Debug)]
pub struct Tree<N, I> {
    shape: Shape,
    contributors: Vec<Contributor<N, I>>,
    /// Positions without an order yet. In a binary tree these are ancestors of the next position to
    /// be taken, so their number never exceeds the depth.
    waiting: Vec<u32>,
    closed: bool,
}

impl<N: Copy + Ord, I: Clone> Tree<N, I> {
    /// An empty tree of `shape`.
    pub const fn new(shape: Shape) -> Self {
        Self { shape, contributors: Vec::new(), waiting: Vec::new(), closed: shape.positions == 0 }
    }

    /// Assigns the next position to `node` and returns it. The last one closes the tree.
    ///
    /// A node may have several positions, since inputs that arrive there after its order get
    /// another one.
    ///
    /// # Panics
    /// If the tree is closed.
    pub fn contributor(&mut self, node: N, inputs: Vec<I>) -> u32 {
        let position = self.assigned();
        assert!(
            !self.closed,
            "no position for another node: {position} of {} seated, closed",
            self.shape.positions
        );
        self.contributors.push(Contributor { node, inputs });
        self.waiting.push(position);
        self.closed = self.assigned() == self.shape.positions;
        position
    }

    /// Closes the tree: vacant positions stay vacant. Closing it again has no effect.
    pub const fn close(&mut self) {
        self.closed = true;
    }

    /// The orders that became final since the last call, lowest position first.
    ///
    /// Each position gets exactly one order.
    pub fn orders(&mut self) -> Vec<Order<N, I>> {
        let (shape, contributors, assigned, closed) =
            (self.shape, &self.contributors, self.assigned(), self.closed);
        let certain = |position: &mut u32| closed || shape.children_ready(*position, assigned);
        let order = |position: u32| {
            let Contributor { node, inputs } = &contributors[position as usize];
            // While the tree is open, ready children are those of the full shape.
            let children = shape.children_within(position, assigned).into_iter();
            Order {
                position,
                node: *node,
                inputs: inputs.clone(),
                children: children
                    .map(|child| (contributors[child as usize].node, child))
                    .collect(),
            }
        };
        self.waiting.extract_if(.., certain).map(order).collect()
    }

    /// Node and position of each stream that the caller fetches; `None` while more inputs can
    /// arrive.
    ///
    /// The list is empty if the tree was closed empty, contains every position of a star, and one
    /// position otherwise. In a star no node waits for the last input, since its order already
    /// names the caller as parent.
    pub fn roots(&self) -> Option<Vec<(N, u32)>> {
        let top = |top: u32| (self.contributors[top as usize].node, top);
        self.closed.then(|| self.shape.tops_within(self.assigned()).into_iter().map(top).collect())
    }

    /// The taken positions, in order.
    pub fn contributors(&self) -> &[Contributor<N, I>] {
        &self.contributors
    }

    /// The shape of the full tree.
    pub const fn shape(&self) -> Shape {
        self.shape
    }

    fn assigned(&self) -> u32 {
        // The assertion in `contributor` keeps the length within the shape's u32.
        self.contributors.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use alloc::{
        collections::{BTreeMap, BTreeSet},
        format,
        string::String,
        vec,
    };

    use proptest::prelude::*;

    use super::{super::shape::Degree, *};

    type Orders = BTreeMap<u32, Order<u32, (u32, u32)>>;

    /// The node `n` has one to three inputs, named (n, 0), (n, 1), ...
    fn inputs_of(node: u32) -> Vec<(u32, u32)> {
        (0..=node % 3).map(|input| (node, input)).collect()
    }

    /// Assigns positions to `nodes`, closes the tree, and checks every order when it is given.
    /// `polled` lists the arrivals after which to take orders.
    fn run(
        shape: Shape,
        nodes: &[u32],
        polled: impl Fn(usize) -> bool,
    ) -> (Tree<u32, (u32, u32)>, Orders) {
        let mut tree = Tree::new(shape);
        let mut orders = Orders::new();
        for (index, node) in nodes.iter().enumerate() {
            assert!(!tree.closed);
            assert_eq!(tree.roots(), None);
            assert_eq!(tree.contributor(*node, inputs_of(*node)), index as u32);
            if polled(index) {
                take(&mut tree, &mut orders);
            }
        }
        tree.close();
        take(&mut tree, &mut orders);
        assert_eq!(tree.orders(), [], "an order was given twice");
        (tree, orders)
    }

    fn take(tree: &mut Tree<u32, (u32, u32)>, orders: &mut Orders) {
        let assigned = tree.contributors().len() as u32;
        for order in tree.orders() {
            let contributor = &tree.contributors()[order.position as usize];
            assert_eq!((order.node, &order.inputs), (contributor.node, &contributor.inputs));
            for (node, child) in &order.children {
                assert!(*child < assigned, "{order:?} before its child sits");
                assert_eq!(*node, tree.contributors()[*child as usize].node);
            }
            let full = tree.shape().children(order.position);
            let complete = full.iter().all(|child| *child < assigned);
            assert!(complete || tree.closed, "{order:?} before its children are known");
            assert!(orders.insert(order.position, order).is_none(), "two orders for one position");
        }
    }

    /// Every input that the caller receives, as often as it receives it.
    fn folded(tree: &Tree<u32, (u32, u32)>, orders: &Orders) -> Vec<(u32, u32)> {
        let mut inputs = Vec::new();
        let mut next = tree.roots().expect("the tree is closed");
        while let Some((node, position)) = next.pop() {
            let order = &orders[&position];
            assert_eq!(order.node, node);
            inputs.extend(&order.inputs);
            next.extend(&order.children);
        }
        inputs.sort_unstable();
        inputs
    }

    fn check(shape: Shape, nodes: &[u32], polled: impl Fn(usize) -> bool) {
        let (tree, orders) = run(shape, nodes, polled);
        assert_eq!(orders.len(), nodes.len());
        let mut expected: Vec<_> = nodes.iter().copied().flat_map(inputs_of).collect();
        expected.sort_unstable();
        assert_eq!(folded(&tree, &orders), expected, "{shape:?}: {nodes:?}");
    }

    fn permutations(nodes: &[u32]) -> Vec<Vec<u32>> {
        let Some((first, rest)) = nodes.split_first() else { return vec![Vec::new()] };
        let insert = |order: Vec<u32>| {
            (0..=order.len()).map(move |at| {
                let mut order = order.clone();
                order.insert(at, *first);
                order
            })
        };
        permutations(rest).into_iter().flat_map(insert).collect()
    }

    /// Goal: each input is folded once, whatever the order of arrival and the node.
    /// Method: all orders of all choices of up to 6.
    #[test]
    fn every_arrival_order_folds_each_input_once() {
        for degree in Degree::ALL {
            for positions in 0..=6 {
                let everybody: Vec<u32> = (0..positions).collect();
                // Prefixes of permutations are every choice of m arrivals in every order, each
                // once.
                let arrivals: BTreeSet<Vec<u32>> = permutations(&everybody)
                    .into_iter()
                    .flat_map(|order| (0..=order.len()).map(move |m| order[..m].to_vec()))
                    .collect();
                for nodes in arrivals {
                    check(Shape { degree, positions }, &nodes, |_| true);
                    check(Shape { degree, positions }, &nodes, |_| false);
                }
            }
        }
    }

    proptest! {
        /// Goal: the same for large trees, nodes with two positions, and orders taken at any time.
        #[test]
        fn large_trees_fold_each_input_once(
            degree in prop::sample::select(&Degree::ALL[..]),
            positions in 0..=64u32,
            arrived in prop::collection::vec((0..64u32, any::<bool>()), 0..=64),
        ) {
            let (nodes, polled): (Vec<u32>, Vec<bool>) =
                arrived.into_iter().take(positions as usize).unzip();
            check(Shape { degree, positions }, &nodes, |index| polled[index]);
        }
    }

    #[test]
    fn a_position_is_ordered_when_its_right_child_sits() {
        let mut tree = Tree::new(Shape { degree: Degree::Binary, positions: 3 });
        let mut ordered = |node: char| -> Vec<u32> {
            tree.contributor(node, vec![node]);
            tree.orders().into_iter().map(|order| order.position).collect()
        };
        assert_eq!(ordered('a'), [0]);
        assert_eq!(ordered('b'), []);
        assert_eq!(ordered('c'), [1, 2]);
        assert_eq!(tree.roots(), Some(vec![('b', 1)]));
        assert!(tree.closed);
    }

    #[test]
    fn a_chain_never_waits() {
        let mut tree = Tree::new(Shape { degree: Degree::Chain, positions: 3 });
        tree.contributor('a', vec![1]);
        tree.contributor('b', vec![2, 3]);
        let expected = [
            Order { position: 0, node: 'a', inputs: vec![1], children: vec![] },
            Order { position: 1, node: 'b', inputs: vec![2, 3], children: vec![('a', 0)] },
        ];
        assert_eq!(tree.orders(), expected);
        tree.close();
        assert_eq!(tree.roots(), Some(vec![('b', 1)]));
    }

    #[test]
    #[should_panic = "1 of 4 seated, closed"]
    fn a_closed_tree_accepts_no_input() {
        let mut tree = Tree::new(Shape { degree: Degree::Star, positions: 4 });
        tree.contributor('a', vec![0]);
        tree.close();
        tree.contributor('b', vec![1]);
    }

    /// One letter per node in the column of its position, one line per step from the caller.
    fn drawing(shape: Shape, assigned: u32) -> String {
        let mut tree = Tree::new(shape);
        for node in ('a'..).take(assigned as usize) {
            tree.contributor(node, vec![node]);
        }
        tree.close();
        let orders: BTreeMap<u32, _> =
            tree.orders().into_iter().map(|order| (order.position, order)).collect();
        let mut text = String::new();
        let mut level = tree.roots().unwrap();
        while !level.is_empty() {
            text.push('\n');
            let mut column = 0;
            for (node, position) in &level {
                let gap = 2 * (position - column) as usize;
                text.push_str(&format!("{:gap$}{node} ", ""));
                column = position + 1;
            }
            text.truncate(text.trim_end().len());
            level = level
                .iter()
                .flat_map(|(_, position)| &orders[position].children)
                .copied()
                .collect();
        }
        text
    }

    #[test]
    fn trees_look_like_this() {
        let binary = Shape { degree: Degree::Binary, positions: 12 };
        let full = "
            g
      d           j
  b       f     i     l
a   c   e     h     k";
        assert_eq!(drawing(binary, 12), full);
        // Closed after eight: j to l stay vacant, and h, the top of the rest of j's subtree,
        // replaces it.
        let closed_early = "
            g
      d       h
  b       f
a   c   e";
        assert_eq!(drawing(binary, 8), closed_early);
        // Closed after five: g, h and everything right of them are vacant, so the caller fetches
        // from d.
        let half = "
      d
  b     e
a   c";
        assert_eq!(drawing(binary, 5), half);
        let chain = "
      d
    c
  b
a";
        assert_eq!(drawing(Shape { degree: Degree::Chain, positions: 9 }, 4), chain);
        assert_eq!(drawing(Shape { degree: Degree::Star, positions: 5 }, 4), "\na b c d");
    }
}
