//! The header of one safetensors file: 8 bytes of length, then JSON.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::frontend::FrontendError;

/// Headers above this are refused; those of the largest models are a few MiB.
const MAX_HEADER: u64 = 16 << 20;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::frontend) struct TensorHeader {
    /// Its name, `model.layers.0.self_attn.k_proj.weight`.
    pub(super) name: String,
    /// Its shape, as stored.
    pub(super) shape: Vec<u64>,
    /// Bytes it takes.
    pub(super) bytes: u64,
    /// Whether each element is stored by itself, so that the shape is that of the weight; packed formats halve an axis.
    pub(super) plain: bool,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// All entries but `__metadata__`, in file order.
struct Entries(Vec<TensorHeader>);

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
                    let Entry { dtype, shape, data_offsets: [begin, end] } = map.next_value()?;
                    let bytes = end.checked_sub(begin).ok_or_else(|| {
                        serde::de::Error::custom(format_args!("tensor `{name}` ends before it begins"))
                    })?;
                    let plain = matches!(dtype.as_str(), "F64" | "F32" | "F16" | "BF16" | "F8_E4M3" | "F8_E5M2");
                    tensors.push(TensorHeader { name, shape, bytes, plain });
                }
                Ok(Entries(tensors))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// Reads the header of a file; its data need not be there.
pub(in crate::frontend) fn read_header(path: &Path) -> Result<Vec<TensorHeader>, FrontendError> {
    let name = path.display().to_string();
    let io = |source| FrontendError::Io { file: name.clone(), source };
    let mut file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut length = [0; 8];
    if size < 8 {
        return Err(FrontendError::Truncated { file: name, needed: 8, found: size });
    }
    file.read_exact(&mut length).map_err(io)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return Err(FrontendError::BadValue {
            file: name,
            key: "header length".to_owned(),
            found: length.to_string(),
            expected: format!("at most {MAX_HEADER} bytes are read; is this a safetensors file?"),
        });
    }
    if size - 8 < length {
        return Err(FrontendError::Truncated { file: name, needed: length + 8, found: size });
    }
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).map_err(io)?;
    let entries: Entries =
        serde_json::from_slice(&text).map_err(|source| FrontendError::Json { file: name.clone(), source })?;
    Ok(entries.0)
}
