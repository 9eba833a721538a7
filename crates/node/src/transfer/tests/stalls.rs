//! Tests of misbehaving peers, over real sockets: each transfer makes progress or ends.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{
    broadcast::Reason,
    id::{Instance, NodeId, ObjectId},
    limits::BLOCK_BYTES,
    members::Member,
    message::{Located, Message, Source},
    meta::{Dtype, Meta},
    question::{Answer, Question},
    wire::{self, Fetch, FetchTarget, FrameKind, Header, Role},
};
use tokio::{
    io::AsyncWriteExt,
    net::TcpListener,
    runtime::Runtime,
    sync::mpsc,
    time::{sleep, timeout},
};

use super::{SOON, identity};
use crate::{
    channel::{self, Channel},
    config::NodeConfig,
    error::LinkError,
    frame,
    local::{get::View, put::Value, wait::PendingReply},
    network::{
        connection_limit::ConnectionLimit,
        handshake::{
            self, Identity,
            acceptor::{self, Accepted},
        },
        tls::NodeKey,
    },
    node::Node,
    transfer::{blocks, path::Headers, streams::Streams, timeout::TURN},
};

const LEN: u64 = 64 * BLOCK_BYTES;

/// A transfer that the node has requested.
struct Asked {
    channel: Channel,
    transfer: u64,
    frame: u32,
}

impl Asked {
    async fn say_that_it_waits(&mut self) -> Result<(), LinkError> {
        self.channel.send(frame::bare(FrameKind::KeepAlive, self.transfer, 0)).await
    }

    /// Sends the whole object.
    async fn send_all(&mut self) {
        let (bytes, streams) = (bytes(), Streams::default());
        let frames = blocks::frames(bytes[..].into(), 0, self.frame.into());
        let Channel { stream, seal, .. } = &mut self.channel;
        let headers = Headers { transfer: self.transfer, shares: 1, sums: None };
        blocks::write(stream, seal, &streams, &frames, headers).await.unwrap();
        self.channel.send(frame::bare(FrameKind::End, self.transfer, 0)).await.unwrap();
    }
}

/// A misbehaving member, controlled by the test.
struct Liar {
    runtime: Runtime,
    identity: Identity,
    node: Node,
    /// Control messages to the node and from it.
    says: Channel,
    hears: mpsc::UnboundedReceiver<Message>,
    /// Payload connections that the node opened to it.
    asked: mpsc::UnboundedReceiver<Channel>,
}

