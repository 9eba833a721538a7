//! Lanes: how many copies are received from one sender at a time.
//!
//! Each is a connection of its own: of a thousand at once every one has a thousandth of the link, and a process has no
//! descriptors left. Whoever has received nothing for a while holds nobody up: its sender waits for the bytes itself, so its
//! lane is another's, and it goes on beside them. So nobody waits for what may never come. Knows nothing of objects and bytes.

use std::{
    collections::{HashMap, VecDeque},
    mem::replace,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hoplite_proto::id::NodeId;
use tokio::sync::oneshot;

use crate::driver::lock;

/// Lanes from one sender: while some wait for an answer, the others keep its link busy. With 8, relays that fed each other
/// waited for each other's lanes more often.
pub(crate) const LANES: usize = 16;

/// How often it is looked whose sender waits. Within 5 ms a busy machine often lets nobody receive anything; and after 20 ms
/// broadcasts of many objects, whose relays wait for each other's lanes, took longer.
const LOOK: Duration = Duration::from_millis(10);

/// The lanes from every sender.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    senders: Mutex<HashMap<NodeId, Sender>>,
}

#[derive(Debug, Default)]
struct Sender {
    /// Who has a lane: whether it has received something since it was last looked.
    busy: Vec<Arc<AtomicBool>>,
    /// Who waits for one, in order.
    queue: VecDeque<oneshot::Sender<Lane>>,
    /// A task looks who has received something.
    is_looked_at: bool,
}

impl Sender {
    fn grant(&mut self, lanes: &Arc<Lanes>, sender: NodeId) -> Lane {
        let has_moved = Arc::new(AtomicBool::new(true));
        self.busy.push(has_moved.clone());
        Lane { lanes: lanes.clone(), sender, has_moved }
    }
}

/// A lane, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lane {
    lanes: Arc<Lanes>,
    sender: NodeId,
    has_moved: Arc<AtomicBool>,
}

impl Lane {
    /// Something was received.
    pub(crate) fn moved(&self) {
        self.has_moved.store(true, Ordering::Relaxed);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let is_other = |busy: &Arc<AtomicBool>| !Arc::ptr_eq(busy, &self.has_moved);
        if let Some(lanes) = lock(&self.lanes.senders).get_mut(&self.sender) {
            lanes.busy.retain(is_other);
        }
        self.lanes.hand_on(self.sender);
    }
}

impl Lanes {
    /// A lane from `sender`, in order of asking.
    pub(crate) async fn enter(self: &Arc<Self>, sender: NodeId) -> Lane {
        let turn = {
            let mut senders = lock(&self.senders);
            let lanes = senders.entry(sender).or_default();
            if lanes.busy.len() < LANES {
                return lanes.grant(self, sender);
            }
            if !replace(&mut lanes.is_looked_at, true) {
                tokio::spawn(self.clone().look(sender));
            }
            let (turn, mine) = oneshot::channel();
            lanes.queue.push_back(turn);
            mine
        };
        match turn.await {
            Ok(lane) => lane,
            // Nobody keeps order any more.
            Err(_) => Lane { lanes: self.clone(), sender, has_moved: Arc::default() },
        }
    }

    /// As long as somebody waits: gives them the lanes of those who receive nothing.
    async fn look(self: Arc<Self>, sender: NodeId) {
        loop {
            tokio::time::sleep(LOOK).await;
            if let Some(lanes) = lock(&self.senders).get_mut(&sender) {
                lanes.is_looked_at = !lanes.queue.is_empty();
                if lanes.is_looked_at {
                    lanes.busy.retain(|has_moved| has_moved.swap(false, Ordering::Relaxed));
                }
            }
            if !self.hand_on(sender) {
                return;
            }
        }
    }

    /// Gives the free lanes from `sender` to those who wait; whether somebody looks after them.
    fn hand_on(self: &Arc<Self>, sender: NodeId) -> bool {
        let mut granted = Vec::new();
        let is_looked_at = {
            let mut senders = lock(&self.senders);
            let Some(lanes) = senders.get_mut(&sender) else { return false };
            while lanes.busy.len() < LANES
                && let Some(turn) = lanes.queue.pop_front()
            {
                // Some have given up.
                if !turn.is_closed() {
                    granted.push((turn, lanes.grant(self, sender)));
                }
            }
            let is_looked_at = lanes.is_looked_at;
            if lanes.busy.is_empty() && !is_looked_at {
                senders.remove(&sender);
            }
            is_looked_at
        };
        // One that has given up just now drops its lane, which is the next one's.
        granted.into_iter().for_each(|(turn, lane)| drop(turn.send(lane)));
        is_looked_at
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll, Waker},
    };

    use tokio::task::JoinSet;

    use super::*;

    const FROM: NodeId = NodeId(1);

    /// A lane that may be taken at once.
    fn now(wait: Pin<&mut impl Future<Output = Lane>>) -> Option<Lane> {
        match wait.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(lane) => Some(lane),
            Poll::Pending => None,
        }
    }

    async fn all_busy(lanes: &Arc<Lanes>) -> Vec<Lane> {
        let mut busy = Vec::new();
        for _ in 0..LANES {
            busy.push(lanes.enter(FROM).await);
        }
        busy
    }

    #[tokio::test]
    async fn as_many_as_there_are_lanes_go_at_once_and_the_rest_in_order() {
        let lanes = Arc::new(Lanes::default());
        let mut busy = all_busy(&lanes).await;
        let (mut next, mut last) = (Box::pin(lanes.enter(FROM)), Box::pin(lanes.enter(FROM)));
        assert!(now(next.as_mut()).is_none() && now(last.as_mut()).is_none());
        lanes.enter(NodeId(2)).await;
        drop(busy.pop());
        assert!(now(last.as_mut()).is_none(), "it is not its turn");
        let next = now(next.as_mut()).expect("one lane is free");
        drop(next);
        now(last.as_mut()).expect("the next is");
    }

    #[tokio::test]
    async fn whoever_gives_up_takes_no_lane() {
        let lanes = Arc::new(Lanes::default());
        let mut busy = all_busy(&lanes).await;
        let mut waits: Vec<_> = (0..3).map(|_| Box::pin(lanes.enter(FROM))).collect();
        assert!(waits.iter_mut().all(|wait| now(wait.as_mut()).is_none()));
        drop(waits.remove(0));
        drop(busy.pop());
        // It was granted, and is not taken.
        drop(waits.remove(0));
        assert!(now(waits[0].as_mut()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_receive_nothing_hold_nobody_up() {
        let lanes = Arc::new(Lanes::default());
        let busy = all_busy(&lanes).await;
        let mut next = Box::pin(lanes.enter(FROM));
        for _ in 0..9 {
            assert!(now(next.as_mut()).is_none(), "all receive something");
            busy.iter().for_each(Lane::moved);
            tokio::time::sleep(LOOK).await;
        }
        busy[1..].iter().for_each(Lane::moved);
        tokio::time::sleep(2 * LOOK).await;
        let next = now(next.as_mut()).expect("one has received nothing");
        // However many there are, all of them have their turn; and who has lost a lane gives none away.
        let mut others = JoinSet::new();
        for _ in 0..5 * LANES {
            let lanes = lanes.clone();
            others.spawn(async move { lanes.enter(FROM).await });
        }
        let others = tokio::time::timeout(20 * LOOK, others.join_all()).await;
        assert_eq!(others.expect("nobody receives anything").len(), 5 * LANES);
        drop((busy, next));
        tokio::time::sleep(2 * LOOK).await;
        assert!(lock(&lanes.senders).is_empty());
    }
}
