//! Clients of two nodes, and clients in several ways of pending.

mod common;

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use common::{LONG, cluster};
use hoplite::{ErrorKind, Value};

#[test]
fn objects_arrive_from_another_node() {
    let nodes = cluster(2);
    let [writer, reader] = [0, 1].map(|at| &nodes[at].client);
    for size in [100, 12 << 20] {
        let value: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        let names =
            ["blocking", "awaited", "background", "view"].map(|way| format!("{way}/{size}"));
        // The requests wait before the object exists, so that its blocks are copied while they arrive.
        let started = reader.get_into(&names[2], vec![0; size]).timeout(LONG).start();
        let view = reader.get(&names[3]).timeout(LONG).start();
        std::thread::scope(|scope| {
            let blocking = scope.spawn(|| {
                let mut out = vec![0; size];
                let copied = reader.get_into(&names[0], &mut out).timeout(LONG).wait();
                (copied, out)
            });
            let awaited = scope.spawn(|| {
                let mut out = vec![0; size];
                let call = reader.get_into(&names[1], &mut out).timeout(LONG);
                let copied = pollster::block_on(call.into_future());
                (copied, out)
            });
            for name in &names {
                writer.put(&value).name(name).timeout(LONG).wait().unwrap();
            }
            for filled in [blocking, awaited] {
                let (copied, out) = filled.join().unwrap();
                assert_eq!(copied.unwrap(), size as u64);
                assert!(out == value);
            }
        });
        assert_eq!(started.wait().unwrap(), size as u64);
        assert!(view.wait().unwrap().bytes() == value);
        writer.delete(&names).timeout(LONG).wait().unwrap();
    }
}

#[test]
fn memory_of_another_size_is_refused_while_the_object_arrives() {
    let nodes = cluster(2);
    let reference = nodes[0].client.put(vec![1; 8 << 20]).wait().unwrap();
    let call = nodes[1].client.get_into(&reference, vec![0; 8]).timeout(LONG);
    assert_eq!(call.wait().unwrap_err().kind(), ErrorKind::ShapeMismatch);
}

#[test]
fn replicas_survive_their_node() {
    let mut nodes = cluster(2);
    let name = |size: u64, way: &str| format!("{way}/{size}");
    for size in [10, 100_000] {
        let value = || vec![5; size as usize];
        let put = nodes[0].client.put(value()).name(name(size, "put")).replicas(2).timeout(LONG);
        assert_eq!(put.wait().unwrap().replicas(), Some(2));
        let put = nodes[0].client.put(value()).name(name(size, "start")).replicas(3).timeout(LONG);
        assert_eq!(put.start().wait().unwrap().replicas(), Some(2));
        let create = nodes[0].client.create("uint8", &[size]).name(name(size, "seal")).replicas(2);
        let mut buffer = create.wait().unwrap();
        buffer.bytes_mut().fill(5);
        assert_eq!(buffer.seal().timeout(LONG).wait().unwrap().replicas(), Some(2));
    }
    let first = nodes.remove(0);
    assert!(first.node.close(Some(LONG)));
    for size in [10, 100_000] {
        for way in ["put", "start", "seal"] {
            let view = nodes[0].client.get(name(size, way)).timeout(LONG).wait().unwrap();
            assert!(view.bytes() == vec![5; size as usize]);
        }
    }
}

#[test]
fn inputs_of_two_nodes_are_reduced() {
    let nodes = cluster(2);
    let elements = 300_000;
    for (at, name) in ["grad/0", "grad/1"].iter().enumerate() {
        let value = vec![at as i64 + 1; elements];
        let value = Value::array(&value, &[elements as u64]).unwrap();
        nodes[at].client.put(value).name(name).wait().unwrap();
    }
    let sum = nodes[1].client.reduce(["grad/0", "grad/1", "grad/2"], "sum").count(2).name("sum");
    sum.wait().unwrap();
    for node in &nodes {
        let view = node.client.get("sum").timeout(LONG).wait().unwrap();
        assert!(view.as_slice::<i64>().unwrap() == vec![3; elements]);
    }
    let locations = nodes[0].client.locations("grad/1").timeout(LONG).wait().unwrap();
    assert!(locations.iter().any(|location| location.address == nodes[1].node.address()));
}

