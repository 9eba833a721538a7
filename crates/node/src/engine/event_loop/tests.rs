//! Tests of the event loop, with a state machine and actions executed by the test.

use std::{
    sync::{
        Mutex, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, ThreadId},
};

use hoplite_proto::{
    error::Error as CallError,
    id::{ClientId, NodeId, RequestId},
    limits::INLINE_BYTES_MAX,
    members::Member,
    meta::Meta,
    node::Config,
    request::{Reply, Request},
};
use tokio::runtime::Handle;

use super::*;
use crate::{
    config::LINK_ASSUMED,
    engine::{door::Queue, event_sender::Source},
};

const SOON: Duration = Duration::from_secs(20);

/// The executed actions, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Done {
    Replied(u64),
    RepliedSlowly(u64, ThreadId),
    Left,
}

type During = Box<dyn Fn(u64) + Send + Sync>;

/// Executes replies, and runs a test's hook meanwhile.
struct Orders {
    done: Mutex<Vec<Done>>,
    is_slow: AtomicBool,
    during: Mutex<Option<Arc<During>>>,
    answers: mpsc::Sender<Result<Reply, CallError>>,
}

impl Orders {
    fn carry_out(&self, order: &Action, done: impl Fn(u64) -> Done) {
        let Action::Reply { request, reply, .. } = order else { return };
        let during = lock(&self.during).clone();
        if let Some(during) = during {
            during(request.0);
        }
        lock(&self.done).push(done(request.0));
        let _ = self.answers.send(reply.clone());
    }
}

impl Execute for Orders {
    type Rest = ();

    fn observe(&self, _: Instant, _: &Event, _: &Machine, (): &mut ()) {}

    fn execute(&self, order: Action, _: &Machine, (): &mut ()) -> Option<Action> {
        if self.is_slow.load(Ordering::SeqCst) {
            return Some(order);
        }
        self.carry_out(&order, Done::Replied);
        None
    }

    fn finish(&self, (): &mut ()) {
        lock(&self.done).push(Done::Left);
    }

    fn execute_slowly(&self, order: Action) {
        self.carry_out(&order, |request| Done::RepliedSlowly(request, thread::current().id()));
    }
}

struct Scene {
    engine: Arc<EventLoop<Orders>>,
    answers: mpsc::Receiver<Result<Reply, CallError>>,
}

impl Scene {
    fn new() -> Self {
        let address = ([127, 0, 0, 1], 7420).into();
        let member = Member { id: NodeId(1), address, place: None };
        let machine = Machine::new(member, Config::new(1 << 30, LINK_ASSUMED));
        let (sender, answers) = mpsc::channel();
        let engine = EventLoop::new(machine, Supervisor::new(Handle::current()), |_| Orders {
            done: Mutex::default(),
            is_slow: AtomicBool::new(false),
            during: Mutex::default(),
            answers: sender,
        });
        Self { engine, answers }
    }

    fn events(&self) -> &EventSender {
        &self.engine.events
    }

    /// Sets a hook that runs while an action is executed.
    fn during(&self, what: impl Fn(u64) + Send + Sync + 'static) {
        *lock(&self.engine.shell.during) = Some(Arc::new(Box::new(what)));
    }

    fn done(&self) -> Vec<Done> {
        std::mem::take(&mut lock(&self.engine.shell.done))
    }
}

fn asked(request: u64, body: Request, deadline: Option<Instant>) -> Event {
    Event::Request { client: ClientId(1), request: RequestId(request), body, deadline }
}

/// A request with an immediate reply.
fn quick(request: u64) -> Event {
    asked(request, Request::Objects { prefix: String::new(), after: None }, None)
}

