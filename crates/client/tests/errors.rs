//! The kind of each error.

mod common;

use std::time::Duration;

use common::{Embedded, LONG};
use hoplite::{ClientOptions, ErrorKind, Node, NodeOptions, Result, Value, connect, init};

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn arguments_that_are_not_valid() {
    let Embedded { client, .. } = &Embedded::new();
    let argument = ErrorKind::InvalidArgument;
    assert_eq!(kind(client.get("").wait()), argument);
    assert_eq!(kind(client.get("@zz").start().wait()), argument);
    assert_eq!(kind(client.put(b"x").name("a\nb").wait()), argument);
    assert_eq!(kind(client.put(b"x").replicas(0).wait()), argument);
    assert_eq!(kind(client.put(b"x").ttl(Duration::ZERO).wait()), argument);
    assert_eq!(kind(client.put(b"x").retain(1).wait()), argument);
    assert_eq!(kind(client.put(b"x").name("a/1").retain(0).wait()), argument);
    assert_eq!(kind(client.latest("policy").wait()), argument);
    assert_eq!(kind(client.wait_for(["a", "a"], 1).wait()), argument);
    assert_eq!(kind(client.wait_for(["a"], 2).wait()), argument);
    let none: [&str; 0] = [];
    assert_eq!(kind(client.reduce(none, "sum").wait()), argument);
    assert_eq!(kind(client.reduce(["a", "a"], "sum").wait()), argument);
    assert_eq!(kind(client.reduce(["a"], "sum").count(2).wait()), argument);
    assert_eq!(kind(client.reduce(["a"], "sum").count(0).wait()), argument);
    assert_eq!(kind(client.create("bytes", &[1, 2]).wait()), argument);
    assert_eq!(kind(client.create("float64", &[u64::MAX, 2]).wait()), argument);
    assert_eq!(kind(client.create("int8", &[1; 65]).wait()), argument);
    assert_eq!(kind(Value::array(&[1_u8, 2], &[3])), argument);
    assert_eq!(
        kind(client.inputs(client.put(b"x").wait().unwrap()).timeout(LONG).wait()),
        argument
    );
}

#[test]
fn operations_and_dtypes() {
    let Embedded { client, .. } = &Embedded::new();
    assert_eq!(kind(client.reduce(["a"], "xor").wait()), ErrorKind::UnknownOp);
    assert_eq!(kind(client.create("float128", &[1]).wait()), ErrorKind::UnsupportedDtype);
    assert_eq!(kind(Value::new("object", &[1], b"x")), ErrorKind::UnsupportedDtype);
    // The shape of bytes is their number, and another one is not dropped.
    assert_eq!(kind(Value::new("bytes", &[2, 2], b"four")), ErrorKind::InvalidArgument);
    assert_eq!(kind(Value::new("bytes", &[5], b"four")), ErrorKind::InvalidArgument);
    assert!(
        Value::new("bytes", &[4], b"four").is_ok() && Value::new("bytes", &[], b"four").is_ok()
    );
    let bytes = client.put(b"plain").wait().unwrap();
    let sum = client.reduce([&bytes], "sum").wait().unwrap();
    assert_eq!(kind(client.get(&sum).timeout(LONG).wait()), ErrorKind::UnsupportedDtype);
    let two = [[1_u8; 2].as_slice(), &[1; 3]].map(|value| {
        client.put(Value::array(value, &[value.len() as u64]).unwrap()).wait().unwrap()
    });
    let sum = client.reduce(&two, "sum").wait().unwrap();
    assert_eq!(kind(client.get(&sum).timeout(LONG).wait()), ErrorKind::ShapeMismatch);
}

#[test]
fn memory_of_another_size_dtype_or_shape() {
    let Embedded { client, .. } = &Embedded::new();
    let value = Value::array(&[1.0_f32, 2.0], &[2, 1]).unwrap();
    let reference = client.put(value).wait().unwrap();
    let mut out = [0; 8];
    assert_eq!(kind(client.get_into(&reference, &mut out[..7]).wait()), ErrorKind::ShapeMismatch);
    for (dtype, shape) in [("float32", &[2][..]), ("int32", &[2, 1]), ("bytes", &[8])] {
        let call = client.get_into(&reference, &mut out).expect(dtype, shape);
        assert_eq!(kind(call.wait()), ErrorKind::ShapeMismatch);
    }
    assert_eq!(client.get_into(&reference, &mut out).expect("float32", &[2, 1]).wait().unwrap(), 8);
    assert_eq!(out[..4], 1.0_f32.to_le_bytes());
}

