//! What of a key is in the tree. Looking changes nothing, not even recency.

use super::edges::{AHEAD, Edge};
use super::host::HostSlotId;
use super::key::{Key, common_prefix, floor};
use super::node::{NIL, NodeId};
use super::tree::Tree;
use crate::book::SlotId;

/// The answer to a lookup, valid until the tree evicts what it found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Tokens that need not be computed: the longest prefix that every component can continue from.
    pub hit: usize,
    /// Tokens whose KV is resident, whether or not a state makes them usable.
    pub kv_hit: usize,
    /// The deepest prefix whose window is whole. Equal to `kv_hit` in a tree without windows.
    pub window_hit: usize,
    /// The deepest grid position above `hit` that the resident KV reaches. A checkpoint there would have served this
    /// key, and will serve the next one that shares it.
    pub branch: Option<usize>,
    /// Tokens of `kv_hit` that lie on the device. Where `hit` is more, [`Tree::load`] brings the rest back.
    pub resident: usize,
    /// Window tokens of the hit that lie on the host, and that [`Tree::load`] brings back too.
    pub host_window: usize,
    /// The state to start from. It must be copied, never written. `None` where `hit` is 0 or the tree has no states.
    pub state: Option<SlotId>,
    /// The state to start from, where it lies on the host.
    pub host_state: Option<HostSlotId>,
    /// The node in whose span `hit` lies.
    pub(super) node: Option<NodeId>,
    /// The tree that found it, if it is a hit.
    pub(super) tree: u64,
}

impl Match {
    pub(crate) const MISS: Self = Self {
        hit: 0,
        kv_hit: 0,
        window_hit: 0,
        branch: None,
        resident: 0,
        host_window: 0,
        state: None,
        host_state: None,
        node: None,
        tree: 0,
    };
}

/// How much window KV precedes a position without a gap.
#[derive(Clone, Copy)]
struct Trail {
    tokens: usize,
    /// The run reaches the start of the sequence, where a window needs no more than there is.
    rooted: bool,
}

impl Trail {
    fn follow(&mut self, tokens: usize, resident: bool) {
        if resident {
            self.tokens += tokens;
        } else {
            *self = Self { tokens: 0, rooted: false };
        }
    }
}

/// What of a node lies on the host, on the way to a hit.
pub(super) struct OnHost {
    pub(super) node: u32,
    /// Its tokens up to the hit.
    pub(super) tokens: usize,
    /// Whether its keys do.
    pub(super) kv: bool,
    /// Whether a window does that the hit needs.
    pub(super) window: bool,
}

impl OnHost {
    /// Tokens whose keys, and whose window, have to be loaded, with those of a node.
    pub(super) fn and([keys, windows]: [usize; 2], Self { tokens, kv, window, .. }: Self) -> [usize; 2] {
        [keys + if kv { tokens } else { 0 }, windows + if window { tokens } else { 0 }]
    }
}

/// A lookup under way.
struct Walk {
    found: Match,
    trail: Trail,
    position: usize,
}

impl Tree {
    /// Looks up the longest usable prefix of `key`.
    ///
    /// A request must compute at least its last token to have something to sample from, so callers pass at most
    /// the first `len - 1` tokens of a prompt.
    #[must_use]
    pub fn match_prefix(&self, key: Key<'_>) -> Match {
        self.walk(key, true)
    }

    /// As [`Tree::match_prefix`], as if nothing lay on the host.
    #[must_use]
    pub fn match_resident(&self, key: Key<'_>) -> Match {
        self.walk(key, false)
    }

    fn walk(&self, key: Key<'_>, host: bool) -> Match {
        let Some(&root) = self.roots.get(key.namespace) else {
            return Match::MISS;
        };
        let mut walk = Walk { found: Match::MISS, trail: Trail { tokens: 0, rooted: true }, position: 0 };
        let mut path = [Edge::default(); AHEAD];
        let mut current = root;
        'walk: loop {
            let ahead = self.edges.read_ahead(&self.nodes, current, &key.tokens[walk.position..], &mut path);
            if ahead == 0 {
                break;
            }
            for edge in &path[..ahead] {
                current = edge.child;
                let node = &self.nodes[current];
                let shared = floor(common_prefix(&node.key, &key.tokens[walk.position..]), self.config.page);
                if !self.step(&mut walk, current, shared, host) || shared < node.len() {
                    break 'walk;
                }
            }
        }
        let mut found = walk.found;
        if let Some(node) =
            found.node.and_then(|id| self.nodes.resolve(id)).filter(|_| host && self.config.host.is_some())
        {
            [_, found.host_window] = self.to_load(node, found.hit).fold([0, 0], OnHost::and);
        }
        found.kv_hit = walk.position;
        let branch = floor(found.kv_hit, self.grid);
        found.branch = (self.config.states && branch > found.hit).then_some(branch);
        found
    }

    /// Notes what the first `shared` tokens of a node add to a match. `false`: they are not to be had.
    fn step(&self, walk: &mut Walk, child: u32, shared: usize, host: bool) -> bool {
        let tiered = self.config.host.is_some();
        let node = &self.nodes[child];
        let resident = !tiered || !node.kv.is_empty();
        if !resident && !host {
            return false;
        }
        let Walk { found, trail, position } = walk;
        *position += shared;
        let whole = shared == node.len();
        let windowed = self.config.window.is_none_or(|window| {
            let on_host = host && !node.host_window.is_empty();
            trail.follow(shared, on_host || !node.window.is_empty());
            trail.rooted || trail.tokens >= window
        });
        if windowed {
            found.window_hit = *position;
        }
        if resident {
            found.resident = *position;
        }
        let state = node.state.filter(|_| whole).map(|state| state.slot);
        let host_state = if tiered && host && whole { node.host_state } else { None };
        if windowed && (state.is_some() || host_state.is_some() || !self.config.states) {
            found.hit = *position;
            (found.state, found.host_state) = (state, host_state);
            (found.node, found.tree) = (Some(self.nodes.id(child)), self.id);
        }
        true
    }

    /// What of the first `hit` tokens lies on the host and has to be loaded for them, the deepest node, which `hit` ends in,
    /// first: keys, and the window before the hit.
    pub(super) fn to_load(&self, node: u32, hit: usize) -> impl Iterator<Item = OnHost> {
        let path = std::iter::successors(Some(node), |&node| Some(self.nodes[node].parent));
        path.take_while(|&node| self.nodes[node].parent != NIL).map_while(move |node| {
            let n = &self.nodes[node];
            let end = hit.min(n.end as usize);
            let (kv, is_seen) = (n.kv.is_empty(), self.config.window.is_some_and(|window| hit - end < window));
            // Above this all is on the device that is needed.
            let window = is_seen && !n.host_window.is_empty();
            (kv || is_seen).then_some(OnHost { node, tokens: end - n.start(), kv, window })
        })
    }
}