#[tokio::test]
async fn event_reported_during_an_action_is_handled_after_it() {
    let scene = Scene::new();
    let events = scene.events().clone();
    scene.during(move |request| {
        if request == 1 {
            events.send(quick(2));
            events.send(quick(3));
        }
    });
    scene.events().send(quick(1));
    let all = [Done::Replied(1), Done::Replied(2), Done::Replied(3), Done::Left];
    assert_eq!(scene.done(), all, "none is nested, and the state machine is released once");
}

/// Goal: a caller's thread leaves after one turn, messages are sent after each turn, and no event
/// is lost.
#[tokio::test]
async fn turn_is_bounded_and_a_task_continues() {
    const COUNT: u64 = 2 * TURN_EVENTS as u64 + 10;
    let scene = Scene::new();
    let events = scene.events().clone();
    scene.during(move |request| {
        if request == 1 {
            (2..=COUNT).for_each(|request| events.send(quick(request)));
        }
    });
    scene.events().send(quick(1));
    // The task of this runtime has not run yet.
    let first = scene.done();
    assert_eq!((first.len(), first.last()), (TURN_EVENTS + 1, Some(&Done::Left)));
    while !lock(scene.engine.door.queue()).is_empty() {
        tokio::task::yield_now().await;
    }
    let rest = scene.done();
    assert_eq!(rest.iter().filter(|done| **done == Done::Left).count(), 2);
    let replies = first.into_iter().chain(rest).filter(|done| *done != Done::Left);
    assert!(replies.eq((1..=COUNT).map(Done::Replied)), "each once and in order");
}

/// Goal: events that many threads report are all handled, whichever thread holds the state machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_is_lost_between_turns() {
    const EACH: u64 = 20 * TURN_EVENTS as u64;
    let scene = Scene::new();
    let threads: Vec<_> = (0..3)
        .map(|thread| {
            let events = scene.events().clone();
            let first = 1 + thread * EACH;
            thread::spawn(move || {
                (first..first + EACH).for_each(|request| events.send(quick(request)));
            })
        })
        .collect();
    let answers = scene.answers;
    let count = move || (0..3 * EACH).all(|_| answers.recv_timeout(SOON).is_ok());
    assert!(tokio::task::spawn_blocking(count).await.unwrap(), "an event was left in the queue");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for thread in 0..3 {
        let range = 1 + thread * EACH..1 + (thread + 1) * EACH;
        let done = lock(&scene.engine.shell.done);
        let theirs = done.iter().filter_map(|done| match done {
            Done::Replied(request) if range.contains(request) => Some(*request),
            _ => None,
        });
        assert!(theirs.eq(range.clone()), "requests of a thread stay in order");
    }
}

#[test]
fn turn_ends_after_its_time_but_handles_one_event() {
    let (begun, late) = (Instant(5), Instant(5 + TURN_NS));
    assert!(!Turn { begun, handled: 0 }.is_over(late));
    assert!(Turn { begun, handled: 1 }.is_over(late));
    assert!(!Turn { begun, handled: 1 }.is_over(Instant(late.0 - 1)));
}

#[tokio::test]
async fn event_that_no_longer_applies_is_dropped() {
    let scene = Scene::new();
    let events = scene.events().clone();
    let is_current = Arc::new(AtomicBool::new(true));
    let of_order = is_current.clone();
    scene.during(move |request| {
        if request == 1 {
            let of_fact = of_order.clone();
            events.send_if(quick(2), move || of_fact.load(Ordering::SeqCst));
            of_order.store(false, Ordering::SeqCst);
        }
    });
    scene.events().send(quick(1));
    assert_eq!(scene.done(), [Done::Replied(1), Done::Left]);
    assert!(!is_current.load(Ordering::SeqCst));
}