#[test]
fn full_store() {
    let Embedded { client, .. } =
        &Embedded::with(|options| NodeOptions { capacity: Some(1 << 20), ..options });
    let too_large = client.put(vec![0; 2 << 20]).timeout(Duration::ZERO);
    assert_eq!(kind(too_large.wait()), ErrorKind::StoreFull);
    client.put(vec![0; 800 << 10]).wait().unwrap();
    for start in [false, true] {
        let call = client.put(vec![0; 800 << 10]).timeout(Duration::from_millis(10));
        let result = if start { call.start().wait() } else { call.wait() };
        assert_eq!(kind(result), ErrorKind::StoreFull);
    }
}

#[test]
fn timeouts_of_zero_do_not_wait() {
    let Embedded { client, .. } = &Embedded::new();
    let zero = Duration::ZERO;
    assert_eq!(kind(client.get("missing").timeout(zero).wait()), ErrorKind::Timeout);
    assert_eq!(kind(client.get("missing").timeout(zero).start().wait()), ErrorKind::Timeout);
    let awaited = pollster::block_on(client.get("missing").timeout(zero).into_future());
    assert_eq!(kind(awaited), ErrorKind::Timeout);
    let mut out = [0; 4];
    assert_eq!(kind(client.get_into("missing", &mut out).timeout(zero).wait()), ErrorKind::Timeout);
    let reference = client.put(b"here").timeout(zero).wait().unwrap();
    assert_eq!(client.get(&reference).timeout(zero).wait().unwrap().bytes(), b"here");
}

#[test]
fn closed_clients_and_nodes() {
    let embedded = Embedded::new();
    let other = embedded.node.client(ClientOptions::default()).unwrap();
    let waiting = other.get("missing").start();
    other.close();
    assert_eq!(kind(waiting.wait()), ErrorKind::ClientClosed);
    let reference = embedded.client.put(b"here").wait().unwrap();
    assert_eq!(kind(other.get(&reference).wait()), ErrorKind::ClientClosed);
    assert!(other.is_closed() && !embedded.client.is_closed());
    let view = embedded.client.get(&reference).wait().unwrap();
    let waiting = embedded.client.get("missing").start();
    embedded.node.close(Some(LONG));
    assert_eq!(kind(waiting.wait()), ErrorKind::NodeDown);
    assert_eq!(kind(embedded.client.get(&reference).wait()), ErrorKind::NodeDown);
    assert_eq!(kind(embedded.node.client(ClientOptions::default())), ErrorKind::NodeDown);
    assert_eq!(view.bytes(), b"here");
    assert!(embedded.node.is_closed() && embedded.node.failure().is_none());
}

#[test]
fn addresses() {
    let embedded = Embedded::new();
    let options = ClientOptions::default;
    assert_eq!(kind(connect("host:7420", options(), None)), ErrorKind::InvalidArgument);
    let missing = embedded.folder.path().join("missing.sock");
    let missing = missing.to_str().unwrap();
    assert_eq!(kind(connect(missing, options(), Some(Duration::ZERO))), ErrorKind::ConnectError);
    assert_eq!(kind(init(Some(""), options(), None)), ErrorKind::InvalidArgument);
    let long = format!("/{}", "x".repeat(200));
    assert_eq!(kind(connect(&long, options(), None)), ErrorKind::InvalidArgument);
    let taken =
        NodeOptions { socket: embedded.node.socket().map(Into::into), ..NodeOptions::default() };
    let error = Node::start(taken).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddressInUse);
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
}

#[test]
fn settings_that_are_not_valid() {
    let embedded = Embedded::new();
    let start = |change: fn(NodeOptions) -> NodeOptions| {
        let socket = Some(embedded.folder.path().join("other.sock"));
        kind(Node::start(change(NodeOptions { socket, ..NodeOptions::default() })))
    };
    let argument = ErrorKind::InvalidArgument;
    assert_eq!(start(|it| NodeOptions { capacity: Some(5), ..it }), argument);
    assert_eq!(start(|it| NodeOptions { spill_limit: Some(5), ..it }), argument);
    assert_eq!(start(|it| NodeOptions { listen: Some("0.0.0.0:0".into()), ..it }), argument);
    assert_eq!(start(|it| NodeOptions { token: Some("guess".into()), ..it }), argument);
    assert_eq!(start(|it| NodeOptions { require_capability: Some(true), ..it }), argument);
    assert_eq!(start(|it| NodeOptions { certificate: Some("c".into()), ..it }), argument);
    let nobody = Some(vec!["127.0.0.1:1".to_owned()]);
    let lonely = NodeOptions {
        socket: Some(embedded.folder.path().join("other.sock")),
        join: nobody,
        no_auth: Some(true),
        ..NodeOptions::default()
    };
    assert_eq!(kind(Node::start(lonely)), ErrorKind::JoinError);
}
