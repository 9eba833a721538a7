//! Static texts of the names that views carry, so that a get allocates none.

use std::ffi::CStr;

/// The text of the dtype `bytes`.
pub(crate) const BYTES: &str = "bytes";

/// Finds the static text of a name.
macro_rules! known {
    ($name:expr, $($known:literal)*) => {
        match $name {
            $($known => Some(
                const { match CStr::from_bytes_with_nul(concat!($known, "\0").as_bytes()) {
                    Ok(text) => text,
                    Err(_) => c"",
                } },
            ),)*
            _ => None,
        }
    };
}

/// The name of a dtype; None for one with a unit, such as `datetime64[ns]`.
pub(crate) fn dtype(name: &str) -> Option<&'static CStr> {
    known!(name,
        "float32" "float64" "float16" "bfloat16" "bytes"
        "int8" "int16" "int32" "int64" "uint8" "uint16" "uint32" "uint64"
        "bool" "complex64" "complex128"
        "float8_e3m4" "float8_e4m3" "float8_e4m3b11fnuz" "float8_e4m3fn" "float8_e4m3fnuz"
        "float8_e5m2" "float8_e5m2fnuz" "float8_e8m0fnu"
        "float6_e2m3fn" "float6_e3m2fn" "float4_e2m1fn" "float4_e2m1fn_x2"
        "int1" "int2" "int4" "uint1" "uint2" "uint4"
    )
}

/// The name of a form.
pub(crate) fn form(name: &str) -> &'static CStr {
    known!(name, "plain" "torch" "arrow" "pickle").unwrap_or(c"unknown")
}

#[cfg(test)]
mod tests {
    use hoplite_proto::meta::{Dtype, Form};

    use super::*;

    #[test]
    fn every_name_without_a_unit_is_static() {
        for dtype in Dtype::all().filter(|dtype| dtype.unit().is_none()) {
            let known = super::dtype(dtype.name()).map(CStr::to_bytes);
            assert_eq!(known, Some(dtype.name().as_bytes()), "{}", dtype.name());
        }
        assert_eq!(super::dtype("datetime64[ns]"), None);
        for known in Form::ALL {
            assert_eq!(form(known.name()).to_bytes(), known.name().as_bytes());
        }
    }
}
