//! The header of one safetensors file: 8 bytes of length, then JSON.

use std::fmt;

use cacheplan_files::{Limit, Source, SourceError};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::frontend::FrontendError;

/// The header of one file. Its tensors lie behind it without gaps, and each has the bytes that its shape takes.
pub(super) struct Header {
    pub(super) file: String,
    /// Bytes of the header itself.
    pub(super) bytes: u64,
    pub(super) tensors: Vec<TensorHeader>,
    /// Bytes of all tensors.
    pub(super) data: u64,
    /// Bytes that the file has behind its header.
    present: u64,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorHeader {
    /// Its name, `model.layers.0.self_attn.k_proj.weight`.
    pub(super) name: String,
    /// Its shape, as stored.
    pub(super) shape: Vec<u64>,
    /// Whether each element is stored by itself, so that the shape is that of the weight; packed formats halve an axis.
    pub(super) plain: bool,
    /// Where it lies behind the header.
    begin: u64,
    end: u64,
}

impl Header {
    /// Reads the header of a file; its data need not be there.
    pub(super) fn read(source: &Source) -> Result<Self, FrontendError> {
        let file = || source.name().to_owned();
        let bad = |key: &str, found: String, expected: String| FrontendError::BadValue {
            file: file(),
            key: key.to_owned(),
            found,
            expected,
        };
        let truncated = |needed: u64| FrontendError::Truncated { file: file(), needed, found: source.len() };
        if source.len() < 8 {
            return Err(truncated(8));
        }
        let mut length = [0; 8];
        source.read_exact_at(&mut length, 0)?;
        let length = u64::from_le_bytes(length);
        let most = Limit::SAFETENSORS.bytes;
        if length > most {
            let expected = format!("at most {most} bytes are read; is this a safetensors file?");
            return Err(bad("header length", length.to_string(), expected));
        }
        let bytes = 8 + length;
        let present = source.len().checked_sub(bytes).ok_or_else(|| truncated(bytes))?;
        let mut text = vec![0; length as usize];
        source.read_exact_at(&mut text, 8)?;
        let Entries(mut tensors) =
            Limit::SAFETENSORS.parse_json(&text).map_err(|error| SourceError::Json { name: file(), source: error })?;
        drop(text);

        tensors.sort_by_key(|tensor| (tensor.begin, tensor.end));
        let mut data = 0;
        for tensor in &tensors {
            if tensor.begin != data {
                let expected = "the byte behind the tensor before it was expected".to_owned();
                return Err(bad(&tensor.name, format!("at byte {} behind the header", tensor.begin), expected));
            }
            data = tensor.end;
        }
        if present > data {
            let expected = format!("{data} are those of its tensors");
            return Err(bad("the file", format!("{present} bytes long behind its header"), expected));
        }
        Ok(Self { file: file(), bytes, tensors, data, present })
    }

    /// Whether the file has all the data that its header speaks of.
    pub(super) fn is_whole(&self) -> bool {
        self.present == self.data
    }
}

impl TensorHeader {
    /// Bytes of its data.
    pub(super) const fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Entry {
    /// Bytes that its shape takes; `None` where they cannot be counted.
    fn shape_bytes(&self) -> Option<u64> {
        let bits = bits(&self.dtype)?;
        let count = self.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size))?;
        let bits = count.checked_mul(bits)?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

/// Bits of an element.
fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// All entries but `__metadata__`, in any order.
struct Entries(Vec<TensorHeader>);

/// No tensor has more axes.
const MAX_AXES: usize = 8;

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                        continue;
                    }
                    let entry: Entry = map.next_value()?;
                    let [begin, end] = entry.data_offsets;
                    let wrong =
                        |what: fmt::Arguments<'_>| Err(A::Error::custom(format_args!("tensor `{name}` {what}")));
                    if entry.shape.len() > MAX_AXES {
                        return wrong(format_args!("has {} axes, more than {MAX_AXES}", entry.shape.len()));
                    }
                    let Some(bytes) = end.checked_sub(begin) else {
                        return wrong(format_args!("ends before it begins"));
                    };
                    // What a later version of the format adds is believed.
                    if bits(&entry.dtype).is_some() && entry.shape_bytes() != Some(bytes) {
                        let (dtype, shape) = (&entry.dtype, &entry.shape);
                        return wrong(format_args!(
                            "has {bytes} bytes, which {dtype} of shape {shape:?} does not take"
                        ));
                    }
                    let plain = matches!(&*entry.dtype, "F64" | "F32" | "F16" | "BF16" | "F8_E4M3" | "F8_E5M2");
                    tensors.push(TensorHeader { name, shape: entry.shape, plain, begin, end });
                }
                Ok(Entries(tensors))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
