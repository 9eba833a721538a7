//! Payload frames on a socket: each is a run of blocks, and one system call moves several. Knows
//! bytes and frames, not objects.

use std::io::{self, IoSlice, IoSliceMut};

use hoplite_proto::wire::{FrameKind, HEADER_BYTES, Header, WireError};
use hoplite_shm::Ready;
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::TcpStream,
};

use super::{
    path::Headers,
    streams::{Piece, Streams},
};
use crate::{
    channel,
    error::LinkError,
    mutants::{self, Mutant},
    sealing::Seal,
};

/// Frames per read, if that many have arrived. A larger number would delay the first of them at a
/// relay.
pub(crate) const FRAMES_AT_ONCE: usize = 8;

/// Reads frames of known lengths and order directly into place.
#[derive(Debug)]
pub(crate) struct Arrivals {
    headers: [[u8; HEADER_BYTES]; FRAMES_AT_ONCE],
    /// Bytes received since the start of the first incomplete frame.
    got: usize,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { headers: [[0; HEADER_BYTES]; FRAMES_AT_ONCE], got: 0 }
    }
}

/// What arrived.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Complete frames, in the first places; not verified yet.
    Frames(Vec<Header>),
    /// The sender reports that it waits itself; not verified yet.
    KeepAlive(Header),
    /// Another frame; this many bytes of its body are in the first place.
    Other(Header, usize),
}

impl Arrivals {
    /// Waits for at least one frame. The bodies go to `places`, each as long as its frame. Pass the
    /// places not filled yet again next time, as the first ones. Without places, this waits for
    /// another kind of frame.
    pub(crate) async fn next(
        &mut self,
        stream: &TcpStream,
        places: &mut [&mut [u8]],
    ) -> Result<Arrival, LinkError> {
        loop {
            if let Some(arrived) = self.whole(places)? {
                return Ok(arrived);
            }
            let count = places.len().max(1);
            let mut pieces = Vec::with_capacity(2 * count);
            let mut unfilled = places.iter_mut();
            for header in self.headers.iter_mut().take(count) {
                pieces.push(IoSliceMut::new(header));
                pieces.extend(unfilled.next().map(|place| IoSliceMut::new(place)));
            }
            let wanted: usize = pieces.iter().map(|piece| piece.len()).sum();
            let mut rest = pieces.as_mut_slice();
            IoSliceMut::advance_slices(&mut rest, self.got);
            self.got += read_some(stream, rest, wanted - self.got).await?;
        }
    }

    /// The complete frames, if there are any.
    fn whole(&mut self, places: &mut [&mut [u8]]) -> Result<Option<Arrival>, WireError> {
        if self.got >= HEADER_BYTES {
            let header = Header::decode(&self.headers[0])?;
            match header.kind {
                FrameKind::KeepAlive => {
                    self.skip_header(places);
                    return Ok(Some(Arrival::KeepAlive(header)));
                }
                FrameKind::Blocks if !places.is_empty() => {}
                _ => return self.other(header, places).map(Some),
            }
        }
        let mut frames = Vec::new();
        for place in places.iter().take(FRAMES_AT_ONCE) {
            if self.got < HEADER_BYTES {
                break;
            }
            let header = Header::decode(&self.headers[frames.len()])?;
            if header.kind != FrameKind::Blocks {
                break;
            }
            if header.length as usize != place.len() {
                let said = format!("a frame of {} bytes instead of {}", header.length, place.len());
                return Err(WireError::Unexpected(said));
            }
            if self.got < HEADER_BYTES + place.len() {
                break;
            }
            self.got -= HEADER_BYTES + place.len();
            frames.push(header);
        }
        if frames.is_empty() {
            return Ok(None);
        }
        self.headers.rotate_left(frames.len());
        Ok(Some(Arrival::Frames(frames)))
    }

    /// Another frame than of blocks, which is the first. Nothing follows it before the next
    /// request.
    fn other(&mut self, header: Header, places: &[&mut [u8]]) -> Result<Arrival, WireError> {
        let body = std::mem::take(&mut self.got) - HEADER_BYTES;
        let room = places.first().map_or(0, |place| place.len());
        if body > room.min(header.length as usize) {
            let said = format!("{body} bytes after a frame of kind {}", header.kind);
            return Err(WireError::Unexpected(said));
        }
        Ok(Arrival::Other(header, body))
    }

