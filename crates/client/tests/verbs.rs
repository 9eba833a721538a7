//! Every verb, blocking, awaited and in the background.

use std::time::Duration;

use hoplite::{Client, ClientOptions, ErrorKind, Node, NodeOptions, Value};

const LONG: Duration = Duration::from_secs(20);

fn node() -> (Node, Client) {
    let options = NodeOptions { capacity: Some(64 << 20), ..NodeOptions::default() };
    let node = Node::start(options).unwrap();
    let client = node.client(ClientOptions::default()).unwrap();
    (node, client)
}

#[test]
fn put_and_get_small_and_large() {
    let (_node, client) = node();
    for bytes in [0, 5, 32 * 1024, 32 * 1024 + 1, 3 << 20] {
        let value: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let wait = client.put(&value).wait().unwrap();
        let awaited = pollster::block_on(client.put(&value).into_future()).unwrap();
        let started = client.put(value.clone()).start().wait().unwrap();
        for reference in [wait, awaited, started] {
            assert_eq!(reference.replicas(), Some(1));
            let view = client.get(&reference).wait().unwrap();
            assert_eq!(view.bytes(), value);
            assert!(bytes == 0 || view.bytes().as_ptr().addr().is_multiple_of(64));
            assert_eq!((view.dtype(), view.shape(), view.nbytes()), ("bytes", &[][..], bytes));
            let view =
                pollster::block_on(client.get(&reference).timeout(LONG).into_future()).unwrap();
            assert_eq!(view.bytes(), value);
            let mut pending = client.get(&reference).timeout(LONG).start();
            let view = pending.wait_timeout(LONG).unwrap().unwrap();
            assert_eq!(view.bytes(), value);
            let mut out = vec![1; value.len()];
            assert_eq!(client.get_into(&reference, &mut out).wait().unwrap(), bytes);
            assert_eq!(out, value);
        }
    }
}

#[test]
fn create_seal_delete() {
    let (_node, client) = node();
    for elements in [3, 100_000] {
        let mut buffer = client.create("int32", &[elements]).wait().unwrap();
        let getting = client.get(buffer.reference()).start();
        let future = buffer.reference().clone();
        buffer.as_mut_slice::<i32>().unwrap().fill(7);
        assert_eq!(buffer.as_mut_slice::<f32>().unwrap_err().kind(), ErrorKind::UnsupportedDtype);
        let reference = buffer.seal().timeout(LONG).wait().unwrap();
        assert_eq!(reference, future);
        let view = getting.wait().unwrap();
        assert_eq!(view.as_slice::<i32>().unwrap(), vec![7; elements as usize]);
        client.delete([&reference]).timeout(LONG).wait().unwrap();
        let lost = client.get(&reference).timeout(LONG).wait().unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::ObjectDeleted);
    }
}

#[test]
fn reduce_of_arrays() {
    let (_node, client) = node();
    let inputs: Vec<_> = [1.0_f32, 2.0]
        .iter()
        .map(|one| client.put(Value::array(&[*one, 10.0], &[2]).unwrap()).wait().unwrap())
        .collect();
    let sum = client.reduce(&inputs, "sum").wait().unwrap();
    let view = client.get(&sum).timeout(LONG).wait().unwrap();
    assert_eq!(view.as_slice::<f32>().unwrap(), [3.0, 20.0]);
    assert_eq!((view.dtype(), view.shape()), ("float32", &[2][..]));
    let unknown = client.reduce(&inputs, "xor").wait().unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::UnknownOp);
}
