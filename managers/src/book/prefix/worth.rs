//! Which state to give up: the one whose loss costs least.
//!
//! Losing a state costs the recompute from the next shallower state to it, as often as it would have been used.
//! How often is estimated from how long it has waited, how often it was used, and how often states of its class are
//! used, which the tree learns. Classes differ by an order of magnitude: where prompts fork, states are used again and
//! again; a state that a deeper one of the same sequence has superseded hardly ever.
//! All states of a tree take the same bytes, so bytes do not enter.
//!
//! Only the oldest few of every class are compared, so the cost is constant. A valuable state that stays among the
//! oldest is compared again at the next eviction, and its age counts against it more and more.

use super::arena::NIL;
use super::config::{Eviction, TenantId};
use super::node::{Checkpoint, Component};
use super::tree::Tree;
use crate::book::ids::SlotId;

/// How many of the oldest states of every class an eviction compares.
const COMPARED: usize = 8;

/// How far up the tree the next shallower state is searched for; what lies farther is worth at least as much.
const REACH: usize = 16;

/// After so many states of a class the older half of the experience is forgotten.
const MEMORY: u32 = 4096;

/// What a state is to the sequences that pass it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The deepest state of its sequence: a continuation will use it.
    Tail,
    /// A deeper state of the only sequence that passes it has taken its place.
    Superseded,
    /// Sequences part here, or have been seen to share up to here.
    Fork,
}

pub(super) const CLASSES: [Class; 3] = [Class::Tail, Class::Superseded, Class::Fork];

/// How often states of a class were used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Experience {
    states: u32,
    uses: u32,
}

impl Experience {
    fn rate(self) -> f64 {
        // Starts at one use per two states, before there is any experience.
        f64::from(self.uses + 1) / f64::from(self.states + 2)
    }

    fn count(&mut self) {
        self.states += 1;
        if self.states > MEMORY {
            self.states /= 2;
            self.uses /= 2;
        }
    }
}

impl Tree {
    /// The state that a tenant should lose next, and how many states were compared to find it.
    pub(super) fn least_worth(&mut self, tenant: TenantId) -> (Option<u32>, usize) {
        if self.config.eviction == Eviction::Lru {
            let oldest = self.nodes.list(Self::list_of(tenant, Component::State, Class::Tail)).tail;
            return ((oldest != NIL).then_some(oldest), 1);
        }
        let mut least: Option<(f64, u32)> = None;
        let mut compared = 0;
        for class in CLASSES {
            let mut node = self.nodes.list(Self::list_of(tenant, Component::State, class)).tail;
            for _ in 0..COMPARED {
                if node == NIL {
                    break;
                }
                compared += 1;
                let newer = self.nodes[node].links[Component::State as usize].prev;
                self.reclass(node);
                let worth = self.worth(node);
                if least.is_none_or(|(w, _)| worth < w) {
                    least = Some((worth, node));
                }
                node = newer;
            }
        }
        (least.map(|(_, node)| node), compared)
    }

    /// Expected recompute per unit of time that the state of a node saves.
    fn worth(&self, node: u32) -> f64 {
        let n = &self.nodes[node];
        let Some(state) = n.state else { return 0.0 };
        let age = (self.clock - state.used + 1) as f64;
        let uses = self.experience[state.class as usize].rate() * f64::from(state.uses + 1);
        let shallower = self.shallower_state(node);
        self.config.cost.between(self.nodes[shallower].end as usize, n.end as usize) * uses / age
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

    /// What the sequences below a state make of it, as far down as is looked. Recency alone knows no classes.
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
            // A state in the middle of what was there before: the request that left it is about to turn off here.
            Class::Tail if self.config.eviction == Eviction::Coverage && !self.nodes[node].is_leaf() => Class::Fork,
            class => class,
        };
        self.nodes[node].state = Some(Checkpoint { slot, class, uses: 0, used: self.clock });
        self.experience[class as usize].count();
        self.reclass(self.shallower_state(node));
    }

    /// Counts a use of the state at a node, for the class that it has now. Counted for a class that it has left, the
    /// use of a tail whose successor is gone would speak for the states that nobody uses, until those drive out tails.
    pub(super) fn use_state(&mut self, node: u32) {
        self.reclass(node);
        let clock = self.clock;
        if let Some(state) = &mut self.nodes[node].state {
            self.experience[state.class as usize].uses += 1;
            state.uses = state.uses.saturating_add(1);
            state.used = clock;
        }
    }

    /// Moves a state to the class that it has now, which may have changed since it was last looked at.
    fn reclass(&mut self, node: u32) {
        let class = self.class_of(node);
        let Some(state) = &mut self.nodes[node].state else { return };
        // A fork stays one while nothing deeper takes its place, even if what turned off has been evicted.
        if state.class == class || (state.class, class) == (Class::Fork, Class::Tail) {
            return;
        }
        state.class = class;
        // Its uses so far spoke for its old class.
        state.uses = 0;
        self.experience[class as usize].count();
        if self.nodes[node].links[Component::State as usize].is_linked() {
            self.nodes.unlink(Component::State, node);
            self.nodes.push_front(self.list_for(node, Component::State), Component::State, node);
        }
    }
}
