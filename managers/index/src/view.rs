//! What a question needs to know of a worker besides what it holds of the text.

use std::sync::Arc;

use crate::events::Kind;
use crate::multiples::least_common_multiple;
use crate::spans::{Component, Span, keys, last_state, last_window};

/// What of an answer can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The engine counts the same, if none of its layers drafts, once each of its groups has stored a block:
    /// one that has not is not known to be there.
    Exact,
    /// The engine goes on from at most as much: its events name no groups, so that states and windows are not seen.
    AtMostNoGroups,
    /// The engine goes on from at most as much: a group is of a kind without a rule, or one too many.
    AtMostUnknownGroup,
    /// The engine goes on from at least as much: blocks were left out when the bound was reached.
    AtLeastBound,
    /// The engine goes on from at least as much: its events name some blocks by their hashes alone (windows of which it keeps a
    /// part), and the question came by tokens.
    AtLeastNamed,
    /// Neither: events were lost, or came before the index was there; blocks smaller than their group's were seen.
    Estimate,
}

/// What one worker can reuse of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// The tokens that it can go on from.
    pub tokens: usize,
    /// The tokens whose keys alone are there, all that are needed before them included.
    pub keys: usize,
    /// What holds fewer than the keys would allow: windows or states.
    pub limited_by: Option<Kind>,
    /// What the counts are worth.
    pub trust: Trust,
}

/// How much of a prompt can be reused, whatever that is worth.
#[derive(Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) tokens: usize,
    pub(crate) keys: usize,
    pub(crate) limited_by: Option<Kind>,
}

/// Which groups an engine has: the workers of a fleet share a few of these.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Shape {
    components: Vec<Component>,
    /// Hits end at multiples of this.
    unit: usize,
}

impl Shape {
    /// Of groups, those alike joined; those of unknown kinds are left out.
    pub(crate) fn new(groups: impl Iterator<Item = Component>) -> Self {
        let mut components: Vec<Component> = Vec::new();
        for group in groups.filter(|group| group.kind != Kind::Unknown) {
            match components.iter_mut().find(|one| one.is_like(&group)) {
                Some(one) => one.groups |= group.groups,
                None => components.push(group),
            }
        }
        let unit = components.iter().map(|one| one.block).fold(1, least_common_multiple);
        Self { components, unit }
    }

    /// Whether what is held behind a gap counts: no group needs all blocks.
    pub(crate) fn has_gaps(&self) -> bool {
        !self.components.is_empty() && self.components.iter().all(|one| one.kind != Kind::Full)
    }

    /// What can be reused of at most `most` tokens, of which these stretches are held.
    pub(crate) fn count(&self, most: usize, spans: &[Span]) -> Count {
        let Self { components, unit } = self;
        let unit = (*unit).max(1);
        let mut of_keys = if components.is_empty() { 0 } else { most };
        for full in components.iter().filter(|one| one.kind == Kind::Full) {
            of_keys = keys(spans, full, of_keys);
        }
        of_keys = of_keys / unit * unit;
        let (mut tokens, mut limited_by) = (of_keys, None);
        // Each component accepts a length or names a shorter one; all must accept the same.
        let mut accepted = 0;
        while accepted < components.len() && tokens > 0 {
            accepted = 0;
            for one in components {
                let shorter = match one.kind {
                    Kind::State => last_state(spans, one, tokens, unit),
                    Kind::Window => last_window(spans, one, tokens, unit),
                    Kind::Full | Kind::Unknown => tokens,
                };
                if shorter == tokens {
                    accepted += 1;
                } else {
                    (tokens, limited_by) = (shorter, limited_by.or(Some(one.kind)));
                }
            }
        }
        Count { tokens, keys: of_keys, limited_by }
    }
}
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) shape: Arc<Shape>,
    /// Of an answer to a question by hashes, and by tokens.
    pub(crate) trust: [Trust; 2],
}

impl Default for View {
    /// Of a worker that said nothing.
    fn default() -> Self {
        Self { shape: Arc::default(), trust: [Trust::Estimate; 2] }
    }
}
