//! The order in which waiting objects get capacity.

use super::*;
use crate::table::COPY_OVERHEAD_BYTES;

impl Cluster {
    fn create_of(&mut self, size: u64) -> RequestId {
        self.ask(1, Request::Create { id: None, meta: Meta::bytes(size), ttl_ns: None })
    }

    fn created(&self, request: RequestId) -> Option<(ObjectId, Instance)> {
        match self.replies.get(&request)? {
            Ok(Reply::Created { id, instance }) => Some((id.clone(), *instance)),
            other => panic!("{other:?}"),
        }
    }
}

/// A simple model of the order: from the front, as long as any object fits.
struct Plain {
    free: u64,
    waiting: Vec<(RequestId, u64)>,
}

impl Plain {
    fn grant(&mut self) -> Vec<RequestId> {
        let mut granted = Vec::new();
        while let Some(at) = self.waiting.iter().position(|(_, cost)| *cost <= self.free) {
            let (request, cost) = self.waiting.remove(at);
            self.free -= cost;
            granted.push(request);
        }
        granted
    }
}

#[test]
fn the_first_request_that_fits_goes_first() {
    let capacity = 4 << 20;
    let mut cluster = Cluster::with_capacity(1, capacity);
    let mut plain = Plain { free: capacity, waiting: Vec::new() };
    let mut state = 7_u64;
    let mut dice = |sides: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % sides
    };
    let (mut there, mut most) = (Vec::new(), 0);
    for _ in 0..2000 {
        // Few sizes, so that several objects of the same size wait.
        let size = (1 + dice(8)) * 100_000;
        match dice(5) {
            0..3 if plain.waiting.len() < 64 => {
                let request = cluster.create_of(size);
                plain.waiting.push((request, size + COPY_OVERHEAD_BYTES));
            }
            3 if !plain.waiting.is_empty() => {
                let at = dice(plain.waiting.len() as u64) as usize;
                let (request, _) = plain.waiting.remove(at);
                cluster.tell(1, Event::Cancelled { client: CLIENT, request });
                assert!(matches!(cluster.reply(request), Err(Error::StoreFull { .. })));
            }
            _ if !there.is_empty() => {
                let at = dice(there.len() as u64) as usize;
                let (id, cost): (ObjectId, u64) = there.remove(at);
                plain.free += cost;
                cluster.ask(1, Request::Delete { ids: vec![id] });
            }
            _ => {}
        }
        most = most.max(plain.waiting.len());
        let costs: BTreeMap<RequestId, u64> = plain.waiting.iter().copied().collect();
        for request in plain.grant() {
            let (id, instance) = cluster.created(request).expect("there is room for it");
            cluster.ask(1, Request::Seal { instance });
            there.push((id, costs[&request]));
        }
        assert!(plain.waiting.iter().all(|(request, _)| cluster.created(*request).is_none()));
    }
    assert!(most > 20, "at most {most} waited at once");
}

/// Objects get capacity one after another without recursion, which would overflow the stack.
#[test]
fn a_deletion_may_give_room_to_very_many() {
    const MANY: u64 = 20_000;
    let size = MANY * (3 + COPY_OVERHEAD_BYTES);
    let mut cluster = Cluster::with_capacity(1, size + COPY_OVERHEAD_BYTES);
    let request = cluster.create_of(size);
    let (id, instance) = cluster.created(request).unwrap();
    cluster.ask(1, Request::Seal { instance });
    let put =
        Request::Put { id: None, meta: Meta::bytes(3), bytes: vec![1, 2, 3].into(), ttl_ns: None };
    let waiting: Vec<RequestId> = (0..MANY).map(|_| cluster.ask(1, put.clone())).collect();
    assert!(waiting.iter().all(|request| !cluster.replies.contains_key(request)));
    cluster.ask(1, Request::Delete { ids: vec![id] });
    assert!(waiting.iter().all(|request| cluster.reply(*request).is_ok()));
}

/// A waiting client causes the return of replicas if they suffice for its object. A client whose
/// object would still not fit causes none.
#[test]
fn no_more_is_given_back_than_the_room_that_clients_wait_for() {
    let cost = LARGE + COPY_OVERHEAD_BYTES;
    let mut cluster = Cluster::with_capacity(3, 8 * cost);
    let ids: Vec<ObjectId> = (0..8).map(|_| cluster.put_large(1, None)).collect();
    for id in &ids {
        let request = cluster.ask(1, Request::Replicate { id: id.clone(), replicas: 2 });
        assert_eq!(cluster.reply(request), &Ok(Reply::Replicated { replicas: 2 }));
    }
    let kept = |cluster: &Cluster| ids.iter().filter(|id| cluster.has(2, id)).count();
    assert_eq!(kept(&cluster), 4);
    // Four places are free, and one replica is being read: eight places can't be freed, six can.
    let reading = cluster.get(2, ids.iter().find(|id| cluster.has(2, id)).unwrap());
    let read = got(cluster.reply(reading));
    let ask = |places: u64| Request::Create {
        id: None,
        meta: Meta::bytes(places * cost - COPY_OVERHEAD_BYTES),
        ttl_ns: None,
    };
    let vain = cluster.ask(2, ask(8));
    assert_eq!(kept(&cluster), 4, "seven would not be enough");
    let six = cluster.ask(2, ask(6));
    assert!(cluster.reply(six).is_ok(), "two have moved");
    assert_eq!(kept(&cluster), 2);
    assert!(!cluster.replies.contains_key(&vain));
    cluster.ask(2, Request::Release { instance: read });
}
