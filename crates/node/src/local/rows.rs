//! Formats lists of objects as JSON.

use hoplite_proto::{
    lifetime::Lifetime,
    message::Listed,
    meta::{Kind, Meta},
    request::ObjectRow,
};

/// Formats the copies of a node as a JSON list.
pub fn describe_objects(rows: &[ObjectRow]) -> String {
    let row = |row: &ObjectRow| {
        let (dtype, shape) = dtype_and_shape(&row.meta);
        serde_json::json!({
            "ref": row.id.to_string(),
            "instance": row.instance.to_string(),
            "what": row.meta.to_string(),
            "dtype": dtype,
            "shape": shape,
            "form": row.meta.form.name(),
            "bytes": row.meta.size,
            "state": row.state,
            "pinned": row.pinned,
            "readers": row.readers,
            "job": job(row.lifetime.as_deref()),
            "ttl": seconds_left(row.lifetime.as_deref()),
        })
    };
    serde_json::Value::from_iter(rows.iter().map(row)).to_string()
}

/// Formats objects of the cluster as a JSON list.
pub fn describe_listed(rows: &[Listed]) -> String {
    let row = |row: &Listed| {
        let (dtype, shape) = dtype_and_shape(&row.meta);
        serde_json::json!({
            "ref": row.id.to_string(),
            "what": row.meta.to_string(),
            "dtype": dtype,
            "shape": shape,
            "form": row.meta.form.name(),
            "bytes": row.meta.size,
            "copies": row.complete,
            "partial": row.partial,
            "age": row.age_ns as f64 / 1e9,
            "job": job(row.lifetime.as_deref()),
            "ttl": seconds_left(row.lifetime.as_deref()),
        })
    };
    serde_json::Value::from_iter(rows.iter().map(row)).to_string()
}

fn job(lifetime: Option<&Lifetime>) -> Option<&str> {
    lifetime?.job.as_ref().map(|job| job.as_str())
}

fn seconds_left(lifetime: Option<&Lifetime>) -> Option<f64> {
    lifetime?.remaining_ns.map(|left| left as f64 / 1e9)
}

/// The dtype and shape of an array; None for bytes.
fn dtype_and_shape(meta: &Meta) -> (Option<String>, Option<&[u64]>) {
    match &meta.kind {
        Kind::Bytes => (None, None),
        Kind::Array { dtype, shape } => (Some(dtype.to_string()), Some(shape)),
    }
}
