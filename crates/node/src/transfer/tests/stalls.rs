//! Tests of members that take part in no transfer as they should, over real sockets: each transfer goes on or ends.

use std::{sync::Arc, time::Duration};

use hoplite_proto::{
    broadcast::Reason,
    id::{Instance, NodeId, ObjectId},
    limits::BLOCK_BYTES,
    members::Member,
    message::{Message, Source},
    meta::{Dtype, Meta},
    wire::{self, Fetch, FrameKind, Header, Role, What},
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
    local::{client::Value, view::View, wait::Wait},
    network::{
        handshake::{
            self, Identity,
            called::{self, Answered},
        },
        places::Places,
        tls::NodeKey,
    },
    node::Node,
    transfer::{blocks, patience::TURN, streams::Streams},
};

const LEN: u64 = 64 * BLOCK_BYTES;

/// A transfer that the node has asked for.
struct Asked {
    channel: Channel,
    transfer: u64,
    frame: u32,
}

impl Asked {
    async fn say_that_it_waits(&mut self) -> Result<(), LinkError> {
        self.channel.send(frame::bare(FrameKind::Waits, self.transfer, 0)).await
    }

    /// Sends all of the object.
    async fn send_all(&mut self) {
        let (bytes, streams) = (bytes(), Streams::default());
        let frames = blocks::frames(&bytes, 0, self.frame.into());
        let Channel { stream, seal, .. } = &mut self.channel;
        let of = blocks::Of { transfer: self.transfer, fragile: false, shares: 1 };
        blocks::write(stream, seal, &streams, of, frames, |_, _| None).await.unwrap();
        self.channel.send(frame::bare(FrameKind::End, self.transfer, 0)).await.unwrap();
    }
}

/// A member that sends and takes what it likes.
struct Liar {
    runtime: Runtime,
    identity: Identity,
    node: Node,
    /// What it says to the node, and hears of it.
    says: Channel,
    hears: mpsc::UnboundedReceiver<Message>,
    /// Payload connections that the node has made to it.
    asked: mpsc::UnboundedReceiver<Channel>,
}

