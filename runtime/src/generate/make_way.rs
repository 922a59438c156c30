//! Making room: who gives up caches, whether they wait in host memory, and how they come back.

use std::time::Instant;

use cacheplan_managers::book::{SequenceId, Work};
use cacheplan_managers::prefix::{Key, ReuseLease, TenantId};
use cacheplan_managers::{BookError, Lack, ManagerError};

use super::{Generator, Job, Offloaded, Part, Running, Serving};
use crate::costs::ResumeBy;
use crate::error::Result;

impl Generator<'_, '_> {
    /// Plans a step and reserves its blocks; where they do not suffice, it guesses nothing, and then the youngest job
    /// gives up its caches.
    pub(super) fn make_room(&mut self) -> Result<Vec<Part>> {
        let mut drafting = self.serving.limits.draft_positions > 1;
        loop {
            let parts = self.parts(drafting);
            let work: Vec<Work> = self
                .running
                .iter()
                .zip(&parts)
                .filter(|(_, part)| part.tokens > 0)
                .map(|(running, part)| Work {
                    sequence: running.sequence,
                    tokens: (part.tokens + part.drafts()) as u32,
                })
                .collect();
            let drafts = parts.iter().any(|part| part.drafts() > 0);
            let planned = match drafts {
                true => self.serving.caches.speculate(&work, &mut self.metadata),
                false => self.serving.caches.step(&work, &mut self.metadata),
            };
            let lack = match planned {
                Ok(()) => {
                    let worked = parts.iter().filter(|part| part.tokens > 0).enumerate();
                    let trees = worked.filter(|(_, part)| !part.drafts.is_chain());
                    trees.for_each(|(sequence, part)| self.metadata.branch(sequence, &part.drafts.parents));
                    return Ok(parts);
                }
                Err(ManagerError::Book(BookError::Lack(_))) if drafts => {
                    drafting = false;
                    continue;
                }
                Err(ManagerError::Book(BookError::Lack(lack))) => lack,
                Err(error) => return Err(error.into()),
            };
            if self.drop_prefixes(&lack)? {
                continue;
            }
            if self.running.len() == 1 {
                return Err(BookError::Lack(lack).into());
            }
            self.preempt_youngest()?;
        }
    }

    /// Lets prefixes that nobody uses make way; whether any did.
    pub(super) fn drop_prefixes(&mut self, lack: &Lack) -> Result<bool> {
        let Serving { caches, prefixes, .. } = &mut self.serving;
        let dropped = prefixes.as_mut().map(|prefixes| caches.with_book(|book| prefixes.make_room(book, lack)));
        Ok(dropped.transpose()?.unwrap_or(false))
    }

    fn preempt_youngest(&mut self) -> Result<()> {
        if let Some(running) = self.running.pop() {
            let mut job = match self.cheaper(&running)? {
                ResumeBy::Host => self.offload(running)?,
                ResumeBy::Recompute => self.vacate(running)?,
            };
            job.preemptions += 1;
            let offloaded = job.offloaded.is_some();
            tracing::debug!(request = job.place, tokens = job.tokens.len(), offloaded, "preempted");
            self.waiting.push_front(job);
        }
        Ok(())
    }

    /// How a job would come back sooner, as far as its plan has a choice.
    fn cheaper(&self, running: &Running) -> Result<ResumeBy> {
        let Serving { caches, prefixes, .. } = &self.serving;
        if caches.book().layout().host_bytes.is_none() || running.computed == 0 {
            return Ok(ResumeBy::Recompute);
        }
        let tokens = Key { namespace: &self.namespace, tokens: &running.job.tokens[..running.computed] };
        let cached = prefixes.as_ref().map_or(0, |prefixes| prefixes.tree().match_prefix(tokens).hit);
        Ok(self.costs.cheaper(running.computed - cached, caches.book().bytes_to_park(running.sequence)?))
    }

    /// Moves the caches of a job to host memory; without room there they are given up.
    fn offload(&mut self, mut running: Running) -> Result<Job> {
        let Running { sequence, computed, .. } = running;
        let bytes = self.serving.caches.book().bytes_to_park(sequence)?;
        let begun = Instant::now();
        match self.serving.caches.offload(sequence) {
            Ok(()) => {}
            Err(ManagerError::Book(BookError::Lack(_))) => return self.vacate(running),
            Err(error) => return Err(error.into()),
        }
        self.costs.copied(bytes, begun.elapsed());
        self.serving.recorder.offloaded();
        // What it shares with prefixes must not be held while it is gone.
        if let (Some(prefixes), Some(lease)) = (&mut self.serving.prefixes, running.lease.take()) {
            prefixes.abandon(lease)?;
        }
        Ok(Job { offloaded: Some(Offloaded { sequence, bytes, computed }), ..running.job })
    }

    /// Brings the caches of a job back from host memory; prefixes that nobody uses make way.
    pub(super) fn bring_back(
        &mut self,
        job: &Job,
        Offloaded { sequence, bytes, computed }: Offloaded,
    ) -> Result<(SequenceId, Option<ReuseLease>, usize)> {
        let time = loop {
            let begun = Instant::now();
            let lack = match self.serving.caches.onload(sequence) {
                Ok(()) => break begun.elapsed(),
                Err(ManagerError::Book(BookError::Lack(lack))) => lack,
                Err(error) => return Err(error.into()),
            };
            if !self.drop_prefixes(&lack)? {
                return Err(ManagerError::Book(BookError::Lack(lack)).into());
            }
        };
        self.costs.copied(bytes, time);
        let Serving { caches, prefixes, .. } = &mut self.serving;
        let tokens = Key { namespace: &self.namespace, tokens: &job.tokens };
        let tenant = TenantId(job.request.tenant);
        let lease = prefixes.as_mut().map(|prefixes| prefixes.rejoin(caches.book(), sequence, tokens, tenant));
        Ok((sequence, lease.transpose()?, computed))
    }

    /// Gives up the caches that a job has in host memory.
    pub(super) fn forget_offloaded(&mut self, job: &Job) -> Result<()> {
        match job.offloaded {
            Some(offloaded) => Ok(self.serving.caches.finish(offloaded.sequence)?),
            None => Ok(()),
        }
    }
}
