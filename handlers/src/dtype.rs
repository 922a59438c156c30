//! Cache dtypes, and the bytes a row of elements takes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The element type of a cache.
///
/// Block formats store a group of elements with one shared scale, so that the bytes of an element are a fraction:
/// see [`DType::bytes_per_block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 16-bit brain float.
    Bf16,
    /// 8-bit float, 4 exponent and 3 mantissa bits.
    F8E4m3,
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8E5m2,
    /// 8-bit integer; its scales, where an op needs them, live outside the cache.
    Int8,
    /// 8-bit integer, each row behind a 32-bit scale of its own: of keys and values, one for each token and head.
    Int8PerTokenHead,
    /// 32-bit integer (positions, counters).
    Int32,
    /// 4-bit float, 16 elements share one 8-bit scale (NVFP4): 9 bytes per 16 elements.
    Nvfp4,
    /// 4-bit float, 32 elements share one 8-bit exponent (MXFP4): 17 bytes per 32 elements.
    Mxfp4,
    /// 8-bit integer, 32 elements share one 16-bit scale (GGML Q8_0): 34 bytes per 32 elements.
    Q8_0,
    /// 4-bit integer, 32 elements share one 16-bit scale (GGML Q4_0): 18 bytes per 32 elements.
    Q4_0,
    /// 8-bit float, 32 elements share one 8-bit exponent (MXFP8): 33 bytes per 32 elements.
    Mxfp8,
    /// 4-bit integer, 32 elements share a 16-bit scale and a 16-bit least value (GGML Q4_1): 20 bytes per 32 elements.
    Q4_1,
    /// 5-bit integer, 32 elements share one 16-bit scale (GGML Q5_0): 22 bytes per 32 elements.
    Q5_0,
    /// 5-bit integer, 32 elements share a 16-bit scale and a 16-bit least value (GGML Q5_1): 24 bytes per 32 elements.
    Q5_1,
    /// A place of 4 bits in a table of 16 values, 32 elements share one 16-bit scale (GGML IQ4_NL): 18 bytes per 32
    /// elements.
    Iq4Nl,
}

