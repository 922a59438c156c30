//! The tree and what it holds, on disk and back.
//!
//! A snapshot is one file: a header, the nodes with parents before children, and a BLAKE3 checksum of all before it.
//! It is written beside its place and renamed into it, so that a crash leaves the old file or the new one. It is read
//! only if magic, version, fingerprint, sizes and checksum agree; otherwise the caller goes on with an empty cache.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::arena::NIL;
use super::config::{LeafRule, TenantId};
use super::evict::Evicted;
use super::host::{HostBlockId, HostSlotId};
use super::key::Namespace;
use super::node::{COMPONENTS, Checkpoint, Component};
use super::tree::{Change, Recency, Released, Tree};
use crate::book::ids::{BlockId, SlotId};

const MAGIC: [u8; 8] = *b"CPPREFIX";
const VERSION: u32 = 1;
const CHECKSUM: usize = blake3::OUT_LEN;

/// What a snapshot must agree on with the plan that reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The fingerprint of model, policy and dtypes: states of another model are no states of this one.
    pub fingerprint: String,
    /// Bytes of one KV block.
    pub block_bytes: usize,
    /// Bytes of one window block; 0 without windows.
    pub window_bytes: usize,
    /// Bytes of one state; 0 without states.
    pub state_bytes: usize,
}

/// Where the bytes of a saved unit are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// A KV block on the device.
    Block(BlockId),
    /// A KV block on the host.
    HostBlock(HostBlockId),
    /// A window block.
    Window(BlockId),
    /// A window block on the host.
    HostWindow(HostBlockId),
    /// A state on the device.
    State(SlotId),
    /// A state on the host.
    HostState(HostSlotId),
}

/// Takes restored units in: hands out fresh ones and fills them.
pub trait Restore {
    /// A fresh KV block with these bytes, or `None` if the pool has no more.
    fn block(&mut self, bytes: &[u8]) -> Option<BlockId>;
    /// A fresh window block with these bytes, or `None` if the pool has no more.
    fn window(&mut self, bytes: &[u8]) -> Option<BlockId>;
    /// A fresh slot with these bytes, or `None` if the pool has no more.
    fn state(&mut self, bytes: &[u8]) -> Option<SlotId>;
}

/// A snapshot that cannot be written or must not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file cannot be read or written.
    #[error("snapshot {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The file is not a snapshot, or not a whole one.
    #[error("snapshot {}: {what}; the cache starts empty", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The file is a snapshot of something else.
    #[error("snapshot {}: {what} is {found}, this cache has {expected}; the cache starts empty", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// In the file.
        found: String,
        /// In this cache.
        expected: String,
    },
    /// Snapshots are restored into empty trees only.
    #[error("the tree has {nodes} nodes; a snapshot is restored into an empty one")]
    NotEmpty {
        /// How many.
        nodes: usize,
    },
}

impl Tree {
    /// Writes the tree and the bytes of everything it holds. `read` appends the bytes of a unit.
    ///
    /// # Errors
    /// [`SnapshotError::Io`]; what was at `path` before is still there then.
    pub fn save(
        &self,
        path: &Path,
        shape: &Shape,
        read: impl FnMut(Saved, &mut Vec<u8>) -> io::Result<()>,
    ) -> Result<(), SnapshotError> {
        let beside = path.with_extension("partial");
        let written = self.write_file(&beside, shape, read).and_then(|()| fs::rename(&beside, path));
        // The rename itself is durable only with its folder. Not every system can open one; then there is no more to do.
        if let Some(Ok(folder)) = path.parent().map(File::open) {
            let _ = folder.sync_all();
        }
        written.map_err(|source| {
            let _ = fs::remove_file(&beside);
            SnapshotError::Io { path: path.to_owned(), source }
        })
    }

