//! Every verb, blocking, awaited by another executor, and in the background.

mod common;

use std::{collections::BTreeSet, time::Duration};

use common::{Embedded, LONG};
use hoplite::{ErrorKind, Result, Value};

/// Runs a call in each of the three ways.
macro_rules! in_each_way {
    ($call:expr) => {{
        let blocking = $call.timeout(LONG).wait();
        let awaited = pollster::block_on($call.timeout(LONG).into_future());
        let background = $call.timeout(LONG).start().wait();
        [blocking, awaited, background]
    }};
}

#[test]
fn put_and_get_bytes_of_each_size() {
    let Embedded { client, .. } = &Embedded::new();
    for size in [0, 5, 32 * 1024, 32 * 1024 + 1, 3 << 20] {
        let value: Vec<u8> = (0..size).map(|at| at as u8).collect();
        let borrowed = in_each_way!(client.put(&*value.clone().leak()));
        let owned = in_each_way!(client.put(value.clone()));
        for reference in borrowed.into_iter().chain(owned).map(Result::unwrap) {
            assert_eq!(reference.replicas(), Some(1));
            for view in in_each_way!(client.get(&reference)).map(Result::unwrap) {
                assert_eq!(view.bytes(), value);
                assert!(view.bytes().as_ptr().addr().is_multiple_of(64));
                let described = (view.dtype(), view.shape(), view.nbytes(), view.form());
                assert_eq!(described, ("bytes", &[][..], size, "plain"));
            }
            let mut out = vec![1; value.len()];
            assert_eq!(client.get_into(&reference, &mut out).wait().unwrap(), size);
            assert_eq!(out, value);
            out.fill(1);
            let call = client.get_into(&reference, &mut out).timeout(LONG);
            assert_eq!(pollster::block_on(call.into_future()).unwrap(), size);
            assert_eq!(out, value);
            let started = client.get_into(&reference, vec![1; value.len()]).start();
            assert_eq!(started.wait().unwrap(), size);
        }
    }
}

#[test]
fn arrays_keep_dtype_and_shape() {
    let Embedded { client, .. } = &Embedded::new();
    let value = || Value::array(&[1_i16, 2, 3, 4, 5, 6], &[3, 2]).unwrap();
    let reference = client.put(value()).name("array").wait().unwrap();
    let view = client.get("array").wait().unwrap();
    assert_eq!(reference.as_str(), "array");
    assert_eq!((view.dtype(), view.shape()), ("int16", &[3, 2][..]));
    assert_eq!(view.as_slice::<i16>().unwrap(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(view.as_slice::<u16>().unwrap_err().kind(), ErrorKind::UnsupportedDtype);
    for part in in_each_way!(client.get("array").part(1, None)).map(Result::unwrap) {
        assert_eq!(
            (part.shape(), part.as_slice::<i16>().unwrap()),
            (&[2, 2][..], &[3, 4, 5, 6][..])
        );
    }
    let last = client.get("array").part(-1, None).wait().unwrap();
    assert_eq!(last.as_slice::<i16>().unwrap(), [5, 6]);
    let times = Value::owned("datetime64[ns]", &[1], 7_i64.to_le_bytes()).unwrap();
    let reference = client.put(times).wait().unwrap();
    assert_eq!(client.get(&reference).wait().unwrap().dtype(), "datetime64[ns]");
}

#[test]
fn buffers_are_filled_and_sealed() {
    let Embedded { client, .. } = &Embedded::new();
    for elements in [0, 3, 100_000] {
        for buffer in in_each_way!(client.create("int32", &[elements])) {
            let mut buffer = buffer.unwrap();
            let getting = client.get(buffer.reference()).timeout(LONG).start();
            let future = buffer.reference().clone();
            assert_eq!((buffer.dtype().as_ref(), buffer.shape()), ("int32", &[elements][..]));
            let wrong = buffer.as_mut_slice::<f32>().unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::UnsupportedDtype);
            buffer.as_mut_slice::<i32>().unwrap().fill(7);
            let reference = buffer.seal().timeout(LONG).wait().unwrap();
            assert_eq!((&reference, reference.replicas()), (&future, Some(1)));
            let view = getting.wait().unwrap();
            assert_eq!(view.as_slice::<i32>().unwrap(), vec![7; elements as usize]);
        }
    }
    let buffer = client.create("bytes", &[70_000]).name("sealed").wait().unwrap();
    pollster::block_on(buffer.seal().into_future()).unwrap();
    let buffer = client.create("bytes", &[4]).name("small").wait().unwrap();
    assert_eq!(buffer.seal().start().wait().unwrap().as_str(), "small");
}

#[test]
fn dropped_buffer_ends_the_waits_for_it() {
    let Embedded { client, .. } = &Embedded::new();
    for bytes in [8, 100_000] {
        let buffer = client.create("uint8", &[bytes]).wait().unwrap();
        let getting = client.get(buffer.reference()).timeout(LONG).start();
        drop(buffer);
        let kind = getting.wait().unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::ObjectLost | ErrorKind::ObjectDeleted), "{kind:?}");
    }
}

