//! Tests of the hand-overs between threads, with real threads and in a model checker.

mod latch;
mod models;
mod shared_epoll;