    /// Removes the first header, of a frame without a body, and moves the bytes after it up.
    fn skip_header(&mut self, places: &mut [&mut [u8]]) {
        let mut behind = Vec::with_capacity(self.got);
        for (header, place) in self.headers.iter().zip(places.iter()) {
            behind.extend_from_slice(header);
            behind.extend_from_slice(place);
            if behind.len() >= self.got {
                break;
            }
        }
        behind.truncate(self.got);
        let mut rest = behind.get(HEADER_BYTES..).unwrap_or_default();
        for (header, place) in self.headers.iter_mut().zip(places.iter_mut()) {
            for piece in [&mut header[..], &mut place[..]] {
                let (here, later) = rest.split_at(piece.len().min(rest.len()));
                piece[..here.len()].copy_from_slice(here);
                rest = later;
            }
        }
        self.got -= HEADER_BYTES;
    }
}

/// Waits until the socket is readable, then reads up to `wanted` bytes.
async fn read_some(
    stream: &TcpStream,
    pieces: &mut [IoSliceMut<'_>],
    wanted: usize,
) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        let mut got = 0;
        let read = stream.try_io(Interest::READABLE, || {
            got = rustix::io::readv(stream, pieces)?;
            // A short read: the next read would find nothing. This error makes the runtime wait for
            // the next event.
            if got > 0 && got < wanted { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match read {
            Ok(()) if got == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ if got > 0 => return Ok(got),
            _ => {}
        }
    }
}

/// Writes frames, each an offset in an object and its bytes.
///
/// Encrypted frames are copies, in memory of `streams`. Bytes that a process of this host can write
/// are copied too. Their checksums cover the copy: if a program changes its object against the
/// contract, this node does not appear to send corrupt bytes.
pub(crate) async fn write<W>(
    writer: &mut W,
    seal: &mut Seal,
    streams: &Streams,
    frames: &[(u64, Ready<'_>)],
    headers: Headers<'_>,
) -> io::Result<()>
where
    W: tokio::io::AsyncWrite + Unpin,
{
    let is_own = |(_, bytes): &(u64, Ready<'_>)| bytes.own().is_some();
    if !(seal.is_disabled() && frames.iter().all(is_own)) {
        let copied = copied(seal, streams, frames, headers);
        return writer.write_all(&copied).await;
    }
    let own = frames.iter().filter_map(|(offset, bytes)| Some((*offset, bytes.own()?)));
    let encoded: Vec<[u8; HEADER_BYTES]> =
        own.clone().map(|(offset, bytes)| headers.of(offset, bytes).encode()).collect();
    let mut pieces: Vec<IoSlice<'_>> = encoded
        .iter()
        .zip(own)
        .flat_map(|(header, (_, bytes))| [IoSlice::new(header), IoSlice::new(bytes)])
        .collect();
    channel::write_pieces(writer, &mut pieces).await
}

/// Copies frames as they are sent.
fn copied(
    seal: &mut Seal,
    streams: &Streams,
    frames: &[(u64, Ready<'_>)],
    headers: Headers<'_>,
) -> Piece {
    let length = frames.iter().map(|(_, bytes)| HEADER_BYTES + bytes.len()).sum();
    let mut all = streams.piece(length);
    let mut rest = &mut all[..];
    for (offset, bytes) in frames {
        let (frame, behind) = rest.split_at_mut(HEADER_BYTES + bytes.len());
        let (head, body) = frame.split_at_mut(HEADER_BYTES);
        bytes.copy_to(body);
        let mut header = headers.of(*offset, body);
        seal.seal(&mut header, body);
        head.copy_from_slice(&header.encode());
        rest = behind;
    }
    all
}

/// Splits `bytes`, which start at `offset` of an object, into frames of `frame` bytes.
pub(crate) fn frames(bytes: Ready<'_>, offset: u64, frame: u64) -> Vec<(u64, Ready<'_>)> {
    let place = |(index, of)| (offset + index as u64 * frame, swapped(bytes, index, of));
    bytes.chunks(frame as usize).enumerate().map(place).collect()
}

/// Returns a frame, or its neighbor if the mutant for that is active.
fn swapped<'a>(all: Ready<'a>, index: usize, frame: Ready<'a>) -> Ready<'a> {
    let other = || all.chunks(frame.len()).nth(index ^ 1).filter(|it| it.len() == frame.len());
    let is_wanted =
        mutants::is_active(Mutant::SwapsBlocks) && all.len() >= (index + 1) * frame.len();
    is_wanted.then(other).flatten().unwrap_or(frame)
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll},
    };

    use hoplite_shm::{Arena, WriterId};
    use tokio::{io::AsyncWriteExt, net::TcpListener};

    use super::*;
    use crate::{frame, sealing::Open};

    fn open(
        open: &mut Open,
        header: &mut Header,
        transfer: u64,
        at: u64,
        bytes: &mut [u8],
    ) -> Result<(), WireError> {
        open.decrypt(header, bytes)?;
        frame::verify(header, transfer, at, bytes)
    }

    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    const fn headers(transfer: u64) -> Headers<'static> {
        Headers { transfer, shares: 1, sums: None }
    }

    /// Frames of `bytes` as they are sent, encrypted or not.
    async fn sent(secret: Option<[u8; 32]>, transfer: u64, bytes: &[u8], frame: u64) -> Vec<u8> {
        let (mut sent, mut seal, streams) = (Vec::new(), Seal::new(secret), Streams::default());
        let frames = frames(bytes.into(), 0, frame);
        write(&mut sent, &mut seal, &streams, &frames, headers(transfer)).await.unwrap();
        sent
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    /// Goal: frames arrive whole, in order and in place, wherever the network splits the stream.
    /// Method: the same frames in pieces of many sizes, with at most three places at a time.
    #[tokio::test]
    async fn split_frames_are_reassembled() {
        const FRAME: u64 = 16 * 1024;
        let bytes = pattern(5 * FRAME as usize + 100);
        for cut in [7, 47, 49, 1000, 16_432, 40_000, 200_000] {
            let secret = (cut > 40).then_some([3; 32]);
            let mut opened = Open::new(secret);
            let (near, mut far) = connected().await;
            let mut sent = sent(secret, 9, &bytes, FRAME).await;
            sent.extend(frame::bare(FrameKind::End, 9, 0));
            let sending = tokio::spawn(async move {
                for piece in sent.chunks(cut) {
                    far.write_all(piece).await.unwrap();
                    if cut < 100 {
                        continue;
                    }
                    tokio::task::yield_now().await;
                }
                far
            });
            let mut arrivals = Arrivals::default();
            let mut received = vec![0; bytes.len()];
            let mut at = 0;
            while at < received.len() {
                let mut places: Vec<&mut [u8]> =
                    received[at..].chunks_mut(FRAME as usize).take(3).collect();
                let Arrival::Frames(mut headers) = arrivals.next(&near, &mut places).await.unwrap()
                else {
                    panic!("there are more frames")
                };
                for (header, place) in headers.iter_mut().zip(&mut places) {
                    open(&mut opened, header, 9, at as u64, place).unwrap();
                    at += place.len();
                }
            }
            assert_eq!(received, bytes);
            let mut rest = [0; 16];
            let end = arrivals.next(&near, &mut [&mut rest]).await.unwrap();
            assert!(matches!(end, Arrival::Other(Header { kind: FrameKind::End, .. }, 0)));
            drop(sending.await.unwrap());
        }
    }

    /// Method: Waits frames before, between and after other frames, in pieces of many sizes.
    #[tokio::test]
    async fn waits_frames_between_blocks_are_skipped() {
        const FRAME: u64 = 16 * 1024;
        let bytes = pattern(4 * FRAME as usize);
        for cut in [29, 48, 4099, 200_000] {
            let (near, mut far) = connected().await;
            let waits = frame::bare(FrameKind::KeepAlive, 9, 0);
            let mut all = [waits.clone(), waits.clone()].concat();
            for frame in sent(None, 9, &bytes, FRAME).await.chunks(HEADER_BYTES + FRAME as usize) {
                all.extend_from_slice(frame);
                all.extend_from_slice(&waits);
            }
            let sending = tokio::spawn(async move {
                for piece in all.chunks(cut) {
                    far.write_all(piece).await.unwrap();
                }
                far
            });
            let (mut arrivals, mut received) = (Arrivals::default(), vec![0; bytes.len()]);
            let (mut at, mut said) = (0, 0);
            while at < received.len() || said < 6 {
                let (mut none, rest) = ([0; 16], &mut received[at..]);
                let mut places: Vec<&mut [u8]> = rest.chunks_mut(FRAME as usize).take(3).collect();
                if places.is_empty() {
                    places.push(&mut none);
                }
                match arrivals.next(&near, &mut places).await.unwrap() {
                    Arrival::KeepAlive(_) => said += 1,
                    Arrival::Frames(headers) => {
                        for (mut header, place) in headers.into_iter().zip(&mut places) {
                            open(&mut Open::new(None), &mut header, 9, at as u64, place).unwrap();
                            at += place.len();
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((said, received == bytes), (6, true), "in pieces of {cut}");
            drop(sending.await.unwrap());
        }
    }

    /// A connection that detects whether it is given bytes of the object itself.
    struct Spy {
        object: std::ops::Range<*const u8>,
        is_given_it: bool,
    }

    impl tokio::io::AsyncWrite for Spy {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.is_given_it |= self.object.contains(&bytes.as_ptr());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn bytes_that_others_can_write_and_encrypted_frames_are_copied() {
        let (arena, streams) = (Arena::new(1 << 20), Streams::default());
        let own = arena.allocate(100, None).unwrap();
        own.copy_from(&pattern(100), |_| {}).unwrap();
        let theirs = arena.allocate(100, Some(WriterId(1))).unwrap();
        theirs.record_complete();
        for (secret, slot, is_given_it) in
            [(None, &own, true), (None, &theirs, false), (Some([3; 32]), &own, false)]
        {
            let bytes = slot.bytes().unwrap();
            let object = bytes.trusting_writer().as_ptr_range();
            let mut spy = Spy { object, is_given_it: false };
            let (mut seal, frames) = (Seal::new(secret), frames(bytes, 0, 50));
            write(&mut spy, &mut seal, &streams, &frames, headers(1)).await.unwrap();
            assert_eq!(spy.is_given_it, is_given_it);
        }
    }

    #[tokio::test]
    async fn other_frame_leaves_its_body_in_the_first_place() {
        let (near, mut far) = connected().await;
        let mut sent = sent(None, 1, &[7; 10], 16).await;
        sent.extend(frame::frame(FrameKind::Unavailable, 1, &vec![1u8, 2, 3]));
        far.write_all(&sent).await.unwrap();
        let (mut arrivals, mut first, mut second) = (Arrivals::default(), [0; 10], [0; 100]);
        let arrived = arrivals.next(&near, &mut [&mut first, &mut second]).await.unwrap();
        assert!(matches!(arrived, Arrival::Frames(headers) if headers.len() == 1));
        let arrived = arrivals.next(&near, &mut [&mut second]).await.unwrap();
        let Arrival::Other(header, body) = arrived else { panic!("{arrived:?}") };
        assert_eq!((header.kind, header.length as usize), (FrameKind::Unavailable, body));
        assert_eq!(second[..body], hoplite_proto::wire::encode(&vec![1u8, 2, 3]));
    }

    #[tokio::test]
    async fn bytes_after_the_end_are_an_error() {
        for (behind, is_right) in [(0, true), (1, false), (20, false), (200, false)] {
            let (near, mut far) = connected().await;
            let mut sent = frame::bare(FrameKind::End, 1, 0).to_vec();
            sent.resize(HEADER_BYTES + behind, 7);
            far.write_all(&sent).await.unwrap();
            let (mut first, mut second) = ([0; 10], [0; 300]);
            let arrived = Arrivals::default().next(&near, &mut [&mut first, &mut second]).await;
            assert_eq!(arrived.is_ok(), is_right, "{behind} bytes");
        }
    }

    #[tokio::test]
    async fn wrong_length_or_truncated_frame_is_an_error() {
        let (near, mut far) = connected().await;
        let sent = sent(None, 1, &[7; 10], 16).await;
        far.write_all(&sent).await.unwrap();
        let mut place = [0; 12];
        assert!(Arrivals::default().next(&near, &mut [&mut place]).await.is_err());
        let (near, mut far) = connected().await;
        far.write_all(&sent[..sent.len() - 1]).await.unwrap();
        drop(far);
        let mut place = [0; 10];
        assert!(Arrivals::default().next(&near, &mut [&mut place]).await.is_err());
    }

    #[test]
    fn frame_is_verified_for_transfer_offset_and_bytes() {
        let checked = |transfer, place, bytes: &mut [u8]| {
            let checksum = frame::crc(&[1, 2, 3]);
            let header = Header::new(FrameKind::Blocks, 3, checksum);
            let mut header = Header { transfer: 5, offset: 16, ..header };
            open(&mut Open::new(None), &mut header, transfer, place, bytes)
        };
        assert!(checked(5, 16, &mut [1, 2, 3]).is_ok());
        assert!(checked(6, 16, &mut [1, 2, 3]).is_err());
        assert!(checked(5, 32, &mut [1, 2, 3]).is_err());
        assert!(checked(5, 16, &mut [1, 2, 4]).is_err());
    }
}