    fn write_file(
        &self,
        path: &Path,
        shape: &Shape,
        mut read: impl FnMut(Saved, &mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut out = Summing { file: BufWriter::new(File::create(path)?), sum: blake3::Hasher::new() };
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

    /// Restores a snapshot into this empty tree. What the pools cannot hold is left out, deepest first.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`] and [`SnapshotError::Foreign`] say why the file must not be used; the tree is
    /// empty then, and what `pools` gave is in `out`.
    pub fn restore(
        &mut self,
        path: &Path,
        shape: &Shape,
        pools: &mut impl Restore,
        out: &mut Released,
    ) -> Result<(), SnapshotError> {
        if self.usage.nodes > 0 {
            return Err(SnapshotError::NotEmpty { nodes: self.usage.nodes });
        }
        let mut input = Input::open(path)?;
        self.check_header(&mut input, shape)?;
        let result = self.restore_nodes(&mut input, shape, pools, out);
        self.settle(out);
        if result.is_err() {
            let _ = self.evict_kv(usize::MAX, out);
            self.evict_host(usize::MAX, usize::MAX);
            out.offloads.clear();
        }
        result
    }

    fn restore_nodes(
        &mut self,
        input: &mut Input,
        shape: &Shape,
        pools: &mut impl Restore,
        out: &mut Released,
    ) -> Result<(), SnapshotError> {
        let count = input.u64()?;
        // The tree's node for every node of the file; NIL for those that were left out.
        let mut restored: Vec<u32> = Vec::new();
        for _ in 0..count {
            let parent = input.u32()?;
            let node = if parent == NIL {
                let namespace = Namespace { salt: input.text()?, adapter: input.text()? };
                self.root_or_new(&namespace)
            } else {
                let parent =
                    restored.get(parent as usize).copied().ok_or_else(|| input.damaged("a node has no parent"))?;
                self.restore_node(parent, input, shape, pools, out)?
            };
            restored.push(node);
        }
        Ok(())
    }

    /// Reads one node and hangs it below its parent, if that is there and the pools have room.
    fn restore_node(
        &mut self,
        parent: u32,
        input: &mut Input,
        shape: &Shape,
        pools: &mut impl Restore,
        out: &mut Released,
    ) -> Result<u32, SnapshotError> {
        let key = input.tokens()?;
        let (tenant, stamp) = (input.u16()?, input.u64()?);
        let (windowed, stated) = (input.flag()?, input.flag()?);
        let pages = key.len() / self.config.page;
        if key.is_empty() || pages * self.config.page != key.len() {
            return Err(input.damaged("a key is not whole pages"));
        }
        let mut room = parent != NIL;
        let mut kv = Vec::new();
        for _ in 0..pages {
            let bytes = input.bytes(shape.block_bytes)?;
            if room {
                kv.extend(pools.block(&bytes));
                room = !kv.is_empty();
            }
        }
        room &= kv.len() == pages;
        let mut window = Vec::new();
        for _ in 0..if windowed { pages } else { 0 } {
            let bytes = input.bytes(shape.window_bytes)?;
            window.extend(room.then(|| pools.window(&bytes)).flatten());
        }
        let state = if stated { Some(input.bytes(shape.state_bytes)?) } else { None };
        if !room || self.edges.find(&self.nodes, parent, &key).is_some() {
            out.blocks.extend(kv);
            out.window.extend(window);
            return Ok(NIL);
        }
        self.clock = self.clock.max(stamp);
        let known = usize::from(tenant) < self.tenants.len();
        let node = self.attach(parent, key, TenantId(if known { tenant } else { 0 }));
        self.nodes[node].stamp = stamp;
        self.gain_kv(node, kv.into());
        if window.len() == pages {
            self.nodes[node].window = window.into();
            self.book(node, Component::Window, Change::Gain);
        } else {
            out.window.extend(window);
        }
        if let Some(slot) = state.and_then(|bytes| pools.state(&bytes)) {
            self.file_state(node, slot);
            // Its age is the node's, not that of the snapshot's youngest node so far.
            self.nodes[node].state = self.nodes[node].state.map(|state| Checkpoint { used: stamp, ..state });
            self.book(node, Component::State, Change::Gain);
        }
        self.relist(node, Recency::Newest);
        Ok(node)
    }

    /// Puts restored nodes in the order of their use, and drops what was restored in part only.
    fn settle(&mut self, out: &mut Released) {
        if self.config.leaves == LeafRule::State {
            let incomplete = |&node: &u32| {
                let n = &self.nodes[node];
                n.parent != NIL && n.is_leaf() && n.state.is_none()
            };
            let leaves: Vec<u32> = self.live().into_iter().filter(incomplete).collect();
            // Dropping one takes the ancestors along that it leaves incomplete.
            for leaf in leaves {
                self.drop_leaf(leaf, out, &mut Evicted::default());
            }
        }
        let empty: Vec<u32> = self.roots.values().copied().filter(|&root| self.nodes[root].is_leaf()).collect();
        empty.into_iter().for_each(|root| self.drop_root_if_empty(root));
        let mut live = self.live();
        live.sort_by_key(|&node| self.nodes[node].stamp);
        for node in live {
            for component in COMPONENTS {
                let list = self.nodes[node].links[component as usize].list;
                if list != NIL {
                    self.nodes.unlink(component, node);
                    self.nodes.push_front(list, component, node);
                }
            }
        }
    }

    fn header(&self, shape: &Shape) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put(&mut bytes, VERSION);
        put(&mut bytes, shape.fingerprint.len() as u32);
        bytes.extend(shape.fingerprint.as_bytes());
        for size in [self.config.page, shape.block_bytes, shape.window_bytes, shape.state_bytes] {
            bytes.extend((size as u64).to_le_bytes());
        }
        bytes
    }

    fn check_header(&self, input: &mut Input, shape: &Shape) -> Result<(), SnapshotError> {
        let fingerprint = input.text()?;
        input.expect("the fingerprint", &fingerprint, &shape.fingerprint)?;
        let sizes = [
            ("tokens per block", self.config.page),
            ("bytes per KV block", shape.block_bytes),
            ("bytes per window block", shape.window_bytes),
            ("bytes per state", shape.state_bytes),
        ];
        for (what, expected) in sizes {
            let found = input.u64()?;
            input.expect(what, &found.to_string(), &expected.to_string())?;
        }
        Ok(())
    }
}

impl Shape {
    fn bytes_of(&self, unit: Saved) -> usize {
        match unit {
            Saved::Block(_) | Saved::HostBlock(_) => self.block_bytes,
            Saved::Window(_) | Saved::HostWindow(_) => self.window_bytes,
            Saved::State(_) | Saved::HostState(_) => self.state_bytes,
        }
    }
}

fn put(bytes: &mut Vec<u8>, value: u32) {
    bytes.extend(value.to_le_bytes());
}

/// A writer that sums up what goes through it.
struct Summing {
    file: BufWriter<File>,
    sum: blake3::Hasher,
}

impl Summing {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.file.write_all(bytes)
    }
}