#[test]
fn dropped_put_leaves_no_object() {
    let nodes = cluster(1);
    let client = &nodes[0].client;
    for size in [10, 100_000] {
        let name = format!("dropped/{size}");
        // Nobody takes the result: the put after it finds the name free.
        let done = client.put(vec![1; size]).name(&name).start();
        assert!(done.is_done_within(LONG));
        drop(done);
        client.put(vec![2; size]).name(&name).timeout(LONG).wait().unwrap();
    }
    // This one waits for memory.
    let pinned: Vec<_> = (0..3).map(|_| client.put(vec![0; 20 << 20]).wait().unwrap()).collect();
    let memory: Arc<[u8]> = vec![1; 20 << 20].into();
    let waiting = client.put(memory.clone()).name("waits").start();
    assert!(!waiting.is_done());
    drop(waiting);
    assert_eq!(Arc::strong_count(&memory), 1);
    client.delete(&pinned).timeout(LONG).wait().unwrap();
    client.put(b"free").name("waits").timeout(LONG).wait().unwrap();
    assert_eq!(client.get("waits").wait().unwrap().bytes(), b"free");
}

#[test]
fn dropped_get_into_releases_its_memory() {
    struct Memory(Vec<u8>, mpsc::Sender<()>);
    impl AsMut<[u8]> for Memory {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }
    impl Drop for Memory {
        fn drop(&mut self) {
            self.1.send(()).unwrap();
        }
    }
    let nodes = cluster(1);
    let (sender, receiver) = mpsc::channel();
    let waiting = nodes[0].client.get_into("missing", Memory(vec![0; 10], sender)).start();
    assert!(receiver.try_recv().is_err());
    drop(waiting);
    // It was dropped before `drop` returned.
    receiver.try_recv().unwrap();
}

#[test]
fn pending_calls_notify_once() {
    let nodes = cluster(1);
    let client = &nodes[0].client;
    let (sender, receiver) = mpsc::channel();
    let mut waiting = client.get("later").start();
    assert!(!waiting.is_done());
    assert!(waiting.wait_timeout(Duration::ZERO).is_none());
    let (blocking, other) = (sender.clone(), client.clone());
    waiting.on_done(move || {
        // It may block, and call anything.
        let nested = other.get("later").start().wait().unwrap();
        blocking.send(nested.bytes().to_vec()).unwrap();
    });
    let quick = sender.clone();
    waiting.when_done(move || quick.send(b"quick".to_vec()).unwrap());
    client.put(b"value").name("later").wait().unwrap();
    let mut received: Vec<_> = (0..2).map(|_| receiver.recv_timeout(LONG).unwrap()).collect();
    received.sort();
    assert_eq!(received, [b"quick".to_vec(), b"value".to_vec()]);
    assert_eq!(waiting.wait_timeout(LONG).unwrap().unwrap().bytes(), b"value");
    // The result was taken, and the call has ended: another callback is called at once.
    let again = waiting.wait_timeout(LONG).unwrap().unwrap_err();
    assert_eq!(again.kind(), ErrorKind::InvalidArgument);
    waiting.when_done(move || sender.send(b"at once".to_vec()).unwrap());
    assert_eq!(receiver.try_recv().unwrap(), b"at once");
    drop(waiting);
    // Every callback is gone.
    assert!(receiver.recv_timeout(LONG).is_err());
}

#[test]
fn dropped_call_notifies_too() {
    let nodes = cluster(1);
    let (sender, receiver) = mpsc::channel();
    let waiting = nodes[0].client.get("missing").start();
    waiting.on_done(move || sender.send(()).unwrap());
    drop(waiting);
    receiver.recv_timeout(LONG).unwrap();
}

#[test]
fn pending_is_a_future_of_any_executor() {
    let nodes = cluster(1);
    let client = nodes[0].client.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let pending = client.get("later").timeout(LONG).start();
        client.put(b"value").name("later").await.unwrap();
        assert_eq!(pending.await.unwrap().bytes(), b"value");
        // A runtime without timers, and a thread of it that blocks.
        assert_eq!(client.get("later").timeout(LONG).await.unwrap().bytes(), b"value");
        assert_eq!(client.get("later").start().wait().unwrap().bytes(), b"value");
        // Nodes start and close here too.
        drop(nodes);
        drop(cluster(1));
    });
}
