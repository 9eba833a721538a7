//! Tests of the connections from which nodes receive messages, with a state machine that is behind.

use std::{
    io::Write,
    net::TcpListener,
    sync::{Weak, mpsc},
    thread,
};

use hoplite_proto::id::Instance;
use tokio::{runtime::Handle, sync::watch};

use super::*;
use crate::{
    engine::event_sender::{HandleEvent, QueuedEvent},
    frame,
};

const PEER: NodeId = NodeId(2);

/// Timeout of a test that hangs.
const LONG: Duration = Duration::from_secs(20);

/// Reports each event to the test.
struct Machine(mpsc::SyncSender<()>);

impl HandleEvent for Machine {
    fn handle(self: Arc<Self>, _: QueuedEvent, _: bool) {
        let _ = self.0.send(());
    }
}

struct Scene {
    control: Arc<Control>,
    congested: watch::Sender<[bool; 2]>,
    handled: mpsc::Receiver<()>,
    _machine: Arc<Machine>,
}

impl Scene {
    fn new() -> Self {
        let (sender, handled) = mpsc::sync_channel(1000);
        let machine = Arc::new(Machine(sender));
        let weak: Weak<dyn HandleEvent> =
            Arc::downgrade(&(machine.clone() as Arc<dyn HandleEvent>));
        let (congested, is_congested) = watch::channel([false; 2]);
        let events = EventSender::new(weak, is_congested);
        let (epoll, tasks) =
            (Arc::new(SharedEpoll::new().unwrap()), Supervisor::new(Handle::current()));
        let control = Arc::new(Control::new(epoll, events, Arc::default(), tasks));
        Self { control, congested, handled, _machine: machine }
    }

    fn congest(&self, members: bool) {
        self.congested.send_replace([members, false]);
    }

    /// Adds a connection of the peer; returns the other end and the token.
    fn connection(&self, generation: u64) -> (TcpStream, Option<u64>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        far.set_nonblocking(true).unwrap();
        let kept = self.control.keep(PEER, generation, far, Open::new(None));
        if let Some(token) = kept {
            self.control.listen(token).unwrap();
        }
        (near, kept)
    }
}

fn message() -> Vec<u8> {
    let message =
        Message::Dropped { id: "a".parse().unwrap(), instance: Instance { node: PEER, serial: 1 } };
    frame::frame(FrameKind::Control, 0, &message)
}

/// Goal: a caller that waits for a reply keeps its timeout, another thread can replace the
/// connection meanwhile, and no message is lost. Method: the event loop is behind when a message
/// arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_thread_waits_for_a_state_machine_that_is_behind() {
    let scene = Scene::new();
    let (mut near, _) = scene.connection(1);
    scene.congest(true);
    near.write_all(&message()).unwrap();
    let (waited, control) = (mpsc::channel(), scene.control.clone());
    thread::spawn(move || {
        waited.0.send(control.wait(Duration::from_millis(50), || false)).unwrap();
    });
    assert_eq!(waited.1.recv_timeout(LONG), Ok(Waited::Over), "the wait ends at its timeout");
    assert!(scene.handled.try_recv().is_err(), "the message waits in its socket");

    scene.congest(false);
    let handled = || scene.handled.try_recv().is_ok();
    assert_eq!(scene.control.wait(LONG, handled), Waited::Over);

    scene.congest(true);
    near.write_all(&message()).unwrap();
    scene.control.wait(Duration::from_millis(50), || false);
    let (_near, kept) = scene.connection(2);
    assert!(kept.is_some(), "a newer connection replaces it at once");
}