/// A snapshot whose magic, version and checksum have been verified.
struct Input {
    path: PathBuf,
    file: BufReader<File>,
    /// Bytes before the checksum that have not been read yet.
    left: u64,
}

impl Input {
    fn open(path: &Path) -> Result<Self, SnapshotError> {
        let failed = |source| SnapshotError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let mut input = Self { path: path.to_owned(), file: BufReader::new(file), left: size };
        if size < (MAGIC.len() + 4 + CHECKSUM) as u64 {
            return Err(input.damaged("the file is too short"));
        }
        input.left -= CHECKSUM as u64;
        if input.bytes(MAGIC.len())? != MAGIC {
            return Err(input.damaged("the file is no snapshot of a prefix cache"));
        }
        let version = input.u32()?;
        input.expect("the version", &version.to_string(), &VERSION.to_string())?;
        input
            .verify(size)
            .map_err(failed)?
            .then_some(())
            .ok_or_else(|| input.damaged("the checksum does not match"))?;
        Ok(input)
    }

    /// Sums the whole file up and returns to where reading was.
    fn verify(&mut self, size: u64) -> io::Result<bool> {
        let here = self.file.stream_position()?;
        self.file.seek(SeekFrom::Start(0))?;
        let mut sum = blake3::Hasher::new();
        sum.update_reader((&mut self.file).take(size - CHECKSUM as u64))?;
        let mut expected = [0; CHECKSUM];
        self.file.read_exact(&mut expected)?;
        self.file.seek(SeekFrom::Start(here))?;
        Ok(sum.finalize() == blake3::Hash::from_bytes(expected))
    }

    fn bytes(&mut self, len: usize) -> Result<Vec<u8>, SnapshotError> {
        if len as u64 > self.left {
            return Err(self.damaged("a length reaches beyond the end"));
        }
        let mut bytes = vec![0; len];
        self.file.read_exact(&mut bytes).map_err(|source| SnapshotError::Io { path: self.path.clone(), source })?;
        self.left -= len as u64;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes(N)?);
        Ok(array)
    }

    fn u16(&mut self) -> Result<u16, SnapshotError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, SnapshotError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, SnapshotError> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, SnapshotError> {
        Ok(self.array::<1>()? != [0])
    }

    fn text(&mut self) -> Result<String, SnapshotError> {
        let len = self.u32()? as usize;
        String::from_utf8(self.bytes(len)?).map_err(|_| self.damaged("a text is not UTF-8"))
    }

    fn tokens(&mut self) -> Result<Box<[u32]>, SnapshotError> {
        let len = self.u32()? as usize;
        let bytes = self.bytes(len.saturating_mul(4))?;
        Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    fn expect(&self, what: &'static str, found: &str, expected: &str) -> Result<(), SnapshotError> {
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (found.to_owned(), expected.to_owned());
        Err(SnapshotError::Foreign { path: self.path.clone(), what, found, expected })
    }

    fn damaged(&self, what: &'static str) -> SnapshotError {
        SnapshotError::Damaged { path: self.path.clone(), what }
    }
}