impl DType {
    /// All dtypes, in declaration order.
    pub const ALL: [Self; 17] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::F8E4m3,
        Self::F8E5m2,
        Self::Int8,
        Self::Int8PerTokenHead,
        Self::Int32,
        Self::Nvfp4,
        Self::Mxfp4,
        Self::Q8_0,
        Self::Q4_0,
        Self::Mxfp8,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Iq4Nl,
    ];

    /// The name used in plans and budgets.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4m3 => "f8_e4m3",
            Self::F8E5m2 => "f8_e5m2",
            Self::Int8 => "int8",
            Self::Int8PerTokenHead => "int8_per_token_head",
            Self::Int32 => "int32",
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp4 => "mxfp4",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Mxfp8 => "mxfp8",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Iq4Nl => "iq4_nl",
        }
    }

    /// The names by which it is read, its own first.
    pub fn spellings(self) -> impl Iterator<Item = &'static str> {
        let others: &[&str] = match self {
            Self::F32 => &["float32", "fp32", "float"],
            Self::F16 => &["float16", "fp16", "half"],
            Self::Bf16 => &["bfloat16"],
            Self::F8E4m3 => &["fp8", "fp8_e4m3", "float8_e4m3fn"],
            Self::F8E5m2 => &["fp8_e5m2", "float8_e5m2"],
            Self::Int8 => &["i8"],
            Self::Int32 => &["i32"],
            _ => &[],
        };
        std::iter::once(self.name()).chain(others.iter().copied())
    }

    /// The cache dtype that `stated` asks for, where `auto` is the dtype of the tensor that is cached.
    ///
    /// # Errors
    /// A name that [`DType::from_str`] does not know.
    pub fn resolve(stated: &str, tensor: Self) -> Result<Self, UnknownDType> {
        if stated == "auto" { Ok(tensor) } else { stated.parse() }
    }

    /// Elements that are stored together: 1 for plain types, the scale group for block formats.
    pub const fn elements_per_block(self) -> u64 {
        match self {
            Self::Nvfp4 => 16,
            Self::Mxfp4
            | Self::Mxfp8
            | Self::Q8_0
            | Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Iq4Nl => 32,
            Self::F32
            | Self::F16
            | Self::Bf16
            | Self::F8E4m3
            | Self::F8E5m2
            | Self::Int8
            | Self::Int8PerTokenHead
            | Self::Int32 => 1,
        }
    }

    /// Bytes of [`DType::elements_per_block`] elements, scales that they share included.
    pub const fn bytes_per_block(self) -> u64 {
        match self {
            Self::F32 | Self::Int32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F8E4m3 | Self::F8E5m2 | Self::Int8 | Self::Int8PerTokenHead => 1,
            Self::Nvfp4 => 9,
            Self::Mxfp4 => 17,
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Mxfp8 => 33,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
        }
    }

    /// Bytes of the scale that a whole row shares; 0 for most.
    const fn row_scale_bytes(self) -> u64 {
        if matches!(self, Self::Int8PerTokenHead) { 4 } else { 0 }
    }

    /// Bytes of one row of `elements`, its scales included; the last group of a row is stored whole.
    ///
    /// `None` if the count does not fit 64 bits.
    pub const fn row_bytes(self, elements: u64) -> Option<u64> {
        match elements.div_ceil(self.elements_per_block()).checked_mul(self.bytes_per_block()) {
            Some(bytes) => bytes.checked_add(self.row_scale_bytes()),
            None => None,
        }
    }

    /// Tells whether a state that is read and written at every token can be in it: no scale follows what changes in
    /// place, and 8 bits without one keep no sum of many small inputs.
    pub const fn holds_states(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// A dtype name that is none of ours nor a known spelling of one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "unknown dtype `{0}`; known are f32, f16, bf16, f8_e4m3 (fp8), f8_e5m2, int8, int8_per_token_head, int32, nvfp4, mxfp4, mxfp8, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl"
)]
pub struct UnknownDType(pub String);

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = UnknownDType;

    /// Accepts our names and the spellings of PyTorch, safetensors and the engines (`torch.bfloat16`, `BF16`, `fp8`).
    fn from_str(text: &str) -> Result<Self, UnknownDType> {
        let lower = text.strip_prefix("torch.").unwrap_or(text).to_ascii_lowercase();
        let mut all = Self::ALL.into_iter();
        all.find(|dtype| dtype.spellings().any(|known| known == lower)).ok_or_else(|| UnknownDType(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(DType::F32, 64, 256)]
    #[case(DType::Bf16, 64, 128)]
    #[case(DType::F8E4m3, 64, 64)]
    #[case(DType::Int8PerTokenHead, 64, 68)]
    #[case(DType::Int8PerTokenHead, 1, 5)]
    #[case(DType::Nvfp4, 128, 72)]
    #[case(DType::Nvfp4, 17, 18)]
    #[case(DType::Mxfp4, 64, 34)]
    #[case(DType::Q8_0, 64, 68)]
    #[case(DType::Q4_0, 64, 36)]
    #[case(DType::Mxfp8, 256, 264)]
    #[case(DType::Q4_1, 64, 40)]
    #[case(DType::Q5_0, 64, 44)]
    #[case(DType::Q5_1, 128, 96)]
    #[case(DType::Iq4Nl, 96, 54)]
    fn a_row_takes_whole_blocks(#[case] dtype: DType, #[case] elements: u64, #[case] bytes: u64) {
        assert_eq!(dtype.row_bytes(elements), Some(bytes));
    }

    #[test]
    fn names_parse_back_and_unknown_ones_are_named() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(serde_json::to_value(dtype).unwrap(), dtype.name());
        }
        assert_eq!("torch.bfloat16".parse(), Ok(DType::Bf16));
        assert_eq!("fp7".parse::<DType>(), Err(UnknownDType("fp7".into())));
    }

    #[test]
    fn a_row_too_long_for_64_bits_is_none() {
        assert_eq!(DType::F32.row_bytes(u64::MAX), None);
    }
}
