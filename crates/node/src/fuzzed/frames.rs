//! Fuzzes frames of a connection between nodes: control frames as read by a node, and payload as
//! read by a receiver.
//!
//! The bytes are sent raw, or in frames with valid checksums, optionally encrypted as by a member
//! with the key.

use std::{cell::OnceCell, future::Future, os::unix::net::UnixStream};

use hoplite_proto::{
    message::Message,
    wire::{self, Fetch, FrameKind, Greeting, HEADER_BYTES, Header, Unavailable},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::TcpStream, runtime::Runtime};

use super::pieces::Pieces;
use crate::{
    channel, frame,
    sealing::{Open, Seal},
    transfer::blocks::{Arrival, Arrivals},
};

const SECRET: [u8; 32] = [7; 32];

/// Bytes that a socket of a pair accepts at once.
const BYTES_MAX: usize = 64 * 1024;

/// The lengths of the places of a payload.
const PLACES: [usize; 4] = [16, 100, 16, 3];

/// Maps a number to a valid kind of frame.
fn kind(number: u8) -> FrameKind {
    use FrameKind::{Blocks, Control, Credit, End, Fetch, Greeting, Secure, Unavailable};
    let all = [Control, Blocks, Greeting, Fetch, Unavailable, Credit, End, Secure];
    all[usize::from(number) % all.len()]
}

/// Runs a future on a runtime of this thread.
pub(super) fn run<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: OnceCell<Runtime> = const { OnceCell::new() };
    }
    RUNTIME.with(|runtime| {
        let runtime = runtime.get_or_init(|| {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
        });
        runtime.block_on(future)
    })
}

/// Fuzzes the bytes of one connection. The lowest bits of the first byte select payload or control,
/// framed or raw, and encrypted or not.
pub fn frames(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else { return };
    let (is_payload, is_framed, is_sealed) = (how & 1 > 0, how & 2 > 0, how & 4 > 0);
    let secret = is_sealed.then_some(SECRET);
    let mut stream = if is_framed { framed(rest, secret) } else { rest.to_vec() };
    stream.truncate(BYTES_MAX);
    let opened = run(async {
        if is_payload { payload(&stream, secret).await } else { control(&stream, secret).await }
    });
    assert!(is_framed || !is_sealed || opened == 0, "an unencrypted frame was accepted");
}

/// Encodes each piece as a frame.
fn framed(bytes: &[u8], secret: Option<[u8; 32]>) -> Vec<u8> {
    let mut seal = Seal::new(secret);
    let (mut stream, mut place) = (Vec::new(), 0);
    for (what, body) in Pieces(bytes) {
        let header = Header::new(kind(what), body.len() as u32, frame::crc(body));
        // A few have another transfer, or a wrong offset.
        let header = Header { transfer: u64::from(what >> 6), offset: place, ..header };
        place += body.len() as u64 + u64::from(what >> 5 & 1);
        let mut whole = [&header.encode()[..], body].concat();
        seal.seal_whole(&mut whole);
        stream.extend(whole);
    }
    stream
}

/// Reads control frames until one is malformed; returns the number of valid ones.
async fn control(mut stream: &[u8], secret: Option<[u8; 32]>) -> usize {
    let (mut open, mut opened) = (Open::new(secret), 0);
    while let Ok(Some(mut header)) = channel::read_header(&mut stream).await {
        let Ok(body) = channel::read_body(&mut stream, &mut open, &mut header).await else { break };
        opened += 1;
        match header.kind {
            FrameKind::Control => {
                if let Some(message) = reads_back::<Message>(&body) {
                    message.is_valid();
                }
            }
            FrameKind::Greeting => drop(reads_back::<Greeting>(&body)),
            FrameKind::Fetch => drop(reads_back::<Fetch>(&body)),
            FrameKind::Unavailable => drop(reads_back::<Unavailable>(&body)),
            _ => {}
        }
    }
    opened
}

/// Decodes bytes, and checks that encoding the value and decoding it again gives the same value.
fn reads_back<T>(bytes: &[u8]) -> Option<T>
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let said = wire::decode::<T>(bytes).ok()?;
    assert_eq!(wire::decode::<T>(&wire::encode(&said)).as_ref(), Ok(&said));
    Some(said)
}

/// Receives payload until a frame is malformed; returns the number of valid ones.
async fn payload(stream: &[u8], secret: Option<[u8; 32]>) -> usize {
    use std::io::Write;
    let (near, mut far) = UnixStream::pair().unwrap();
    far.write_all(stream).unwrap();
    drop(far);
    near.set_nonblocking(true).unwrap();
    // Only a stream of bytes is read, so the kind of socket does not matter.
    let near = std::net::TcpStream::from(std::os::fd::OwnedFd::from(near));
    let near = TcpStream::from_std(near).unwrap();
    let (mut arrivals, mut open) = (Arrivals::default(), Open::new(secret));
    let mut memory = PLACES.map(|length| vec![0; length]);
    let (mut at, mut opened) = (0, 0);
    for _ in 0..=stream.len() / HEADER_BYTES {
        let mut places: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
        let Ok(arrived) = arrivals.next(&near, &mut places).await else { break };
        let Arrival::Frames(mut headers) = arrived else { break };
        assert!(headers.len() <= places.len());
        for (header, place) in headers.iter_mut().zip(places) {
            let decrypted = open.decrypt(header, place);
            if decrypted.and_then(|()| frame::verify(header, 0, at, place)).is_err() {
                return opened;
            }
            (at, opened) = (at + place.len() as u64, opened + 1);
        }
        memory.rotate_left(headers.len());
    }
    opened
}

/// Seeds: frames of all kinds, and payload, in all situations.
#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    use hoplite_proto::{
        id::{Instance, NodeId},
        wire::FetchTarget,
    };
    let piece =
        |what: u8, body: &[u8]| [&[what][..], &(body.len() as u16).to_le_bytes(), body].concat();
    let instance = Instance { node: NodeId(1), serial: 1 };
    let what = FetchTarget::Copy {
        id: "a/1".parse().unwrap(),
        instance,
        ranges: vec![0..16_384, u64::MAX - 1..u64::MAX],
        ordered: false,
    };
    let messages = [
        Message::Leave,
        Message::Withdraw { id: "a/1".parse().unwrap(), instance },
        Message::Decline { id: "a/1".parse().unwrap() },
    ];
    let mut said: Vec<Vec<u8>> =
        messages.iter().map(|message| piece(0, &wire::encode(message))).collect();
    said.push(piece(2, &wire::encode(&Greeting::Ping)));
    said.push(piece(
        3,
        &wire::encode(&Fetch { what, credit: u64::MAX, frame: 16_384, more: false }),
    ));
    said.push(piece(4, &wire::encode(&Unavailable::NotHere)));
    said.push(said.concat());
    let payload = PLACES.map(|length| piece(1, &vec![9; length])).concat();
    let mut seeds = vec![[&[0][..], b"HPLT\x0b\x02\0\0\xff\xff\xff\xff"].concat()];
    for sealed in [0, 4] {
        seeds.extend(said.iter().map(|said| [&[2 | sealed][..], said].concat()));
        seeds.push([&[3 | sealed][..], &payload, &piece(6, &[])].concat());
        seeds.push([&[3 | sealed][..], &payload, &payload].concat());
        seeds.push([&[1 | sealed][..], &framed(&payload, None)].concat());
        seeds.push([&[sealed][..], &framed(&said.concat(), None)].concat());
    }
    seeds
}
