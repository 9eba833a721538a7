//! The status of a node and lists of objects, as JSON. `python/hoplite/node_status.py` and
//! `python/hoplite/listing.py` define their Python types.

use hoplite_proto::{
    id::{NodeId, ObjectId},
    lifetime::Lifetime,
    members::Member,
    message::Listed,
    meta::{Kind, Meta},
    place::Group,
    request::{ObjectRow, Status},
    time::Instant,
};
use hoplite_shm::ArenaStats;
use serde_json::{Value, json};

use crate::network::{certificates::Trust, handshake::address_of, shared::Network};

/// Builds the full status of a node.
pub(crate) fn description(status: &Status, network: &Network, arena: ArenaStats) -> Value {
    let now = network.events.now();
    let seconds = |since: Instant| now.since(since) as f64 / 1e9;
    let suspected = |node: NodeId| {
        let suspicion = status.suspicions.iter().find(|(suspect, _)| *suspect == node);
        suspicion.map(|(_, it)| json!({"by": it.by.to_string(), "seconds": seconds(it.since)}))
    };
    let via = |node| network.peers.via(node).map(|helper| helper.to_string());
    let corrupt = |node: NodeId| {
        let sent = status.corrupt.iter().find(|(sender, _)| *sender == node);
        sent.map_or(0, |(_, blocks)| *blocks)
    };
    let members = status.members.iter().map(|member| {
        let path = network.peers.path(member.id);
        let more = json!({
            "suspected": suspected(member.id),
            "blocks_corrupt": corrupt(member.id),
            "via": via(member.id),
            "rtt_us": path.and_then(|path| path.round_trip_us),
            "bytes_per_second": path.map(|path| path.bytes_per_second),
        });
        with(described(member), more)
    });
    let lost = status.failed.iter().map(|lost| {
        let more = json!({"seconds": seconds(lost.since), "reason": lost.reason});
        with(described(&lost.member), more)
    });
    let memory = json!({
        "mapped": arena.mapped_bytes,
        "warm": arena.warm_bytes,
        "extents": arena.extents,
    });
    let link = network.link.link();
    let more = json!({
        "cluster": network.identity.cluster,
        "cluster_id": network.identity.own_cluster.id().to_string(),
        "admission": network.identity.admission,
        "revocations": network.identity.key.trust().and_then(|trust| revocations(trust)),
        "barred": network.own_revocation.reason(),
        "limits": network.limited.describe(),
        "members": members.collect::<Vec<_>>(),
        "lost": lost.collect::<Vec<_>>(),
        "store": with(json!(status.store), memory),
        "link": {
            "latency_ns": link.latency_ns,
            "bytes_per_second": link.bytes_per_second,
            "connections": network.link.proved().connections,
        },
        "survey": network.survey.state(),
        "counters": network.counters.values(),
    });
    with(with(described(&status.me), json!(status.counts)), more)
}

/// The revocation list: its file, the number of renewals, and why its present contents are not in
/// force.
fn revocations(trust: &Trust) -> Option<Value> {
    let (file, problem) = trust.list()?;
    let file = file.display().to_string();
    Some(json!({"file": file, "renewed": trust.list_number(), "problem": problem}))
}

/// The fields of any node. A node that does not listen has no address.
fn described(member: &Member) -> Value {
    let place = member.place;
    json!({
        "id": member.id.to_string(),
        "address": address_of(member).map(|address| address.to_string()),
        "rack": place.map(|place| place.rack()),
        "place": place.map(|place| place.groups().map(|group| group.label).collect::<Vec<_>>()),
        "carries": place.map(|place| {
            let known = |group: Group| (group.carries > 0).then_some(group.carries);
            place.groups().map(known).collect::<Vec<_>>()
        }),
    })
}

/// Merges two JSON objects.
fn with(mut one: Value, other: Value) -> Value {
    if let (Value::Object(all), Value::Object(more)) = (&mut one, other) {
        all.extend(more);
    }
    one
}

/// Formats the copies of a node as a JSON list.
pub fn describe_objects(rows: &[ObjectRow]) -> String {
    let row = |row: &ObjectRow| {
        let more = json!({
            "instance": row.instance.to_string(),
            "state": row.state,
            "pinned": row.pinned,
            "readers": row.readers,
        });
        with(object(&row.id, &row.meta, row.lifetime.as_deref()), more)
    };
    Value::from_iter(rows.iter().map(row)).to_string()
}

/// Formats objects of the cluster as a JSON list.
pub fn describe_listed(rows: &[Listed]) -> String {
    let row = |row: &Listed| {
        let more = json!({
            "copies": row.complete,
            "partial": row.partial,
            "age": row.age_ns as f64 / 1e9,
        });
        with(object(&row.id, &row.meta, row.lifetime.as_deref()), more)
    };
    Value::from_iter(rows.iter().map(row)).to_string()
}

/// The fields of any object. Bytes have no dtype and no shape.
fn object(id: &ObjectId, meta: &Meta, lifetime: Option<&Lifetime>) -> Value {
    let (dtype, shape) = match &meta.kind {
        Kind::Bytes => (None, None),
        Kind::Array { dtype, shape } => (Some(dtype.to_string()), Some(shape)),
    };
    let job = lifetime.and_then(|lifetime| lifetime.job.as_ref());
    let left_ns = lifetime.and_then(|lifetime| lifetime.remaining_ns);
    json!({
        "ref": id.to_string(),
        "what": meta.to_string(),
        "dtype": dtype,
        "shape": shape,
        "form": meta.form.name(),
        "bytes": meta.size,
        "job": job.map(|job| job.as_str()),
        "ttl": left_ns.map(|left| left as f64 / 1e9),
    })
}