impl Liar {
    fn new() -> Self {
        // It does not reply to probes.
        let detection = 10 * SOON;
        let node = Node::start(NodeConfig { detection, ..NodeConfig::default() }).unwrap();
        let runtime = Runtime::new().unwrap();
        let (heard, hears) = mpsc::unbounded_channel();
        let (connected, asked) = mpsc::unbounded_channel();
        let (identity, says) = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (key, address) = (NodeKey::new().unwrap(), listener.local_addr().unwrap());
            let member = Member { id: key.id(), address, place: None };
            let listening = identity(key, member);
            let key = listening.key.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let place = |node| Arc::<ConnectionLimit>::default().take(node, 1);
                    let Ok(Accepted::Handshake(met)) =
                        acceptor::accept(&listening, stream, |_, _, _| None, place).await
                    else {
                        continue;
                    };
                    let (mut channel, heard) = (met.channel, heard.clone());
                    if met.role == Role::Payload {
                        let _ = connected.send(channel);
                        continue;
                    }
                    tokio::spawn(async move {
                        while let Ok(message) = channel.receive_body(FrameKind::Control).await {
                            let _ = heard.send(message);
                        }
                    });
                }
            });
            let identity = identity(key, member);
            let met = handshake::initiate(&identity, node.address().unwrap(), Role::Control, None);
            let says = met.await.unwrap().channel;
            (identity, says)
        });
        Self { runtime, identity, node, says, hears, asked }
    }

    fn id(&self) -> NodeId {
        self.identity.member.id
    }

    /// Waits for a message for which `pick` returns a value.
    fn receive<T>(&mut self, pick: impl Fn(Message) -> Option<T>) -> T {
        self.runtime.block_on(async {
            let hearing = async {
                loop {
                    if let Some(picked) = pick(self.hears.recv().await.unwrap()) {
                        return picked;
                    }
                }
            };
            timeout(SOON, hearing).await.expect("the node sends it")
        })
    }

    /// Waits until it is a member, to which the node sends its state.
    fn is_met(&mut self) {
        self.receive(|message| {
            matches!(message, Message::Swim(_) | Message::Members(_)).then_some(())
        });
    }

    /// Requests a copy from the node, with this credit.
    fn fetch(&self, id: &ObjectId, instance: Instance, credit: u64) -> Channel {
        self.runtime.block_on(async {
            let met = handshake::initiate(
                &self.identity,
                self.node.address().unwrap(),
                Role::Payload,
                None,
            );
            let mut channel = met.await.unwrap().channel;
            let (id, ranges) = (id.clone(), std::iter::once(0..LEN).collect());
            let what = FetchTarget::Copy { id, instance, ranges, ordered: false };
            let fetch = Fetch { what, credit, frame: BLOCK_BYTES as u32, more: false };
            channel.send(frame::frame(FrameKind::Fetch, 1, &fetch)).await.unwrap();
            channel
        })
    }

    /// Offers an object, which the node's client gets. Returns that get, and the node's request.
    fn offer(&mut self) -> (PendingReply<View>, Asked) {
        self.is_met();
        let instance = Instance { node: self.id(), serial: 7 };
        let id = ObjectId::Minted { node: instance.node, serial: instance.serial };
        let get = self.node.client().start_get(&id, Some(SOON));
        let of = id.clone();
        let number = self.receive(move |message| match message {
            Message::Ask { number, question: Question::Locate(it) } if it.id == of => Some(number),
            _ => None,
        });
        let source = Source::Holder { node: self.id(), reason: Reason::OnlyHolder };
        let located = Located { id, instance, meta: meta(), source, lifetime: None };
        let answer = Answer::Located(Box::new(located));
        let located = Message::Answer { number, answer };
        let asked = self.runtime.block_on(async {
            self.says.send_body(FrameKind::Control, &located).await.unwrap();
            let mut channel = timeout(SOON, self.asked.recv()).await.unwrap().unwrap();
            let header = channel::read_header(&mut channel.stream).await.unwrap();
            let mut header = header.expect("the node requests the copy");
            let Channel { stream, open, .. } = &mut channel;
            let body = channel::read_body(stream, open, &mut header).await.unwrap();
            let fetch: Fetch = wire::decode(&body).unwrap();
            Asked { channel, transfer: header.transfer, frame: fetch.frame }
        });
        (get, asked)
    }

    /// The instance of the only copy at the node, and its pins.
    fn row(&self) -> (Instance, u32) {
        let (rows, _) = self.node.client().start_objects("", None, None).join().unwrap();
        (rows[0].instance, rows[0].readers)
    }

    fn wait_until(&self, what: impl Fn(&Self) -> bool) {
        let wait = async {
            while !what(self) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        self.runtime
            .block_on(async { timeout(SOON, wait).await })
            .expect("the condition becomes true");
    }

    fn counter(&self, name: &str) -> u64 {
        let text = self.node.client().start_describe(None).join().unwrap();
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        status["counters"][name].as_u64().unwrap()
    }
}

fn meta() -> Meta {
    Meta::array(Dtype::UInt8, vec![LEN]).unwrap()
}

fn bytes() -> Vec<u8> {
    (0..LEN).map(|at| (at % 251) as u8).collect()
}

/// Reads the next frame; None once the node has closed the connection.
async fn next(channel: &mut Channel) -> Option<Header> {
    let hearing = async {
        let mut header = channel::read_header(&mut channel.stream).await.ok()??;
        let Channel { stream, open, .. } = channel;
        channel::read_body(stream, open, &mut header).await.ok()?;
        Some(header)
    };
    timeout(SOON, hearing).await.expect("the node continues or closes the connection")
}

