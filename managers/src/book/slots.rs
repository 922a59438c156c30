//! The slots of the one slot domain: which are padding, live, checkpoints, free.

use cacheplan_planner::SlotDomain;

use super::ids::{SlotId, SlotRole};
use crate::book::error::{BookError, Lack, Result, Scarce};

/// Hands out the slots of a domain within the quota of each role.
///
/// The padding slots come first and are never handed out.
/// Roles are quotas, not ranges: a finished sequence's slot becomes a checkpoint without a copy.
#[derive(Clone, Debug)]
pub struct SlotAllocator {
    domain: SlotDomain,
    roles: Vec<Option<SlotRole>>,
    free: Vec<u32>,
    used: [u32; 2],
    high_water: [u32; 2],
}

impl SlotAllocator {
    /// All slots of `domain`, free.
    ///
    /// # Errors
    /// A domain of more slots than 31 bits count.
    pub fn new(domain: SlotDomain) -> Result<Self> {
        // Slots of a step are signed, since -1 stands for padding.
        let total = u32::try_from(domain.total()).ok().filter(|&total| i32::try_from(total).is_ok());
        let total = total.ok_or_else(|| BookError::TooManyUnits { pool: "slots".into(), units: domain.total() })?;
        // Fits, since the sum does.
        let padding = domain.padding as u32;
        Ok(Self {
            domain,
            roles: vec![None; total as usize],
            free: (padding..total).rev().collect(),
            used: [0; 2],
            high_water: [0; 2],
        })
    }

    /// Takes a free slot; `None` if the role's quota is used up.
    pub fn allocate(&mut self, role: SlotRole) -> Option<SlotId> {
        if self.available(role) == 0 {
            return None;
        }
        let slot = self.free.pop()?;
        self.roles[slot as usize] = Some(role);
        self.count(role);
        Some(SlotId(slot))
    }

    /// Frees a slot.
    ///
    /// # Errors
    /// A slot that is free, padding or out of range: a double free.
    pub fn release(&mut self, slot: SlotId) -> Result<()> {
        let role = self.role(slot).ok_or(BookError::SlotNotHeld { slot })?;
        self.roles[slot.0 as usize] = None;
        self.used[role as usize] -= 1;
        self.free.push(slot.0);
        Ok(())
    }

    /// Gives a held slot another role, without touching its content.
    ///
    /// # Errors
    /// A slot that nobody holds, or no quota left in the new role.
    pub fn convert(&mut self, slot: SlotId, role: SlotRole) -> Result<()> {
        let old = self.role(slot).ok_or(BookError::SlotNotHeld { slot })?;
        if old != role {
            if self.available(role) == 0 {
                return Err(self.shortage(role));
            }
            self.roles[slot.0 as usize] = Some(role);
            self.used[old as usize] -= 1;
            self.count(role);
        }
        Ok(())
    }

    /// Gives a held slot's role to a free slot, and frees the held one.
    pub(crate) fn relocate(&mut self, from: SlotId, to: SlotId) -> Result<()> {
        let role = self.role(from).ok_or(BookError::SlotNotHeld { slot: from })?;
        let free = self.free.iter().position(|&slot| slot == to.0).ok_or(BookError::SlotNotHeld { slot: to })?;
        self.free[free] = from.0;
        self.roles[to.0 as usize] = Some(role);
        self.roles[from.0 as usize] = None;
        Ok(())
    }

    /// Whether the domain can become `target` with every held slot where it is.
    pub(crate) fn check_resize(&self, target: SlotDomain) -> Result<()> {
        let highest = self.roles.iter().rposition(Option::is_some).unwrap_or(0) as u64;
        let shortest = target.total().min(self.domain.total());
        let quota = |role, limit: u64| u64::from(self.used(role)) <= limit;
        let fits = quota(SlotRole::Live, target.live) && quota(SlotRole::Checkpoint, target.checkpoints);
        if target.padding != self.domain.padding {
            return Err(BookError::OtherPools);
        }
        if fits && (highest < shortest || highest == 0) {
            return Ok(());
        }
        let units = u32::try_from(shortest).unwrap_or(u32::MAX);
        Err(BookError::UnitInUse { pool: "slots".into(), unit: highest as u32, units })
    }