#[test]
fn names_are_taken_once() {
    let Embedded { client, .. } = &Embedded::new();
    for (value, other) in [(vec![1; 10], vec![2; 10]), (vec![1; 100_000], vec![2; 100_000])] {
        let name = format!("name/{}", value.len());
        client.put(&value).name(&name).wait().unwrap();
        for taken in in_each_way!(client.put(other.clone()).name(&name)) {
            assert_eq!(taken.unwrap_err().kind(), ErrorKind::NameTaken);
        }
        for existing in in_each_way!(client.put(other.clone()).name(&name).exist_ok(true)) {
            assert_eq!(existing.unwrap().as_str(), name);
        }
        assert_eq!(client.get(&name).wait().unwrap().bytes(), value);
    }
}

#[test]
fn a_put_of_the_newest_version_refuses_to_go_back() {
    let Embedded { client, .. } = &Embedded::new();
    client.put(b"7").name("v/7").newest(true).wait().unwrap();
    for refused in in_each_way!(client.put(b"6".to_vec()).name("v/6").newest(true)) {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(refused.to_string().contains("v/7 exists"), "{refused}");
    }
    client.put(b"8").name("v/8").newest(true).wait().unwrap();
    let unnumbered = client.put(b"x").name("v").newest(true).wait().unwrap_err();
    assert!(unnumbered.to_string().contains("newest needs a name"), "{unnumbered}");
}

#[test]
fn old_versions_are_pruned_and_the_latest_is_found() {
    let Embedded { client, .. } = &Embedded::new();
    for version in 1..=3 {
        let name = format!("policy/{version}");
        let put = client.put(&[version]).name(name).retain(2).timeout(LONG).wait().unwrap();
        assert_eq!(put.number(), Some(version.into()));
    }
    let latest = in_each_way!(client.latest("policy/").after(1));
    assert_eq!(latest.map(|found| found.unwrap().number()), [Some(3); 3]);
    let waiting = client.latest("policy/").after(3).timeout(LONG).start();
    client.put(b"new").name("policy/4").wait().unwrap();
    assert_eq!(waiting.wait().unwrap().as_str(), "policy/4");
    let first = client.get("policy/1").timeout(LONG).wait().unwrap_err();
    assert_eq!(first.kind(), ErrorKind::ObjectDeleted);
    let late = client.latest("policy/").after(4).timeout(Duration::ZERO).wait().unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout);
}

#[test]
fn waits_for_some_of_several() {
    let Embedded { client, .. } = &Embedded::new();
    client.put(b"here").name("part/1").wait().unwrap();
    let names = ["part/0", "part/1", "part/2"];
    for ready in in_each_way!(client.wait_for(names, 1)) {
        assert_eq!(ready.unwrap(), [1]);
    }
    assert_eq!(client.wait_for(names, 3).timeout(Duration::ZERO).wait().unwrap(), [1]);
    assert_eq!(client.wait_for(names, 0).wait().unwrap(), [0_usize; 0]);
    let none: [&str; 0] = [];
    assert_eq!(client.wait_for(none, 0).wait().unwrap(), [0_usize; 0]);
    let waiting = client.wait_for(names, 2).timeout(LONG).start();
    client.put(b"too").name("part/0").wait().unwrap();
    let ready: BTreeSet<_> = waiting.wait().unwrap().into_iter().collect();
    assert_eq!(ready, BTreeSet::from([0, 1]));
}

#[test]
fn reduces_fold_the_first_inputs() {
    let Embedded { client, .. } = &Embedded::new();
    let names = ["grad/0", "grad/1", "grad/2"];
    for (name, value) in names.into_iter().zip([1.0_f32, 2.0]) {
        client.put(Value::array(&[value, 10.0], &[2]).unwrap()).name(name).wait().unwrap();
    }
    for sum in in_each_way!(client.reduce(names, "sum").count(2)).map(Result::unwrap) {
        let view = client.get(&sum).timeout(LONG).wait().unwrap();
        assert_eq!(view.as_slice::<f32>().unwrap(), [3.0, 20.0]);
        for inputs in in_each_way!(client.inputs(&sum)).map(Result::unwrap) {
            let inputs: BTreeSet<_> = inputs.iter().map(ToString::to_string).collect();
            assert_eq!(inputs, BTreeSet::from(["grad/0".to_owned(), "grad/1".to_owned()]));
        }
        for lost in in_each_way!(client.lost(&sum)) {
            assert_eq!(lost.unwrap(), []);
        }
    }
    let named = client.reduce(["grad/0"], "max").name("best").wait().unwrap();
    assert_eq!(named.as_str(), "best");
}

