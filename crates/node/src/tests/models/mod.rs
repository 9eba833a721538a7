//! Models for the model checker loom, which runs them with every order of their threads' steps: a
//! lost wake-up is a deadlock. They compile the files of the shell a second time, with the
//! primitives of [`sync`] and the events of [`event_set`].
//!
//! A thread loses the processor unwillingly at most [`PREEMPTIONS`] times, or
//! `LOOM_MAX_PREEMPTIONS` times if that is set. `make test-long` sets more.

#![allow(dead_code, reason = "the models use a part of these files")]
#![allow(clippy::duplicate_mod, reason = "the same files with other primitives")]
#![allow(unreachable_pub, reason = "what is public in the crate is not here")]

mod event_set;
mod sync;

#[path = "../../latch.rs"]
mod latch;
#[path = "../../shared_epoll.rs"]
mod shared_epoll;

#[path = "../../engine/door.rs"]
mod door;
#[path = "../../local/reply_cell.rs"]
mod reply_cell;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use loom::thread;

use self::{
    door::{Door, Passed, Queue},
    reply_cell::{ReplyCell, State},
    shared_epoll::{SharedEpoll, Waited},
    sync::{Mutex, lock},
};

const PREEMPTIONS: usize = 2;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound.get_or_insert(PREEMPTIONS);
    checker.max_branches = 20_000;
    checker.check(model);
}

/// The token of the event that carries a reply.
const REPLY: u64 = 7;

/// A node whose control connection carries replies, and one thread that reads it.
struct Node {
    epoll: Arc<SharedEpoll>,
    replies: Vec<ReplyCell<u32>>,
}

impl Node {
    fn new(replies: usize) -> Arc<Self> {
        let epoll = Arc::new(SharedEpoll::new().unwrap());
        Arc::new(Self { epoll, replies: (0..replies).map(|_| ReplyCell::default()).collect() })
    }

    /// Handles an event on the calling thread.
    fn take(&self, token: u64) {
        let reply = &self.replies[(token - REPLY) as usize];
        assert!(reply.set(State::Replied(1)).is_none());
    }

    fn read(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let node = self.clone();
        thread::spawn(move || node.epoll.run(|token, _| node.take(token)))
    }

    /// Waits for a reply as a client does.
    fn wait(&self, number: usize) {
        let reply = &self.replies[number];
        loop {
            match reply.take() {
                Some(State::Replied(value)) => return assert_eq!(value, 1),
                Some(_) => panic!("the reply is lost"),
                None => {}
            }
            let waited = reply.wait_in(self.epoll.clone(), |is_over| {
                self.epoll.wait(Duration::MAX, is_over, |token, _| self.take(token))
            });
            if waited == Waited::Elsewhere {
                reply.sleep(Duration::MAX);
            }
        }
    }

    fn raise(&self, number: u64) {
        self.epoll.raise(std::io::stdin(), REPLY + number).unwrap();
    }
}

#[test]
fn reply_ends_the_wait_whichever_thread_reads_it() {
    check(|| {
        let node = Node::new(1);
        let reader = node.read();
        node.raise(0);
        node.wait(0);
        node.epoll.close();
        reader.join().unwrap();
    });
}

#[test]
fn reply_from_a_third_thread_ends_the_wait() {
    check(|| {
        let node = Node::new(1);
        let reader = node.read();
        let other = node.clone();
        let sender = thread::spawn(move || other.take(REPLY));
        node.wait(0);
        sender.join().unwrap();
        node.epoll.close();
        reader.join().unwrap();
    });
}

/// Only one of two waiting threads reads events. When its own reply is there, the other's reply
/// must not be lost.
#[test]
fn two_waiting_threads_get_their_replies() {
    check(|| {
        let node = Node::new(2);
        let reader = node.read();
        let other = node.clone();
        let second = thread::spawn(move || other.wait(1));
        node.raise(0);
        node.raise(1);
        node.wait(0);
        second.join().unwrap();
        node.epoll.close();
        reader.join().unwrap();
    });
}

/// The node ends while a thread waits: the reply then comes from the end of its connection.
#[test]
fn end_of_the_node_ends_a_wait() {
    check(|| {
        let node = Node::new(1);
        let reader = node.read();
        let other = node.clone();
        let end = thread::spawn(move || {
            other.epoll.close();
            other.take(REPLY);
        });
        node.wait(0);
        end.join().unwrap();
        reader.join().unwrap();
    });
}

impl Queue for VecDeque<u32> {
    type Item = u32;

    fn push(&mut self, item: u32) {
        self.push_back(item);
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Passes an item as the event loop does, at most `turn` items at a time, and then as the task that
/// continues.
fn pass(door: &Door<Vec<u32>, VecDeque<u32>>, item: u32, turn: usize) {
    let mut next = Some(item);
    loop {
        let mut handled = 0;
        let passed = door.pass(
            next.take(),
            || true,
            |state, next| {
                while handled < turn {
                    let mut queue = lock(door.queue());
                    queue.extend(next.take());
                    let Some(item) = queue.pop_front() else { break };
                    drop(queue);
                    state.push(item);
                    handled += 1;
                }
                handled >= turn
            },
        );
        if passed == Passed::Done {
            return;
        }
    }
}

fn every_item_is_handled_once(turn: usize) {
    check(move || {
        let door = Arc::new(Door::new(Vec::new(), VecDeque::new()));
        let others = (1..3).map(|item| {
            let door = door.clone();
            thread::spawn(move || pass(&door, item, turn))
        });
        let others: Vec<_> = others.collect();
        pass(&door, 0, turn);
        others.into_iter().for_each(|thread| thread.join().unwrap());
        let seen = Mutex::new(Vec::new());
        let passed = door.pass(
            Some(3),
            || true,
            |state, next| {
                state.extend(next.take());
                lock(&seen).clone_from(state);
                true
            },
        );
        assert_eq!(passed, Passed::Done);
        let mut seen = lock(&seen).clone();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
    });
}

#[test]
fn event_left_for_the_thread_inside_is_handled() {
    every_item_is_handled_once(usize::MAX);
}

#[test]
fn event_left_at_the_end_of_a_turn_is_handled() {
    every_item_is_handled_once(1);
}
