//! A session measured, and its pools resized to what was measured.

use cacheplan_managers::CountingAllocator;
use cacheplan_planner::{ForwardProfile, MeasuredLedger, Memory};

use super::Session;
use crate::decoder::Decoder;
use crate::device::device_info;
use crate::draft_model::DraftModel;
use crate::error::Result;
use crate::profile::{MemoryProfile, profile};

impl Session {
    /// Measures one forward of a full step, that of whoever guesses included.
    ///
    /// # Errors
    /// Nobody who counts bytes; a failing forward.
    pub fn profile(&mut self) -> Result<MemoryProfile> {
        let _span = tracing::debug_span!("profile").entered();
        self.forget_prefixes()?;
        let limits = self.caches.plan().limits.clone();
        let measured = profile(&self.decoder, self.draft.as_ref(), self.caches.manager_mut()?, &limits)?;
        self.profile = Some(measured.clone());
        Ok(measured)
    }

    /// What was resident when `measured` was, but for the caches.
    fn resident_without_caches(&self, measured: &MemoryProfile) -> Result<u64> {
        let mut cache_bytes: u64 = self.caches.plan().pools.iter().map(|pool| pool.bytes).sum();
        if self.decoder.device().is_cpu() {
            // There the host tier is memory of the same kind, and was measured too.
            cache_bytes += self.caches.prefix_host_bytes()?;
        }
        // A plan counts the draft's weights beside what is resident.
        let lines = self.caches.plan().ledger.iter().filter(|line| line.name.to_string() == "draft weights");
        let drafting: u64 = lines.map(|line| line.bytes).sum();
        Ok(measured.resident_bytes.saturating_sub(cache_bytes + drafting))
    }

    /// What was measured, as lines for a plan: the weights with what the process needs beside them, and a forward.
    ///
    /// # Errors
    /// Caches that were shut down.
    pub fn measured(&self, profile: &MemoryProfile) -> Result<MeasuredLedger> {
        let weights = self.resident_without_caches(profile)?;
        Ok(MeasuredLedger::of_forward(weights, profile.forward_bytes, profile.tokens, profile.sequences))
    }

    /// Gives up the pools and allocates those that suit a measurement.
    ///
    /// # Errors
    /// No plan for what was measured; then the pools are as before. A device that does not give the memory.
    pub fn resize(&mut self, measured: &MemoryProfile) -> Result<()> {
        let _span = tracing::debug_span!("resize", forward_bytes = measured.forward_bytes).entered();
        let resident_bytes = self.resident_without_caches(measured)?;
        self.forget_prefixes()?;
        let drafting = self.draft.as_ref().map(DraftModel::decoder);
        [Some(&self.decoder), drafting].into_iter().flatten().for_each(Decoder::forget_recorded);
        self.caches.shutdown()?;
        // What was freed is free once the device has it back.
        CountingAllocator::trim_device(&self.decoder.device());
        let free_bytes = match self.request.device() {
            Some(stated) if self.device_is_stated => stated.free_bytes.saturating_sub(resident_bytes),
            // What is mapped counts as free, since it could be read again.
            _ => device_info(&self.decoder.device())
                .map_or(0, |info| info.free_bytes.saturating_sub(self.decoder.mapped_bytes())),
        };
        let measurement = ForwardProfile { resident_bytes, forward_bytes: measured.forward_bytes, free_bytes };
        // What was stated until it was measured stands no longer.
        let is_stated = |memory: &Memory| memory.weights.is_some() || memory.activations.is_some();
        let request = match self.request.config().budget.memory.clone().filter(is_stated) {
            Some(memory) => {
                let measured = Memory { weights: None, activations: None, ..memory };
                self.request.changed(|budget| budget.memory = Some(measured))
            }
            None => self.request.clone(),
        };
        let resized = request.with_profile(measurement).plan();
        let next = resized.as_ref().unwrap_or(self.caches.plan()).clone();
        self.caches.resize(&next)?;
        self.start_reuse()?;
        resized?;
        Ok(())
    }
}