#[test]
fn reserved_refs_leases_and_deletions() {
    let Embedded { client, .. } = &Embedded::new();
    for reserved in in_each_way!(client.reserve()) {
        let reserved = reserved.unwrap();
        let getting = client.get(&reserved).timeout(LONG).start();
        assert_eq!(client.put(b"promised").name(&reserved).wait().unwrap(), reserved);
        assert_eq!(getting.wait().unwrap().bytes(), b"promised");
        for lease in in_each_way!(client.lease(&reserved)).map(Result::unwrap) {
            assert_eq!(lease.reference(), reserved);
            lease.release();
        }
        client.delete([&reserved]).timeout(LONG).wait().unwrap();
        let deleted = client.get(&reserved).timeout(LONG).wait().unwrap_err();
        assert_eq!(deleted.kind(), ErrorKind::ObjectDeleted);
    }
    for deleted in in_each_way!(client.delete(["nothing/1", "nothing/2"])) {
        deleted.unwrap();
    }
}

#[test]
fn a_reserved_name_belongs_to_its_client() {
    let Embedded { client, .. } = &Embedded::new();
    let name = client.reserve_name("promised/1").timeout(LONG).wait().unwrap();
    assert_eq!(name.as_str(), "promised/1");
    let getting = client.get(&name).timeout(LONG).start();
    assert_eq!(client.put(b"promised").name(&name).wait().unwrap(), name);
    assert_eq!(getting.wait().unwrap().bytes(), b"promised");
    for taken in in_each_way!(client.reserve_name(&name)) {
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::NameTaken);
    }
    let minted = client.reserve().wait().unwrap();
    let wrong = client.reserve_name(&minted).wait().unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_slot_is_filled_once() {
    let Embedded { client, .. } = &Embedded::new();
    for slots in in_each_way!(client.slots(2)).map(Result::unwrap) {
        let [filled, deleted] = &slots[..] else { panic!("{slots:?}") };
        let getting = client.get(filled).timeout(LONG).start();
        assert_eq!(client.put(b"answer").name(filled).wait().unwrap(), *filled);
        assert_eq!(getting.wait().unwrap().bytes(), b"answer");
        let again = client.put(b"again").name(filled).wait().unwrap_err();
        assert_eq!(again.kind(), ErrorKind::NameTaken);
        client.delete([deleted]).timeout(LONG).wait().unwrap();
        let late = client.put(b"late").name(deleted).wait().unwrap_err();
        assert_eq!(late.kind(), ErrorKind::ObjectDeleted);
    }
}

#[test]
fn locations_and_status() {
    let embedded = Embedded::new();
    let Embedded { client, node, .. } = &embedded;
    let reference = client.put(b"here").wait().unwrap();
    for locations in in_each_way!(client.locations(&reference)).map(Result::unwrap) {
        assert_eq!(locations.len(), 1);
        assert_eq!((&locations[0].node, locations[0].complete), (&node.id(), true));
        assert_eq!(locations[0].address, node.address());
    }
    for status in in_each_way!(client.status()) {
        assert!(status.unwrap().contains(&node.id()));
    }
}

#[test]
fn objects_end_with_their_time_to_live() {
    let Embedded { client, .. } = &Embedded::new();
    let brief = Duration::from_millis(10);
    let mut buffer = client.create("uint8", &[100_000]).ttl(brief).wait().unwrap();
    buffer.bytes_mut().fill(0);
    let ttl = [client.put(b"brief").ttl(brief).wait().unwrap(), buffer.seal().wait().unwrap()];
    for reference in ttl {
        // It is deleted within the timeout: until then each get returns it.
        let deleted = loop {
            if let Err(error) = client.get(&reference).timeout(LONG).wait() {
                break error;
            }
        };
        assert_eq!(deleted.kind(), ErrorKind::ObjectDeleted);
    }
}

#[tokio::test]
async fn calls_are_awaited_on_tokio() {
    let Embedded { client, .. } = &Embedded::new();
    let getting = tokio::spawn(client.get("later").timeout(LONG).start());
    client.put(vec![3; 2 << 20]).name("later").await.unwrap();
    assert_eq!(getting.await.unwrap().unwrap().bytes()[0], 3);
    let missing = client.get("missing").timeout(Duration::ZERO).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Timeout);
    // Blocking calls work here too, although they block the thread.
    assert_eq!(client.get("later").wait().unwrap().nbytes(), 2 << 20);
}
