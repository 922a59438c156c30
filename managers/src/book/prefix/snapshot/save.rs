//! Writing a snapshot.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::{MAGIC, Saved, Shape, SnapshotError, VERSION};
use crate::book::prefix::arena::NIL;
use crate::book::prefix::tree::Tree;

impl Tree {
    /// Writes the tree and the bytes of everything it holds. `read` appends the bytes of a unit.
    ///
    /// Of several saves to one path at once, the last to be done stays. What saves that were cut off have left beside
    /// the path is removed.
    ///
    /// # Errors
    /// [`SnapshotError::Io`]; what was at `path` before is still there then.
    pub fn save(
        &self,
        path: &Path,
        shape: &Shape,
        read: impl FnMut(Saved, &mut Vec<u8>) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        let failed = |source| SnapshotError::Io { path: path.to_owned(), source };
        let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        remove_partial(folder, name);
        let (beside, file) = create_partial(folder, name).map_err(failed)?;
        let written = self.write_file(&file, shape, read);
        written.and_then(|()| fs::rename(&beside, path)).map_err(|source| {
            let _ = fs::remove_file(&beside);
            failed(source)
        })?;
        // The rename itself is durable only with its folder. Not every system can open one; then there is no more to do.
        if let Ok(folder) = File::open(folder) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    fn write_file(
        &self,
        file: &File,
        shape: &Shape,
        mut read: impl FnMut(Saved, &mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut out = Summing { file: BufWriter::new(file), sum: blake3::Hasher::new() };
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
        out.file.write_all(sum.as_bytes())?;
        out.file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
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

/// A file beside the place of `name` that no other save writes. It stays locked until it is closed: whoever can lock it
/// knows that it was left behind.
fn create_partial(folder: &Path, name: &OsStr) -> io::Result<(PathBuf, File)> {
    loop {
        let mut partial = name.to_owned();
        partial.push(format!(".{:016x}.partial", RandomState::new().build_hasher().finish()));
        let path = folder.join(partial);
        let file = File::create_new(&path)?;
        file.lock()?;
        // Before it was locked another save may have taken it for one that was left.
        if path.try_exists()? {
            return Ok((path, file));
        }
    }
}

/// Removes what saves of `name` that were cut off have left. Failing to is no reason not to save.
fn remove_partial(folder: &Path, name: &OsStr) {
    let name = name.to_string_lossy();
    let is_partial = |other: &str| {
        let random = other.strip_prefix(&*name).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".partial"));
        random.is_some_and(|random| random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if is_partial(&entry.file_name().to_string_lossy())
            && File::open(&path).is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn put(bytes: &mut Vec<u8>, value: u32) {
    bytes.extend(value.to_le_bytes());
}

/// A writer that sums up what goes through it.
struct Summing<'a> {
    file: BufWriter<&'a File>,
    sum: blake3::Hasher,
}

impl Summing<'_> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.file.write_all(bytes)
    }
}
