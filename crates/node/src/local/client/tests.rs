//! Tests of the client API, in the process of a node and attached to one.

use hoplite_proto::{error::Error as CallError, limits::INLINE_BYTES_MAX, meta::Meta};

use super::*;
use crate::{
    error::Error,
    local::{
        put::Value,
        tests::hostile::{LEN, SOON, eventually, name, node},
    },
};

/// Runs a test with each kind of client, each on its own node.
fn with_each(test: impl Fn(&Client)) {
    let node = node();
    test(&node.client());
    node.close(SOON);
    let node = self::node();
    test(&Client::attach(node.socket().unwrap(), SOON).unwrap());
    node.close(SOON);
}

fn bytes(len: u64) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn put_object_can_be_read_until_deleted_and_its_view_stays() {
    with_each(|client| {
        for len in [0, 10, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 1 << 20] {
            let id = name(&format!("some/{len}"));
            assert_eq!(client.put(Some(id.clone()), Value::bytes(&bytes(len)), SOON).unwrap(), id);
            let again = client.put(Some(id.clone()), Value::bytes(&bytes(len)), SOON);
            assert!(matches!(again, Err(Error::Call(CallError::NameTaken { .. }))), "{again:?}");
            let view = client.get(&id, SOON).unwrap();
            assert_eq!((view.id(), view.meta().size), (&id, len));
            client.start_delete(vec![id.clone()], SOON).join().unwrap();
            assert!(view.as_bytes() == bytes(len));
            assert!(client.get(&id, Some(Duration::ZERO)).is_err());
        }
    });
}

#[test]
fn length_of_value_must_match_metadata() {
    assert!(Value::with_meta(&[1, 2, 3], Meta::bytes(3)).is_ok());
    let wrong = Value::with_meta(&[1, 2, 3], Meta::bytes(4)).unwrap_err();
    assert!(matches!(wrong, Error::Call(CallError::InvalidArgument(_))), "{wrong}");
}

#[test]
fn incomplete_or_unsealed_space_creates_no_object() {
    with_each(|client| {
        let create = |text: &str| {
            client.start_create(Some(name(text)), Meta::bytes(LEN), None, SOON).join().unwrap()
        };
        let writer = create("half/1");
        let error = writer.seal(SOON).err().unwrap().to_string();
        assert!(error.contains("before all bytes were written"), "{error}");
        drop(create("half/2"));
        for text in ["half/1", "half/2"] {
            // The name is free again.
            client.put(Some(name(text)), Value::bytes(&bytes(LEN)), SOON).unwrap();
            assert!(client.get(&name(text), SOON).unwrap().as_bytes() == bytes(LEN));
        }
        let writer = create("whole/1");
        writer.write_parts(&[&bytes(LEN)[..10], &bytes(LEN)[10..]]).unwrap();
        assert!(writer.write_all(&bytes(LEN)).is_err(), "it was written before");
        writer.seal(SOON).unwrap().join().unwrap();
        assert!(client.get(&name("whole/1"), SOON).unwrap().as_bytes() == bytes(LEN));
    });
}

#[test]
fn closing_a_client_ends_its_waits_and_reservations() {
    with_each(|client| {
        let id = client.put(None, Value::bytes(&bytes(LEN)), SOON).unwrap();
        let view = client.get(&id, SOON).unwrap();
        let waiting = client.start_get(&name("never/1"), None);
        client.close();
        assert!(matches!(waiting.join(), Err(Error::Closed)));
        let late = client.start_get(&name("never/2"), None).join();
        assert!(matches!(late, Err(Error::Closed)), "{late:?}");
        assert!(view.as_bytes() == bytes(LEN));
    });
    let node = node();
    let (one, other) = (node.client(), Client::attach(node.socket().unwrap(), SOON).unwrap());
    let promised = one.start_reserve(None, None).join().unwrap();
    let waiting = other.start_get(&promised, SOON);
    one.close();
    let lost = waiting.join();
    assert!(matches!(lost, Err(Error::Call(CallError::ObjectLost { .. }))), "{lost:?}");
    node.close(SOON);
}

#[test]
fn dropping_a_request_undoes_it() {
    with_each(|client| {
        drop(client.start_get(&name("never/1"), None));
        drop(client.start_put_small(None, &Value::bytes(b"unseen"), None, SOON));
        // This request is handled after those.
        eventually(|| client.start_objects("", None, SOON).join().unwrap().0.is_empty());
        let status: serde_json::Value =
            serde_json::from_str(&client.start_describe(None).join().unwrap()).unwrap();
        assert_eq!(status["waiting"], 0);
    });
}
