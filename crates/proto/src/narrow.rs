//! Element types of at most eight bits that no reduce can fold: float8, float6, float4 and narrow
//! integers.
//!
//! Each element occupies one byte, as in the memory of NumPy (`ml_dtypes`) and of torch. Does not
//! know what the bits mean.

use serde::{Deserialize, Serialize};

/// A narrow element type. Messages contain the index of a variant: add new ones at the end.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
#[allow(missing_docs)]
pub enum Narrow {
    Float8E3m4,
    Float8E4m3,
    Float8E4m3b11fnuz,
    Float8E4m3fn,
    Float8E4m3fnuz,
    Float8E5m2,
    Float8E5m2fnuz,
    /// A power of two: the shared exponent of a block of narrower numbers.
    Float8E8m0fnu,
    Float6E2m3fn,
    Float6E3m2fn,
    Float4E2m1fn,
    /// Two float4 in one byte. Only torch has this type; its shapes count bytes.
    Float4E2m1fnX2,
    Int1,
    Int2,
    Int4,
    Uint1,
    Uint2,
    Uint4,
}

impl Narrow {
    /// Every narrow type, in the order of the documentation.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The name in `ml_dtypes` and torch, such as `float8_e4m3fn`.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_ml_dtypes_and_torch() {
        for (narrow, name) in [
            (Narrow::Float8E3m4, "float8_e3m4"),
            (Narrow::Float8E4m3b11fnuz, "float8_e4m3b11fnuz"),
            (Narrow::Float8E8m0fnu, "float8_e8m0fnu"),
            (Narrow::Float6E2m3fn, "float6_e2m3fn"),
            (Narrow::Float4E2m1fnX2, "float4_e2m1fn_x2"),
            (Narrow::Int4, "int4"),
            (Narrow::Uint1, "uint1"),
        ] {
            assert_eq!(narrow.name(), name);
        }
    }
}
