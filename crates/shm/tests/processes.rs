//! Tests with several processes: a client that reads, and one that is killed while it fills a slot.
//!
//! The child is this test program itself; an environment variable contains the parent's socket.

#![cfg(not(loom))]

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::sync::Arc;

use hoplite_shm::{
    Arena, BLOCK_BYTES, Mapping, Ready, Slot, WriterId, recv_with_fds, send_with_fds,
};

const SOCKET: &str = "HOPLITE_SHM_TEST_SOCKET";
const LEN: u64 = 3 * BLOCK_BYTES + 5;
const WRITER: WriterId = WriterId(9);

/// Starts the child test `name` and returns it with its connection.
fn start(name: &str) -> (Child, UnixStream) {
    let path = std::env::temp_dir().join(format!("hoplite-shm-{}-{name}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--ignored"])
        .env(SOCKET, &path)
        .spawn()
        .unwrap();
    let (socket, _) = listener.accept().unwrap();
    std::fs::remove_file(path).unwrap();
    (child, socket)
}

/// Sends the memory of a slot, and the slot's position in it.
fn send_slot(arena: &Arena, slot: &Slot, socket: &UnixStream) {
    let (fd, extent_len) = arena.descriptor(slot.extent(), WRITER).unwrap();
    let numbers = [extent_len, slot.offset(), slot.len()].map(u64::to_le_bytes).concat();
    assert_eq!(send_with_fds(socket, &numbers, &[fd.as_fd()]).unwrap(), numbers.len());
}

/// In the child: connects and opens the slot that the parent sends.
fn receive_slot(writable: bool) -> Option<(UnixStream, Slot)> {
    // The variable is missing if a developer runs all ignored tests by hand.
    let socket = UnixStream::connect(std::env::var_os(SOCKET)?).unwrap();
    let (mut numbers, mut fds) = ([0; 24], Vec::new());
    assert_eq!(recv_with_fds(&socket, &mut numbers, &mut fds).unwrap(), numbers.len());
    let number = |at: usize| u64::from_le_bytes(numbers[at * 8..][..8].try_into().unwrap());
    let map = if writable { Mapping::map_writable } else { Mapping::map_readonly };
    let mapping = map(fds[0].as_fd(), number(0)).unwrap();
    Some((socket, Slot::open(Arc::new(mapping), number(1), number(2)).unwrap()))
}

#[test]
fn a_client_reads_what_the_node_fills() {
    let arena = Arena::new(1 << 20);
    let slot = arena.allocate(LEN, None).unwrap();
    let (mut child, mut socket) = start("child_reads");
    send_slot(&arena, &slot, &socket);
    let source: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    slot.copy_from(&source, |_| {}).unwrap();
    let mut sum = [0; 8];
    socket.read_exact(&mut sum).unwrap();
    assert_eq!(u64::from_le_bytes(sum), source.iter().map(|byte| u64::from(*byte)).sum());
    assert!(child.wait().unwrap().success());
}

#[test]
#[ignore = "the child of a_client_reads_what_the_node_fills"]
fn child_reads() {
    let Some((mut socket, slot)) = receive_slot(false) else { return };
    let bytes = loop {
        match slot.bytes() {
            Some(bytes) => break bytes,
            None => std::thread::yield_now(),
        }
    };
    let sum: u64 = bytes.trusting_writer().iter().map(|byte| u64::from(*byte)).sum();
    socket.write_all(&sum.to_le_bytes()).unwrap();
}

#[test]
fn a_writer_is_killed_half_way() {
    let arena = Arena::new(1 << 20);
    let slot = arena.allocate(LEN, Some(WRITER)).unwrap();
    let (mut child, mut socket) = start("child_writes_half");
    send_slot(&arena, &slot, &socket);
    let mut mapped = [0];
    socket.read_exact(&mut mapped).unwrap();
    arena.seal(slot.extent(), WRITER).unwrap();
    socket.write_all(&mapped).unwrap();
    // The child fills two blocks and waits; only the shared words show that.
    while slot.progress().ready_bytes() < 2 * BLOCK_BYTES {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(slot.progress().prefix(), BLOCK_BYTES);
    assert_eq!(
        slot.ready(2 * BLOCK_BYTES..3 * BLOCK_BYTES).map(Ready::trusting_writer),
        Some(&[2; BLOCK_BYTES as usize][..])
    );
    assert_eq!(slot.ready(0..2 * BLOCK_BYTES).map(Ready::trusting_writer), None);

    drop(slot);
    arena.retire(WRITER);
    assert_eq!(arena.stats().extents, 0, "what it could write serves nothing else");
}

#[test]
#[ignore = "the child of a_writer_is_killed_half_way"]
fn child_writes_half() {
    let Some((mut socket, slot)) = receive_slot(true) else { return };
    let mut mapped = [1];
    socket.write_all(&mapped).unwrap();
    socket.read_exact(&mut mapped).unwrap();
    for block in [2, 0] {
        let mut guard = slot.claim(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES).unwrap();
        guard.fill(block as u8);
        guard.commit();
    }
    // Waits until the parent kills this process; the parent's own end closes the socket.
    let _ = socket.read(&mut mapped);
}
