//! `get_into`: copies an object into the caller's memory while it arrives.
//!
//! After the call, whether it succeeds, fails or is cancelled, nothing writes into that memory.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hoplite_node::{
    PartialView, View as NativeView,
    proto::{
        id::ObjectId,
        meta::{Form, Kind, Meta},
        selection::Selection,
    },
};
use tokio::time::Sleep;

use crate::{
    attachment::Attachment,
    call::{Call, Verb},
    error::{Error, ErrorKind, Result},
    mode::{Mode, Reply, sleep},
    outcome::Outcome,
    reference,
    value::{BYTES, dtype_of},
};

/// Bounds of the interval between two copies of the blocks that have arrived, and the bytes that a copy should have.
/// Each copy costs a wake-up of this process: 1 ms is 1.2 MB at 10 Gbit/s, 8 ms are 1 MB at 1 Gbit/s.
const COPY_EVERY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));
const COPY_BYTES: u64 = 1 << 20;

/// The verb of [`Client::get_into`](crate::Client::get_into).
#[derive(Debug)]
pub struct GetInto<M> {
    id: Result<ObjectId>,
    out: M,
    expected: Option<(String, Vec<u64>)>,
    part: Option<Selection>,
}

impl<M> GetInto<M> {
    pub(crate) fn new(reference: impl AsRef<str>, out: M) -> Self {
        Self { id: reference::parse(reference), out, expected: None, part: None }
    }
}

impl<M> Call<'_, GetInto<M>> {
    /// Requires a dtype, by its name in NumPy, and for an array a shape.
    pub fn expect(mut self, dtype: &str, shape: &[u64]) -> Self {
        self.verb.expected = Some((dtype.into(), shape.into()));
        self
    }

    /// Copies only rows or bytes, as [`Call::part`] of a get.
    pub fn part(mut self, start: impl Into<Option<i64>>, stop: impl Into<Option<i64>>) -> Self {
        self.verb.part = Some(Selection { start: start.into(), stop: stop.into() });
        self
    }
}

impl<M: AsMut<[u8]> + Send> Verb for GetInto<M> {
    type Output = u64;
    const HOLDS_MEMORY: bool = true;

    async fn run(
        mut self,
        attachment: &Arc<Attachment>,
        mode: Mode,
        limit: Option<Duration>,
    ) -> Result<Outcome<u64>> {
        let id = self.id.clone()?;
        let (native, limit) = attachment.open(mode, limit).await?;
        // `start_follow` must be sent after `start_get`, which starts the transfer: without one, there is nothing to
        // follow.
        let got = Reply::new(match self.part {
            None => native.start_get(&id, limit),
            Some(part) => native.start_get_range(&id, part, limit),
        });
        let follows = self.part.is_none() && !got.is_over();
        let following = follows.then(|| Reply::new(native.start_follow(&id, limit)));
        let mut filling = Filling { got, following, growing: None, copied: 0, timer: None };
        let mut interval = COPY_EVERY.0;
        loop {
            match poll_fn(|context| filling.poll(context)).await {
                Event::Growing(growing) => {
                    self.check(&id, growing.meta())?;
                    filling.growing = Some(growing);
                }
                Event::Got(view) => {
                    let view = view?;
                    self.check(&id, view.meta())?;
                    return Ok(filling.finish(mode, &view, self.out.as_mut()).into());
                }
                Event::Time => {}
            }
            let copied = filling.more(mode, self.out.as_mut());
            interval = if copied > COPY_BYTES {
                (interval / 2).max(COPY_EVERY.0)
            } else {
                (interval * 2).min(COPY_EVERY.1)
            };
            filling.timer = filling.growing.is_some().then(|| sleep(interval)).transpose()?;
        }
    }
}

impl<M: AsMut<[u8]>> GetInto<M> {
    /// Checks that an object fits into the memory.
    fn check(&mut self, id: &ObjectId, meta: &Meta) -> Result<()> {
        let mismatch = |message: String| Err(Error::new(ErrorKind::ShapeMismatch, message));
        let bytes = self.out.as_mut().len() as u64;
        if meta.form == Form::Pickle {
            return mismatch(format!(
                "{id} is a pickled object, which can't be copied into out: get it without out"
            ));
        }
        let (dtype, shape) = dtype_of(meta);
        if let Some((wanted, wanted_shape)) = &self.expected
            && (*wanted != dtype || (dtype != BYTES && wanted_shape != shape))
        {
            let dtype = match &meta.kind {
                Kind::Bytes => format!("{} bytes", meta.size),
                Kind::Array { .. } => format!("{dtype} {shape:?}"),
            };
            return mismatch(format!(
                "{id} is {dtype}, but out is {wanted} {wanted_shape:?}: pass an out of the same dtype and shape"
            ));
        }
        if meta.size != bytes {
            return mismatch(format!(
                "{id} has {} bytes, but out has {bytes}: pass an out of that size",
                meta.size
            ));
        }
        Ok(())
    }
}

/// The requests for an object, and how much of it has been copied.
struct Filling {
    got: Reply<NativeView>,
    following: Option<Reply<Option<PartialView>>>,
    growing: Option<PartialView>,
    /// Bytes before this offset have been copied from `growing`.
    copied: u64,
    timer: Option<Pin<Box<Sleep>>>,
}

enum Event {
    /// Blocks of the object can be copied before it is complete.
    Growing(PartialView),
    /// The object is complete.
    Got(Result<NativeView>),
    /// More blocks may have arrived.
    Time,
}

impl Filling {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        if let Poll::Ready(view) = Pin::new(&mut self.got).poll(context) {
            return Poll::Ready(Event::Got(view));
        }
        if let Some(following) = &mut self.following
            && let Poll::Ready(growing) = Pin::new(following).poll(context)
        {
            self.following = None;
            // The get returns the error.
            if let Ok(Some(growing)) = growing {
                return Poll::Ready(Event::Growing(growing));
            }
        }
        if let Some(timer) = &mut self.timer
            && timer.as_mut().poll(context).is_ready()
        {
            self.timer = None;
            return Poll::Ready(Event::Time);
        }
        Poll::Pending
    }

    /// Copies the blocks that have arrived; returns their bytes.
    fn more(&mut self, mode: Mode, out: &mut [u8]) -> u64 {
        let before = self.copied;
        if let Some(growing) = &self.growing {
            self.copied = mode.copy(growing.meta().size, || growing.copy_to(before, out));
        }
        self.copied - before
    }

    /// Copies the rest from the complete object; returns its size.
    fn finish(&self, mode: Mode, view: &NativeView, out: &mut [u8]) -> u64 {
        let is_same = self.growing.as_ref().is_some_and(|growing| growing.becomes(view));
        let start = if is_same { self.copied as usize } else { 0 };
        let bytes = view.as_bytes();
        let rest = (bytes.len() - start) as u64;
        mode.copy(rest, || out[start..].copy_from_slice(&bytes[start..]));
        view.note_copied();
        bytes.len() as u64
    }
}