impl Liar {
    fn new() -> Self {
        // It answers no question whether it lives.
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
                    let place = |node| Arc::<Places>::default().take(node, 1);
                    let Ok(Answered::Met(met)) =
                        called::answer(&listening, stream, |_, _, _| None, place).await
                    else {
                        continue;
                    };
                    let (mut channel, heard) = (met.channel, heard.clone());
                    if met.role == Role::Payload {
                        let _ = connected.send(channel);
                        continue;
                    }
                    tokio::spawn(async move {
                        while let Ok(message) = channel.hear(FrameKind::Control).await {
                            let _ = heard.send(message);
                        }
                    });
                }
            });
            let identity = identity(key, member);
            let met = handshake::call(&identity, node.address().unwrap(), Role::Control, None);
            let says = met.await.unwrap().channel;
            (identity, says)
        });
        Self { runtime, identity, node, says, hears, asked }
    }

    fn id(&self) -> NodeId {
        self.identity.member.id
    }

    /// Waits for a message of which `pick` makes something.
    fn hear<T>(&mut self, pick: impl Fn(Message) -> Option<T>) -> T {
        self.runtime.block_on(async {
            let hearing = async {
                loop {
                    if let Some(picked) = pick(self.hears.recv().await.unwrap()) {
                        return picked;
                    }
                }
            };
            timeout(SOON, hearing).await.expect("the node says it")
        })
    }

    /// Waits until it is a member, which is told of what the node has.
    fn is_met(&mut self) {
        self.hear(|message| {
            matches!(message, Message::Rumour(_) | Message::Members(_)).then_some(())
        });
    }

    /// Asks the node for a copy, and grants so much.
    fn fetch(&self, id: &ObjectId, instance: Instance, credit: u64) -> Channel {
        self.runtime.block_on(async {
            let met =
                handshake::call(&self.identity, self.node.address().unwrap(), Role::Payload, None);
            let mut channel = met.await.unwrap().channel;
            let (id, ranges) = (id.clone(), std::iter::once(0..LEN).collect());
            let what = What::Copy { id, instance, ranges, ordered: false };
            let fetch = Fetch { what, credit, frame: BLOCK_BYTES as u32 };
            channel.send(frame::frame(FrameKind::Fetch, 1, &fetch)).await.unwrap();
            channel
        })
    }

    /// Says that it has an object, which the node's client gets; how the node asks for it.
    fn offer(&mut self) -> (Wait<View>, Asked) {
        self.is_met();
        let instance = Instance { node: self.id(), serial: 7 };
        let id = ObjectId::Minted { node: instance.node, serial: instance.serial };
        let get = self.node.client().start_get(&id, Some(SOON));
        let of = id.clone();
        self.hear(move |message| {
            matches!(message, Message::Locate { id, .. } if id == of).then_some(())
        });
        let source = Source::Holder { node: self.id(), reason: Reason::OnlyHolder };
        let located = Message::Located { id, instance, meta: meta(), source, lifetime: None };
        let asked = self.runtime.block_on(async {
            self.says.say(FrameKind::Control, &located).await.unwrap();
            let mut channel = timeout(SOON, self.asked.recv()).await.unwrap().unwrap();
            let header = channel::read_header(&mut channel.stream).await.unwrap();
            let mut header = header.expect("the node asks");
            let Channel { stream, open, .. } = &mut channel;
            let body = channel::read_body(stream, open, &mut header).await.unwrap();
            let fetch: Fetch = wire::decode(&body).unwrap();
            Asked { channel, transfer: header.transfer, frame: fetch.frame }
        });
        (get, asked)
    }

    /// Of the copy of which this is the only one at the node: which instance, and how often it is held.
    fn row(&self) -> (Instance, u32) {
        let rows = self.node.client().start_objects(None).join().unwrap();
        (rows[0].instance, rows[0].pins)
    }

    fn wait_until(&self, what: impl Fn(&Self) -> bool) {
        let wait = async {
            while !what(self) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        self.runtime.block_on(async { timeout(SOON, wait).await }).expect("it becomes so");
    }

    fn counter(&self, name: &str) -> u64 {
        let text = self.node.client().describe().unwrap();
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

/// The next frame; none when the node has ended the connection.
async fn next(channel: &mut Channel) -> Option<Header> {
    let hearing = async {
        let mut header = channel::read_header(&mut channel.stream).await.ok()??;
        let Channel { stream, open, .. } = channel;
        channel::read_body(stream, open, &mut header).await.ok()?;
        Some(header)
    };
    timeout(SOON, hearing).await.expect("the node goes on or ends it")
}

/// Goal: a receiver that grants nothing, or takes nothing, holds no copy for longer than a turn.
#[test]
fn a_receiver_that_takes_nothing_is_left() {
    let mut liar = Liar::new();
    let client = liar.node.client();
    let id = client.put(None, Value::with_meta(&bytes(), meta()).unwrap(), Some(SOON)).unwrap();
    liar.is_met();
    let (instance, idle) = liar.row();
    // None of it, less than a frame, and some of it.
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

/// Goal: a sender that gives next to nothing is left, and avoided if another has the object.
#[test]
fn a_sender_that_gives_a_few_bytes_is_left() {
    let mut liar = Liar::new();
    let (get, mut asked) = liar.offer();
    let header = Header::new(FrameKind::Blocks, asked.frame, 0);
    let few = Header { transfer: asked.transfer, ..header }.encode();
    liar.runtime.block_on(async {
        asked.channel.stream.write_all(&few).await.unwrap();
        asked.channel.stream.write_all(&[1; 100]).await.unwrap();
        assert_eq!(next(&mut asked.channel).await, None, "the node ends the transfer");
    });
    let avoided = liar.hear(|message| match message {
        Message::Locate { avoid, .. } if !avoid.is_empty() => Some(avoid),
        _ => None,
    });
    assert_eq!(avoided, [liar.id()]);
    assert_eq!(liar.counter("transfers_slow"), 1);
    drop(get);
}

/// Goal: a copy that does not grow ends no transfer of it; the receiver hears why nothing comes.
#[test]
fn a_receiver_of_what_does_not_grow_is_told_so() {
    let mut liar = Liar::new();
    let client = liar.node.client();
    let writer = client.start_create(None, meta(), None, Some(SOON)).join().unwrap();
    liar.is_met();
    let mut channel = liar.fetch(writer.id(), liar.row().0, LEN);
    liar.runtime.block_on(async {
        // Longer than a turn.
        for _ in 0..8 {
            assert_eq!(next(&mut channel).await.map(|header| header.kind), Some(FrameKind::Waits));
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

/// Goal: a sender that itself waits is borne with for as long as it says so.
#[test]
fn a_sender_that_says_that_it_waits_is_not_left() {
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

/// Goal: a sender can't say that it waits as often as it likes, which would keep its receiver busy.
#[test]
fn a_sender_that_says_all_the_time_that_it_waits_is_left() {
    let mut liar = Liar::new();
    let (get, mut asked) = liar.offer();
    liar.runtime.block_on(async {
        for _ in 0..10_000 {
            if asked.say_that_it_waits().await.is_err() {
                break;
            }
        }
        assert_eq!(next(&mut asked.channel).await, None, "the node ends the transfer");
    });
    drop(get);
}
