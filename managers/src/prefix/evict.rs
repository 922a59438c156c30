//! Giving units back, from lists that hold evictable nodes only.
//!
//! Whatever is locked is in no list, so the cost of an eviction depends neither on the size of the tree nor on how
//! much of it is in use.

use serde::Serialize;

use super::config::TenantId;
use super::error::PrefixError;
use super::experience::RANKS;
use super::lookup::Match;
use super::node::{Component, NIL};
use super::tree::{Change, Recency, Released, Tree};

/// Counts what an eviction freed and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Evicted {
    /// KV, in tokens.
    pub tokens: usize,
    /// Window KV, in tokens.
    pub window_tokens: usize,
    /// States.
    pub states: usize,
    /// Nodes that were looked at to choose the victims.
    pub examined: usize,
}

impl Tree {
    /// Evicts least recently used leaves until at least `tokens` of KV are free or nothing evictable is left.
    ///
    /// A leaf goes as a whole, with its window and its state, so more may come free than was asked for.
    pub fn evict_kv(&mut self, tokens: usize, out: &mut Released) -> Evicted {
        let mut evicted = Evicted::default();
        while evicted.tokens < tokens {
            let Some(leaf) = self.oldest(Component::Kv) else {
                break;
            };
            evicted.examined += 1;
            self.drop_leaf(leaf, out, &mut evicted);
        }
        evicted
    }

    /// Evicts states until at least `states` slots are free or nothing evictable is left.
    ///
    /// An inner node becomes a tombstone and keeps its KV. A leaf goes as a whole: KV behind the last state saves
    /// nothing.
    pub fn evict_state(&mut self, states: usize, out: &mut Released) -> Evicted {
        let mut evicted = Evicted::default();
        while evicted.states < states {
            let Some(tenant) = self.heaviest(Component::State) else {
                break;
            };
            let (node, compared) = self.least_worth(tenant);
            evicted.examined += compared;
            let Some(node) = node else { break };
            if self.nodes[node].is_device_leaf() && !self.nodes[node].locked() {
                self.drop_leaf(node, out, &mut evicted);
            } else {
                self.demote_state(node, out);
                evicted.states += 1;
            }
        }
        evicted
    }

    /// Evicts least recently used window spans until at least `tokens` of window KV are free or nothing is left.
    ///
    /// The state at the end of an inner node goes with its window, without which it could not be used.
    pub fn evict_window(&mut self, tokens: usize, out: &mut Released) -> Evicted {
        let mut evicted = Evicted::default();
        while evicted.window_tokens < tokens {
            let Some(node) = self.oldest(Component::Window) else {
                break;
            };
            evicted.examined += 1;
            if self.nodes[node].is_device_leaf() && !self.nodes[node].locked() {
                self.drop_leaf(node, out, &mut evicted);
                continue;
            }
            evicted.window_tokens += self.nodes[node].len();
            self.take_window(node, out);
            if self.nodes[node].state.is_some() && self.nodes[node].state_pins == 0 {
                self.take_state(node, out);
                evicted.states += 1;
            }
        }
        evicted
    }

    /// The next victim of a component that goes by recency.
    pub(super) fn oldest(&self, component: Component) -> Option<u32> {
        let tenant = self.heaviest(component)?;
        Some(self.nodes.list(Self::list_of(tenant, component, 0)).tail)
    }

    /// The tenant that is furthest above its share, among those who have something to lose.
    fn heaviest(&self, component: Component) -> Option<TenantId> {
        let ranks = if component == Component::State { RANKS } else { 1 };
        let has_evictable = |tenant: &TenantId| {
            (0..ranks).any(|rank| self.nodes.list(Self::list_of(*tenant, component, rank)).tail != NIL)
        };
        let load = |tenant: TenantId| {
            let tenant = usize::from(tenant.0);
            (self.tenants[tenant][component as usize] as u128, u128::from(self.config.tenants[tenant]))
        };
        (0..self.tenants.len()).map(|tenant| TenantId(tenant as u16)).filter(has_evictable).max_by(|&a, &b| {
            let ((a, a_share), (b, b_share)) = (load(a), load(b));
            // held / share, compared without the rounding of a division.
            (a * b_share).cmp(&(b * a_share))
        })
    }

    /// Moves an unlocked leaf to the host or, without room there, removes it with all it holds. Ancestors that have no
    /// state stay: their KV still serves whoever comes.
    pub(super) fn drop_leaf(&mut self, leaf: u32, out: &mut Released, evicted: &mut Evicted) {
        evicted.tokens += self.nodes[leaf].len();
        evicted.states += usize::from(self.nodes[leaf].state.is_some());
        if !self.nodes[leaf].window.is_empty() {
            evicted.window_tokens += self.nodes[leaf].len();
        }
        if self.config.host.is_some() && self.demote(leaf, out) {
            return;
        }
        self.drop_host_children(leaf);
        self.take_window(leaf, out);
        if self.nodes[leaf].state.is_some() {
            self.take_state(leaf, out);
        }
        self.forget_host_state(leaf);
        self.forget_host_window(leaf);
        self.lose_kv(leaf, out);
        self.detach(leaf);
    }

    /// Takes the state of a hit out of the tree, as one that is of no use, and gives its slot to `out`. Returns `false`
    /// for one that somebody holds, which stays.
    pub(super) fn discard_state(&mut self, found: &Match, out: &mut Released) -> Result<bool, PrefixError> {
        let Some(node) = self.locate(found)?.filter(|&node| self.nodes[node].state_pins == 0) else {
            return Ok(false);
        };
        if self.nodes[node].state.is_some() {
            self.take_state(node, out);
        }
        self.forget_host_state(node);
        Ok(true)
    }

    pub(super) fn take_state(&mut self, node: u32, out: &mut Released) {
        self.learn(node, false);
        self.book(node, Component::State, Change::Loss);
        out.slots.extend(self.nodes[node].state.take().map(|state| state.slot));
        self.relist(node, Recency::Newest);
    }

    pub(super) fn take_window(&mut self, node: u32, out: &mut Released) {
        self.book(node, Component::Window, Change::Loss);
        out.window.append(&mut std::mem::take(&mut self.nodes[node].window).into_vec());
        self.relist(node, Recency::Newest);
    }
}
