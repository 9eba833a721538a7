//! Verbs of several steps, which the client core runs: in the thread that waits for the result, or in the background
//! for an event loop. Does not know the steps.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hoplite::{Call, interrupt};
use hoplite_node::{Latch, WaitQuery, Waker};
use pyo3::prelude::*;

use crate::{
    buffer::Home,
    wait::{self, Operation, Pending},
};

/// Runs a call once somebody waits for it, and converts its result.
///
/// `home` gets the buffers that the call uses. `is_unlimited` if the call has no timeout.
pub(crate) fn pending<V, M, F>(
    client: hoplite::Client,
    home: Home,
    is_unlimited: bool,
    make: M,
    then: F,
) -> Pending
where
    V: hoplite::Verb + 'static,
    M: for<'c> FnOnce(&'c hoplite::Client) -> Call<'c, V> + Send + 'static,
    F: FnOnce(Python<'_>, V::Output) -> PyResult<Py<PyAny>> + Send + 'static,
{
    Pending::of(Verb { state: State::New(client, make), then, is_unlimited, _home: home })
}

/// A verb that starts when somebody waits for it. Dropping it cancels it.
struct Verb<V: hoplite::Verb, M, F> {
    state: State<V, M>,
    then: F,
    is_unlimited: bool,
    /// Buffers that the verb uses. Dropped last: the verb has returned them then.
    _home: Home,
}

/// How far a verb is.
enum State<V: hoplite::Verb, M> {
    /// The client, and what makes the call.
    New(hoplite::Client, M),
    Running(hoplite::Pending<V::Output>, Arc<End>),
    Taken,
}

/// The end of a verb in the background, and who waits for it.
#[derive(Default)]
struct End {
    over: Latch,
    waker: Mutex<Option<Waker>>,
}

impl End {
    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reached(&self) {
        // Under the lock: a waker that is registered meanwhile is either called or refused.
        let waker = {
            let mut waker = self.waker();
            self.over.open();
            waker.take()
        };
        if let Some(waker) = waker {
            waker();
        }
    }
}

impl<V, M, F> Verb<V, M, F>
where
    V: hoplite::Verb + 'static,
    M: for<'c> FnOnce(&'c hoplite::Client) -> Call<'c, V> + Send + 'static,
    F: FnOnce(Python<'_>, V::Output) -> PyResult<Py<PyAny>> + Send + 'static,
{
    /// Starts the verb in the background unless it runs; returns its end, if nobody has taken the result.
    fn running(&mut self) -> Option<&Arc<End>> {
        if let State::New(client, make) = std::mem::replace(&mut self.state, State::Taken) {
            let running = make(&client).start();
            let end = Arc::<End>::default();
            let of_verb = end.clone();
            running.when_done(move || of_verb.reached());
            self.state = State::Running(running, end);
        }
        match &self.state {
            State::Running(_, end) => Some(end),
            _ => None,
        }
    }
}

impl<V, M, F> Operation for Verb<V, M, F>
where
    V: hoplite::Verb + 'static,
    M: for<'c> FnOnce(&'c hoplite::Client) -> Call<'c, V> + Send + 'static,
    F: FnOnce(Python<'_>, V::Output) -> PyResult<Py<PyAny>> + Send + 'static,
{
    fn is_over(&self) -> bool {
        match &self.state {
            State::New(..) => false,
            State::Running(_, end) => end.over.is_open(),
            State::Taken => true,
        }
    }

    fn when_over(&mut self, py: Python<'_>, waker: Waker) -> bool {
        // The start may wait for the end of a fork, whose handlers wait for the interpreter.
        let Some(end) = py.detach(|| self.running()) else { return false };
        let mut registered = end.waker();
        let is_running = !end.over.is_open();
        if is_running {
            *registered = Some(waker);
        }
        is_running
    }

    /// The core itself checks whether the node replies.
    fn next_check(&mut self) -> Option<Duration> {
        None
    }

    fn is_over_within(&mut self, time: Duration) -> bool {
        let Some(end) = self.running() else { return true };
        if !end.over.is_open() {
            end.over.wait(time);
        }
        end.over.is_open()
    }

    fn is_unlimited(&self) -> bool {
        self.is_unlimited
    }

    fn query(&self) -> Option<WaitQuery> {
        match &self.state {
            State::Running(running, _) => running.query(),
            _ => None,
        }
    }

    fn finish(self: Box<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Self { state, then, _home, .. } = *self;
        let result = wait::call(py, || match state {
            State::New(client, make) => make(&client).wait(),
            State::Running(running, end) => {
                let query = running.query();
                interrupt::wait(query.as_ref(), |nap| {
                    end.over.wait(nap);
                    end.over.is_open().then_some(())
                })?;
                running.wait()
            }
            State::Taken => Err(hoplite::Error::from(hoplite_node::Error::Closed)),
        });
        then(py, result?)
    }
}
