//! The index of a model whose weights are in several files: JSON that maps each tensor to its file.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use cacheplan_files::Shown;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The most files that the weights of a model are split into.
const MAX_SHARDS: usize = 10_000;

/// The longest name that file systems have.
const MAX_NAME: usize = 255;

/// Of the index's own bytes, since it may be longer than any name.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// What is kept of an index.
#[derive(Deserialize)]
pub(super) struct Index {
    #[serde(default)]
    metadata: Metadata,
    weight_map: Shards,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    total_size: Option<serde_json::Number>,
}

/// The files, each once: what the tensors are called is read from their headers.
struct Shards(BTreeSet<String>);

impl Index {
    /// The names of the files.
    pub(super) fn shards(&self) -> &BTreeSet<String> {
        &self.weight_map.0
    }

    pub(super) fn into_shards(self) -> BTreeSet<String> {
        self.weight_map.0
    }

    /// Bytes of all tensors, as it states them.
    pub(super) fn total_size(&self) -> Option<u64> {
        self.metadata.total_size.as_ref()?.as_u64()
    }
}

impl<'de> Deserialize<'de> for Shards {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Shards;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors and their files")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shards, A::Error> {
                let mut shards = BTreeSet::new();
                while let Some((IgnoredAny, Name(shard))) = map.next_entry::<IgnoredAny, Name<'de>>()? {
                    if shard.len() > MAX_NAME {
                        return Err(A::Error::custom(format_args!("a file name of more than {MAX_NAME} bytes")));
                    }
                    if !is_plain(&shard) {
                        let shard = Shown(&shard);
                        return Err(A::Error::custom(format_args!("shard `{shard}` is not a plain file name")));
                    }
                    shards.insert(shard.into_owned());
                    if shards.len() > MAX_SHARDS {
                        return Err(A::Error::custom(format_args!("more than {MAX_SHARDS} files")));
                    }
                }
                Ok(Shards(shards))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// Whether it is a name of a file that does not lead out of its folder.
fn is_plain(shard: &str) -> bool {
    !shard.is_empty() && !shard.contains(['/', '\\']) && !matches!(shard, "." | "..")
}
