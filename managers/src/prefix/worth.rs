//! Which state to give up: the one whose loss costs least.
//!
//! Losing a state costs the recompute from the next shallower state to it, as often as it would have been used.
//! How often is what the tree has learnt of states like it, by what they are to the sequences that pass them and by
//! how often they were used before. It differs by orders of magnitude: where prompts fork, states are used again and
//! again; a state that a deeper one of the same sequence has superseded hardly ever.
//! What is learnt is the chance of a use before the age doubles. A state that was evicted early counts for the
//! doublings that it saw, so that no class is taken for useless because its states never lived to be used.
//! Ages are counted from the age at which states are lost on average: what is younger has not had its chance.
//! All states of a tree take the same bytes, so bytes do not enter.
//!
//! Recompute times chance is a state's value, and value over age its worth. States of about the same value are in one
//! list, by recency, so that the oldest of each list is about the least of it. Only the two oldest are compared, and
//! the cost is constant.

use super::config::{Eviction, TenantId};
use super::experience::RANKS;
use super::node::{Checkpoint, Class, Component, NIL};
use super::tree::Tree;
use crate::book::SlotId;

/// How many of the oldest of every list an eviction compares at most.
const COMPARED: usize = 2;

/// How many times less a state may be worth than when it was filed, if a list is to be skipped for what is in it.
const DRIFT: f64 = 4.0;

/// How far up the tree the next shallower state is searched for; what lies farther is worth at least as much.
const REACH: usize = 16;

impl Tree {
    /// The state that a tenant should lose next, and how many states were compared to find it.
    pub(super) fn least_worth(&mut self, tenant: TenantId) -> (Option<u32>, usize) {
        let mut least: Option<(f64, u32)> = None;
        let mut compared = 0;
        // Under `Lru` there is one list, and its oldest state is the victim.
        let compare = if self.config.eviction == Eviction::Lru { 1 } else { COMPARED };
        for rank in 0..RANKS {
            let mut node = self.nodes.list(Self::list_of(tenant, Component::State, rank)).tail;
            for _ in 0..compare {
                let Some(state) = self.nodes.get(node).and_then(|node| node.state) else { break };
                compared += 1;
                let age = 1.0 + self.experience.lifetime + self.age(state);
                // No state of a list is worth less than the list's least value over its age, but for drift, and what
                // follows in the list is newer still: the rest of it can be skipped.
                if least.is_some_and(|(least, _)| self.floor_of(rank) > DRIFT * least * age) {
                    break;
                }
                let newer = self.nodes[node].links[Component::State as usize].prev;
                let worth = self.appraise(node) / age;
                if least.is_none_or(|(least, _)| worth < least) {
                    least = Some((worth, node));
                }
                node = newer;
            }
        }
        (least.map(|(_, node)| node), compared)
    }

    /// Expected recompute that the state of a node saves until its age has doubled.
    fn value(&self, node: u32) -> f64 {
        let n = &self.nodes[node];
        let Some(state) = n.state else { return 0.0 };
        let shallower = &self.nodes[self.shallower_state(node)];
        self.config.cost.between(shallower.end as usize, n.end as usize) * self.experience.chance(state)
    }

    fn age(&self, state: Checkpoint) -> f64 {
        (self.clock - state.used) as f64
    }

    /// The list in which a state of this value belongs; under `Lru` there is only one.
    fn rank_of(&self, value: f64) -> u8 {
        if self.config.eviction == Eviction::Lru {
            return 0;
        }
        let quarters = (4.0 * value / self.config.cost.of(1)) as u64;
        quarters.max(1).ilog2().min(RANKS as u32 - 1) as u8
    }

    /// The least value of the states in a list.
    fn floor_of(&self, rank: usize) -> f64 {
        if rank == 0 { 0.0 } else { self.config.cost.of(1) * f64::from(1_u32 << rank) / 4.0 }
    }

    /// The nearest ancestor with a state; the root, or the farthest in reach, where there is none.
    fn shallower_state(&self, node: u32) -> u32 {
        let mut node = self.nodes[node].parent;
        for _ in 0..REACH {
            if self.nodes[node].parent == NIL || self.nodes[node].state.is_some() {
                break;
            }
            node = self.nodes[node].parent;
        }
        node
    }

    /// What a state is to the sequences below it, looking down no farther than [`REACH`]; `Lru` needs no classes.
    fn class_of(&self, node: u32) -> Class {
        if self.config.eviction == Eviction::Lru {
            return Class::Tail;
        }
        let mut node = &self.nodes[node];
        for _ in 0..REACH {
            if node.children != 1 {
                break;
            }
            node = &self.nodes[node.first_child];
            if node.state.is_some() {
                return Class::Superseded;
            }
        }
        if node.is_leaf() { Class::Tail } else { Class::Fork }
    }

    /// Files a new state at a node, and anew the one above it.
    pub(super) fn file_state(&mut self, node: u32, slot: SlotId) {
        let class = match self.class_of(node) {
            // A state inside a path that was there before: the request that leaves it is about to part from that path.
            Class::Tail if self.config.eviction == Eviction::Coverage && !self.nodes[node].is_leaf() => Class::Fork,
            class => class,
        };
        self.nodes[node].state = Some(Checkpoint { slot, class, rank: 0, uses: 0, used: self.clock });
        self.file(node, self.rank_of(self.value(node)));
        self.appraise(self.shallower_state(node));
    }

    /// Counts a use of the state at a node. Its class is brought up to date first: a tail may still be filed as
    /// superseded although its successor is gone, and its use would make superseded states look useful.
    pub(super) fn use_state(&mut self, node: u32) {
        self.reclass(node);
        self.learn(node, true);
        let clock = self.clock;
        if let Some(state) = &mut self.nodes[node].state {
            state.uses = state.uses.saturating_add(1);
            state.used = clock;
            self.file(node, self.rank_of(self.value(node)));
        }
    }

    /// Counts what became of the state at a node: it was used, or it is not any more what it was.
    pub(super) fn learn(&mut self, node: u32, used: bool) {
        if let Some(state) = self.nodes[node].state {
            self.experience.count(state, self.age(state), used);
        }
    }

    /// Moves a state to the class and the list that it belongs to now, which may have changed since it was looked at.
    /// Returns its value.
    fn appraise(&mut self, node: u32) -> f64 {
        self.reclass(node);
        let value = self.value(node);
        let rank = self.rank_of(value);
        if self.nodes[node].state.is_some_and(|state| state.rank != rank) {
            self.file(node, rank);
        }
        value
    }

    fn reclass(&mut self, node: u32) {
        let class = self.class_of(node);
        let Some(state) = self.nodes[node].state else { return };
        // A fork whose branches were evicted stays a fork: sequences have parted here.
        if state.class == class || (state.class, class) == (Class::Fork, Class::Tail) {
            return;
        }
        self.learn(node, false);
        // Uses are learnt from by class, so that they start anew.
        self.nodes[node].state = Some(Checkpoint { class, uses: 0, ..state });
    }

    /// Makes a state the newest of its list.
    fn file(&mut self, node: u32, rank: u8) {
        if let Some(state) = &mut self.nodes[node].state {
            state.rank = rank;
        }
        if self.nodes[node].links[Component::State as usize].is_linked() {
            self.nodes.unlink(Component::State, node);
            self.nodes.push_front(self.list_for(node, Component::State), Component::State, node);
        }
    }
}