    /// Changes the quotas and the number of slots, which [`SlotAllocator::check_resize`] has allowed.
    pub(crate) fn resize(&mut self, domain: SlotDomain, total: u64) {
        let (old, new) = (self.roles.len() as u32, total as u32);
        self.roles.resize(new as usize, None);
        self.free.retain(|&slot| slot < new);
        self.free.splice(0..0, (old..new).rev());
        self.domain = domain;
    }

    /// The role of a held slot; `None` if it is free, padding or out of range.
    pub fn role(&self, slot: SlotId) -> Option<SlotRole> {
        self.roles.get(slot.0 as usize).copied().flatten()
    }

    /// Slots of a role that can still be taken.
    pub fn available(&self, role: SlotRole) -> u32 {
        self.quota(role) - self.used(role)
    }

    /// Slots in a role.
    pub fn used(&self, role: SlotRole) -> u32 {
        self.used[role as usize]
    }

    /// The most slots a role may have.
    pub fn quota(&self, role: SlotRole) -> u32 {
        // Both fit, since the domain's total does.
        match role {
            SlotRole::Live => self.domain.live as u32,
            SlotRole::Checkpoint => self.domain.checkpoints as u32,
        }
    }

    /// The most slots that a role had at once.
    pub fn high_water(&self, role: SlotRole) -> u32 {
        self.high_water[role as usize]
    }

    /// The domain.
    pub fn domain(&self) -> SlotDomain {
        self.domain
    }

    /// The slots that nobody holds.
    pub fn free_slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.free.iter().map(|&slot| SlotId(slot))
    }

    /// The slots that somebody holds.
    #[cfg(feature = "device")]
    pub(crate) fn held_slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.roles.iter().zip(0..).filter(|(role, _)| role.is_some()).map(|(_, slot)| SlotId(slot))
    }

    fn count(&mut self, role: SlotRole) {
        let role = role as usize;
        self.used[role] += 1;
        self.high_water[role] = self.high_water[role].max(self.used[role]);
    }

    pub(crate) fn shortage(&self, role: SlotRole) -> BookError {
        let (free, capacity) = (u64::from(self.available(role)), u64::from(self.quota(role)));
        Lack { of: Scarce::Slots(role), needed: 1, free, capacity }.into()
    }
}

/// The domain of checkpoints that are no slots.
pub(super) const fn checkpoint_only(units: u64) -> SlotDomain {
    SlotDomain { padding: 0, live: 0, checkpoints: units }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(live: u64, checkpoints: u64) -> SlotAllocator {
        SlotAllocator::new(SlotDomain { padding: 1, live, checkpoints }).unwrap()
    }

    #[test]
    fn the_padding_slot_is_never_handed_out() {
        let mut slots = slots(2, 1);
        let taken: Vec<_> = std::iter::from_fn(|| slots.allocate(SlotRole::Live)).collect();
        assert_eq!(taken, [SlotId(1), SlotId(2)]);
        assert_eq!(slots.allocate(SlotRole::Checkpoint), Some(SlotId(3)));
        assert_eq!(slots.allocate(SlotRole::Checkpoint), None);
        assert_eq!(slots.release(SlotId(0)), Err(BookError::SlotNotHeld { slot: SlotId(0) }));
    }

    #[test]
    fn a_slot_changes_its_role_within_the_quota() {
        let mut slots = slots(2, 1);
        let (first, second) = (slots.allocate(SlotRole::Live).unwrap(), slots.allocate(SlotRole::Live).unwrap());
        slots.convert(first, SlotRole::Checkpoint).unwrap();
        assert_eq!(slots.available(SlotRole::Live), 1);
        let refused = slots.convert(second, SlotRole::Checkpoint);
        let lack = Lack { of: Scarce::Slots(SlotRole::Checkpoint), needed: 1, free: 0, capacity: 1 };
        assert_eq!(refused, Err(lack.into()));
    }

    #[test]
    fn a_double_free_is_an_error_that_names_the_slot() {
        let mut slots = slots(1, 0);
        let slot = slots.allocate(SlotRole::Live).unwrap();
        slots.release(slot).unwrap();
        assert_eq!(slots.release(slot), Err(BookError::SlotNotHeld { slot }));
        assert_eq!(slots.available(SlotRole::Live), 1);
    }
}
