//! Writing a snapshot.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use cacheplan_files::replace;

use super::{MAGIC, Saved, Shape, SnapshotError, VERSION};
use crate::book::prefix::node::NIL;
use crate::book::prefix::tree::Tree;

impl Tree {
    /// Writes the tree and the bytes of everything it holds. `read` appends the bytes of a unit.
    ///
    /// Of several saves to one path at once, the last to be done stays. What saves that were cut off have left beside
    /// the path is removed.
    ///
    /// # Errors
    /// [`SnapshotError::Replace`]; what was at `path` before is still there then.
    pub fn save(
        &self,
        path: &Path,
        shape: &Shape,
        read: impl FnMut(Saved, &mut Vec<u8>) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        replace(path, |file| self.write_file(file, shape, read)).map_err(SnapshotError::Replace)
    }

    fn write_file(
        &self,
        file: &mut BufWriter<&File>,
        shape: &Shape,
        mut read: impl FnMut(Saved, &mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut out = Summing { file, sum: blake3::Hasher::new() };
        out.write_all(&self.header(shape))?;
        let live = self.live();
        let order: std::collections::HashMap<u32, u32> = live.iter().zip(0..).map(|(&node, i)| (node, i)).collect();
        out.write_all(&(live.len() as u64).to_le_bytes())?;
        let mut bytes = Vec::new();
        for &node in &live {
            let n = &self.nodes[node];
            bytes.clear();
            put(&mut bytes, order.get(&n.parent).copied().unwrap_or(NIL));
            if let Some(namespace) = self.namespaces.get(&node) {
                for text in [&namespace.salt, &namespace.adapter] {
                    put(&mut bytes, text.len() as u32);
                    bytes.extend(text.as_bytes());
                }
                out.write_all(&bytes)?;
                continue;
            }
            put(&mut bytes, n.key.len() as u32);
            n.key.iter().for_each(|&token| put(&mut bytes, token));
            bytes.extend(n.tenant.0.to_le_bytes());
            bytes.extend(n.stamp.to_le_bytes());
            bytes.push(u8::from(!n.window.is_empty() || !n.host_window.is_empty()));
            let state = n.state.map(|state| Saved::State(state.slot)).or(n.host_state.map(Saved::HostState));
            bytes.push(u8::from(state.is_some()));
            let blocks = n.kv.iter().map(|&b| Saved::Block(b)).chain(n.host_kv.iter().map(|&b| Saved::HostBlock(b)));
            let windows = n.window.iter().map(|&b| Saved::Window(b));
            let windows = windows.chain(n.host_window.iter().map(|&b| Saved::HostWindow(b)));
            let units = blocks.chain(windows).chain(state);
            for unit in units {
                let (from, expected) = (bytes.len(), shape.bytes_of(unit));
                read(unit, &mut bytes)?;
                if bytes.len() - from != expected {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidInput,
                        "a unit has another size than the shape says",
                    ));
                }
            }
            out.write_all(&bytes)?;
        }
        let sum = out.sum.finalize();
        out.file.write_all(sum.as_bytes())
    }

    pub(super) fn header(&self, shape: &Shape) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put(&mut bytes, VERSION);
        put(&mut bytes, shape.fingerprint.len() as u32);
        bytes.extend(shape.fingerprint.as_bytes());
        for size in [self.config.page, shape.block_bytes, shape.window_bytes, shape.state_bytes] {
            bytes.extend((size as u64).to_le_bytes());
        }
        bytes
    }
}

fn put(bytes: &mut Vec<u8>, value: u32) {
    bytes.extend(value.to_le_bytes());
}

/// A writer that sums up what goes through it.
struct Summing<'a, 'f> {
    file: &'a mut BufWriter<&'f File>,
    sum: blake3::Hasher,
}

impl Summing<'_, '_> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.file.write_all(bytes)
    }
}