#[tokio::test]
async fn slow_action_runs_outside_the_state_machine() {
    let scene = Scene::new();
    scene.engine.shell.is_slow.store(true, Ordering::SeqCst);
    let engine = Arc::downgrade(&scene.engine);
    scene.during(move |request| {
        let Some(engine) = Weak::upgrade(&engine) else { return };
        assert!(engine.door.is_free(), "action {request} blocks the state machine");
    });
    let here = thread::current().id();
    scene.events().send_and_run(quick(1));
    assert_eq!(scene.done(), [Done::Left, Done::RepliedSlowly(1, here)]);
    // Another thread executes it for a caller that must not block.
    scene.events().send(quick(2));
    assert!(scene.answers.recv_timeout(SOON).is_ok() && scene.answers.recv_timeout(SOON).is_ok());
    let done = scene.done();
    assert!(
        matches!(done[..], [Done::Left, Done::RepliedSlowly(2, other)] if other != here),
        "{done:?}"
    );
    assert_eq!(scene.engine.tasks.failure(), None);
}

#[tokio::test]
async fn state_machine_is_not_used_after_a_panic() {
    let scene = Scene::new();
    scene.during(|request| assert!(request != 2, "out of luck"));
    scene.events().send(quick(1));
    scene.events().send(quick(2));
    let failure = scene.engine.tasks.failure().unwrap();
    assert!(failure.contains("Machine") && failure.contains("out of luck"), "{failure}");
    scene.done();
    scene.events().send(quick(3));
    assert_eq!(scene.done(), []);
    assert!(lock(scene.engine.door.queue()).is_empty(), "no event is kept after the end");
}

/// Goal: socket readers wait while too many events are queued, and continue once they are handled
/// or dropped.
#[tokio::test]
async fn socket_readers_wait_while_the_queue_is_long() {
    for ends_by_panic in [false, true] {
        let scene = Scene::new();
        let (entered, at_work) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let may_go_on = Mutex::new(may_go_on);
        scene.during(move |request| {
            if request == 0 {
                let _ = entered.send(());
                let _ = lock(&may_go_on).recv_timeout(SOON);
                assert!(!ends_by_panic, "out of luck");
            }
        });
        let events = scene.events().clone();
        let working = thread::spawn(move || events.send(quick(0)));
        at_work.recv_timeout(SOON).unwrap();
        let mut request = 0;
        while !scene.events().is_congested(Source::Programs) {
            request += 1;
            let (meta, bytes) = (Meta::bytes(INLINE_BYTES_MAX), vec![7; 32 << 10].into());
            scene.events().send(asked(
                request,
                Request::Put { id: None, meta, bytes, ttl_ns: None },
                None,
            ));
            assert!(request < 1000);
        }
        let events = scene.events().clone();
        let reading = tokio::spawn(async move { events.until_uncongested(Source::Programs).await });
        tokio::task::yield_now().await;
        assert!(!reading.is_finished());
        go_on.send(()).unwrap();
        tokio::time::timeout(SOON, reading).await.unwrap().unwrap();
        working.join().unwrap();
        assert!(!scene.events().is_congested(Source::Programs));
        let replies = scene.done().iter().filter(|done| **done != Done::Left).count() as u64;
        assert_eq!(replies, if ends_by_panic { 0 } else { 1 + request });
    }
}

#[tokio::test]
async fn deadlines_are_reported() {
    let scene = Scene::new();
    let never = |name: &str| Request::Get { id: name.parse().unwrap() };
    let at = |scene: &Scene, ms: u64| Some(Instant(scene.events().now().0 + ms * 1_000_000));
    // The later deadline first: the timer that sleeps for it must be woken for the other.
    scene.events().send(asked(1, never("never/1"), at(&scene, 1_000_000)));
    tokio::task::yield_now().await;
    scene.events().send(asked(2, never("never/2"), at(&scene, 5)));
    let answers = scene.answers;
    let reply = tokio::task::spawn_blocking(move || answers.recv_timeout(SOON)).await.unwrap();
    assert!(matches!(reply, Ok(Err(CallError::Timeout { .. }))), "{reply:?}");
    assert!(lock(&scene.engine.shell.done).contains(&Done::Replied(2)));
}