/// Goal: a receiver that grants no credit, or reads nothing, keeps no copy for longer than a turn.
#[test]
fn receiver_that_reads_nothing_is_dropped() {
    let mut liar = Liar::new();
    let client = liar.node.client();
    let id = client.put(None, Value::with_meta(&bytes(), meta()).unwrap(), Some(SOON)).unwrap();
    liar.is_met();
    let (instance, idle) = liar.row();
    // Credit for nothing, for less than a frame, and for a part.
    for credit in [0, BLOCK_BYTES - 1, 3 * BLOCK_BYTES] {
        let mut channel = liar.fetch(&id, instance, credit);
        liar.wait_until(|liar| liar.row().1 > idle);
        let came = liar.runtime.block_on(async {
            let mut came = 0;
            while let Some(header) = next(&mut channel).await {
                came += u64::from(header.length);
            }
            came
        });
        assert_eq!(came, credit / BLOCK_BYTES * BLOCK_BYTES);
        liar.wait_until(|liar| liar.row().1 == idle);
    }
    liar.wait_until(|liar| liar.counter("transfers_slow") == 3);
}

/// Goal: a transfer from a sender that sends almost nothing is aborted, and the sender is avoided
/// if another node has the object.
#[test]
fn sender_of_few_bytes_is_dropped() {
    let mut liar = Liar::new();
    let (get, mut asked) = liar.offer();
    let header = Header::new(FrameKind::Blocks, asked.frame, 0);
    let few = Header { transfer: asked.transfer, ..header }.encode();
    liar.runtime.block_on(async {
        asked.channel.stream.write_all(&few).await.unwrap();
        asked.channel.stream.write_all(&[1; 100]).await.unwrap();
        assert_eq!(next(&mut asked.channel).await, None, "the node aborts the transfer");
    });
    let avoided = liar.receive(|message| match message {
        Message::Ask { question: Question::Locate(it), .. } if !it.avoid.is_empty() => {
            Some(it.avoid)
        }
        _ => None,
    });
    assert_eq!(avoided, [liar.id()]);
    assert_eq!(liar.counter("transfers_slow"), 1);
    drop(get);
}

/// Goal: a copy that does not grow ends no transfer of it; the receiver is notified that the sender
/// waits.
#[test]
fn receiver_of_stalled_copy_is_notified() {
    let mut liar = Liar::new();
    let client = liar.node.client();
    let writer = client.start_create(None, meta(), None, Some(SOON)).join().unwrap();
    liar.is_met();
    let mut channel = liar.fetch(writer.id(), liar.row().0, LEN);
    liar.runtime.block_on(async {
        // Longer than a turn.
        for _ in 0..8 {
            assert_eq!(
                next(&mut channel).await.map(|header| header.kind),
                Some(FrameKind::KeepAlive)
            );
        }
    });
    writer.write_all(&bytes()).unwrap();
    let last = liar.runtime.block_on(async {
        let mut came = 0;
        while let Some(header) = next(&mut channel).await {
            came += u64::from(header.length);
            if header.kind == FrameKind::End {
                return (came, true);
            }
        }
        (came, false)
    });
    assert_eq!(last, (LEN, true));
    assert_eq!(liar.counter("transfers_slow"), 0);
}

/// Goal: a transfer from a sender that itself waits is not aborted while the sender reports it.
#[test]
fn sender_that_reports_waiting_is_not_dropped() {
    let mut liar = Liar::new();
    let (get, mut asked) = liar.offer();
    liar.runtime.block_on(async {
        for _ in 0..8 {
            sleep(TURN / 5).await;
            asked.say_that_it_waits().await.unwrap();
        }
        asked.send_all().await;
    });
    assert!(get.join().unwrap().as_bytes() == bytes());
    assert_eq!(liar.counter("transfers_slow"), 0);
    assert_eq!(liar.counter("fetches_failed"), 0);
}

/// Goal: a sender can't report without limit that it waits, which would keep its receiver busy.
#[test]
fn sender_that_reports_waiting_too_often_is_dropped() {
    let mut liar = Liar::new();
    let (get, mut asked) = liar.offer();
    liar.runtime.block_on(async {
        for _ in 0..10_000 {
            if asked.say_that_it_waits().await.is_err() {
                break;
            }
        }
        assert_eq!(next(&mut asked.channel).await, None, "the node aborts the transfer");
    });
    drop(get);
}
