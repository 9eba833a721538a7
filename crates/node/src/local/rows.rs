//! Lists of objects as JSON, for programs.

use hoplite_proto::{
    ask::ObjectRow,
    message::Listed,
    meta::{Kind, Meta},
};

/// Copies of a node as a JSON list, for programs.
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
            "pinned": row.origin,
            "readers": row.pins,
        })
    };
    serde_json::Value::from_iter(rows.iter().map(row)).to_string()
}

/// Objects of the cluster as a JSON list, for programs.
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
        })
    };
    serde_json::Value::from_iter(rows.iter().map(row)).to_string()
}

/// None of bytes.
fn dtype_and_shape(meta: &Meta) -> (Option<String>, Option<&[u64]>) {
    match &meta.kind {
        Kind::Bytes => (None, None),
        Kind::Array { dtype, shape } => (Some(dtype.to_string()), Some(shape)),
    }
}
