//! Moving capacity between pools while sequences live in them.

use std::sync::Arc;

use cacheplan_planner::{CachePlan, SlotDomain};

use super::cache::CacheBook;
use super::layout::Layout;
use super::slots::checkpoint_only;
use crate::book::error::{BookError, Result};

impl CacheBook {
    /// Limits every pool to the units that it has both now and in `plan`, so that tensors may shrink next.
    ///
    /// Units keep their numbers, so that nothing that lives has to move.
    ///
    /// # Errors
    /// A plan with other pools, or a pool whose units beyond the limit are held; nothing has changed then.
    pub fn shrink_to(&mut self, plan: &CachePlan) -> Result<Arc<Layout>> {
        let target = Layout::new(plan, self.layout.windows)?;
        if !self.layout.same_but_for_units(&target) {
            return Err(BookError::OtherPools);
        }
        for (spec, blocks) in target.paged.iter().zip(&self.blocks) {
            if let Some(block) = blocks.highest_held().filter(|block| block.0 >= spec.blocks) {
                return Err(BookError::UnitInUse { pool: spec.id.clone(), unit: block.0, units: spec.blocks });
            }
        }
        self.slots.check_resize(target.slots)?;
        let apart_units = target.checkpoints_apart.map(checkpoint_only);
        if let Some((now, units)) = self.checkpoint_only.as_ref().zip(apart_units) {
            now.check_resize(units)?;
        }
        self.check_host(target.host_bytes)?;
        for (spec, blocks) in target.paged.iter().zip(&mut self.blocks) {
            blocks.resize(spec.blocks.min(blocks.units()));
        }
        let now = self.slots.domain();
        let least = SlotDomain {
            padding: now.padding,
            live: now.live.min(target.slots.live),
            checkpoints: now.checkpoints.min(target.slots.checkpoints),
        };
        self.slots.resize(least, now.total().min(target.slots.total()));
        if let Some((now, units)) = self.checkpoint_only.as_mut().zip(apart_units) {
            let least = checkpoint_only(now.domain().checkpoints.min(units.checkpoints));
            now.resize(least, least.total());
        }
        Ok(Arc::new(target))
    }

    /// Takes over the units of a layout that [`CacheBook::shrink_to`] returned, once the tensors have grown.
    pub fn grow_to(&mut self, layout: Arc<Layout>) {
        for (spec, blocks) in layout.paged.iter().zip(&mut self.blocks) {
            blocks.resize(spec.blocks);
        }
        self.slots.resize(layout.slots, layout.slots.total());
        if let Some((now, units)) = self.checkpoint_only.as_mut().zip(layout.checkpoints_apart.map(checkpoint_only)) {
            now.resize(units, units.total());
        }
        self.layout = layout;
    }
}
