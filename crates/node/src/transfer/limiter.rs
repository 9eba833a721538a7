//! Lanes: how many copies are received from one sender at a time.
//!
//! Each is a connection of its own: of a thousand at once every one has a thousandth of the link, and a process has no
//! descriptors left. What is small has other lanes than what is large, or it would wait for far more than itself. Whoever has
//! received nothing for a while holds nobody up: its sender waits for the bytes itself, so its lane is another's, and it goes
//! on beside them. So nobody waits for what may never come. Knows nothing of what is received.

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

use crate::engine::lock;

/// Lanes from one sender, for copies of about the same size: while some wait for an answer, the others keep its link busy.
/// With 8, relays that fed each other waited for each other's lanes more often.
const LANES: usize = 16;

/// How often it is looked whose sender waits. Within 5 ms a busy machine often lets nobody receive anything; and after 20 ms
/// broadcasts of many objects, whose relays wait for each other's lanes, took longer.
const LOOK: Duration = Duration::from_millis(10);

/// All lanes of a node.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    roads: Mutex<HashMap<Way, Road>>,
}

/// From whom, and copies of about which size: of the same power of four.
type Way = (NodeId, u32);

#[derive(Debug, Default)]
struct Road {
    /// Who has a lane: whether it has received something since it was last looked.
    busy: Vec<Arc<AtomicBool>>,
    /// Who waits for one, in order.
    queue: VecDeque<oneshot::Sender<Lane>>,
    /// A task looks who has received something.
    is_looked_at: bool,
}

impl Road {
    fn grant(&mut self, lanes: &Arc<Lanes>, way: Way) -> Lane {
        let has_moved = Arc::new(AtomicBool::new(true));
        self.busy.push(has_moved.clone());
        Lane { lanes: lanes.clone(), way, has_moved }
    }
}

/// A lane, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lane {
    lanes: Arc<Lanes>,
    way: Way,
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
        if let Some(road) = lock(&self.lanes.roads).get_mut(&self.way) {
            road.busy.retain(is_other);
        }
        self.lanes.hand_on(self.way);
    }
}

impl Lanes {
    /// A lane for `size` bytes from `sender`, in order of asking.
    pub(crate) async fn enter(self: &Arc<Self>, sender: NodeId, size: u64) -> Lane {
        let way = (sender, size.max(1).ilog2() / 2);
        let turn = {
            let mut roads = lock(&self.roads);
            let road = roads.entry(way).or_default();
            if road.busy.len() < LANES {
                return road.grant(self, way);
            }
            if !replace(&mut road.is_looked_at, true) {
                tokio::spawn(self.clone().look(way));
            }
            let (turn, mine) = oneshot::channel();
            road.queue.push_back(turn);
            mine
        };
        match turn.await {
            Ok(lane) => lane,
            // Nobody keeps order any more.
            Err(_) => Lane { lanes: self.clone(), way, has_moved: Arc::default() },
        }
    }

    /// As long as somebody waits: gives them the lanes of those who receive nothing.
    async fn look(self: Arc<Self>, way: Way) {
        loop {
            tokio::time::sleep(LOOK).await;
            if let Some(road) = lock(&self.roads).get_mut(&way) {
                road.is_looked_at = !road.queue.is_empty();
                if road.is_looked_at {
                    road.busy.retain(|has_moved| has_moved.swap(false, Ordering::Relaxed));
                }
            }
            if !self.hand_on(way) {
                return;
            }
        }
    }

    /// Gives the free lanes to those who wait; whether somebody looks after them.
    fn hand_on(self: &Arc<Self>, way: Way) -> bool {
        let mut granted = Vec::new();
        let is_looked_at = {
            let mut roads = lock(&self.roads);
            let Some(road) = roads.get_mut(&way) else { return false };
            while road.busy.len() < LANES
                && let Some(turn) = road.queue.pop_front()
            {
                // Some have given up.
                if !turn.is_closed() {
                    granted.push((turn, road.grant(self, way)));
                }
            }
            let is_looked_at = road.is_looked_at;
            if road.busy.is_empty() && !is_looked_at {
                roads.remove(&way);
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
    const SIZE: u64 = 100_000;

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
            busy.push(lanes.enter(FROM, SIZE).await);
        }
        busy
    }

    #[tokio::test]
    async fn as_many_as_there_are_lanes_go_at_once_and_the_rest_in_order() {
        let lanes = Arc::new(Lanes::default());
        let mut busy = all_busy(&lanes).await;
        let (mut next, mut last) =
            (Box::pin(lanes.enter(FROM, SIZE)), Box::pin(lanes.enter(FROM, SIZE)));
        assert!(now(next.as_mut()).is_none() && now(last.as_mut()).is_none());
        lanes.enter(NodeId(2), SIZE).await;
        lanes.enter(FROM, SIZE / 8).await;
        assert!(now(Box::pin(lanes.enter(FROM, SIZE + 1)).as_mut()).is_none(), "about the same");
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
        let mut waits: Vec<_> = (0..3).map(|_| Box::pin(lanes.enter(FROM, SIZE))).collect();
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
        let mut next = Box::pin(lanes.enter(FROM, SIZE));
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
            others.spawn(async move { lanes.enter(FROM, SIZE).await });
        }
        let others = tokio::time::timeout(20 * LOOK, others.join_all()).await;
        assert_eq!(others.expect("nobody receives anything").len(), 5 * LANES);
        drop((busy, next));
        tokio::time::sleep(2 * LOOK).await;
        assert!(lock(&lanes.roads).is_empty());
    }
}
