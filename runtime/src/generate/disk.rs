//! Prefixes in files: what a request finds there, and what is left there of it.

use cacheplan_managers::book::SequenceId;
use cacheplan_managers::prefix::{Key, ReuseLease, TenantId};
use cacheplan_managers::{BookError, ManagerError};

use super::{Generator, Job, Running, Serving};
use crate::error::Result;

impl Generator<'_, '_> {
    /// Brings in what a file has of a job's tokens, where that is at least a block more than the caches have.
    pub(super) fn enter_from_file(&mut self, job: &Job) -> Result<Option<(SequenceId, Option<ReuseLease>, usize)>> {
        // The last token is computed, so that there are logits.
        let Some(known) = job.tokens.len().checked_sub(1).map(|end| &job.tokens[..end]) else { return Ok(None) };
        loop {
            let namespace = &self.namespace;
            let Serving { caches, prefixes: Some(prefixes), disk: Some(disk), .. } = &mut self.serving else {
                return Ok(None);
            };
            let cached = prefixes.tree().match_prefix(Key { namespace, tokens: known }).hit;
            let found = disk.find(known, cached + prefixes.tokens_per_block() - 1);
            let Some(found) = found else { return Ok(None) };
            let sequence = match caches.admit_from_file(&found, disk) {
                Ok(Some(sequence)) => sequence,
                // The next best, then.
                Ok(None) => continue,
                Err(ManagerError::Disk(error)) => {
                    disk.give_up(&error);
                    return Ok(None);
                }
                Err(ManagerError::Book(BookError::Lack(lack))) => match self.drop_prefixes(&lack)? {
                    true => continue,
                    // As any other request it waits, or computes its prompt.
                    false => return Ok(None),
                },
                Err(error) => return Err(error.into()),
            };
            let tokens = Key { namespace, tokens: &job.tokens };
            let lease = prefixes.rejoin(caches.book(), sequence, tokens, TenantId(job.request.tenant))?;
            return Ok(Some((sequence, Some(lease), found.tokens())));
        }
    }

    /// Leaves what was computed of a job in a file: at its end, and where the prefixes keep a state of its prompt.
    pub(super) fn leave_in_file(serving: &mut Serving<'_, '_>, running: &Running) -> Result<()> {
        let Running { job, sequence, lease: Some(lease), computed } = running else { return Ok(()) };
        let Serving { caches, prefixes: Some(prefixes), disk: Some(disk), .. } = serving else { return Ok(()) };
        let tokens = &job.tokens[..*computed];
        let ends = job.finish.is_some() && job.error.is_none();
        let kept = || {
            let found = prefixes.tree().match_prefix(Key { namespace: lease.namespace(), tokens });
            found.hit == *computed && found.state.is_some()
        };
        if *computed < prefixes.tokens_per_block() || !(ends || kept()) {
            return Ok(());
        }
        match caches.keep_in_file(*sequence, tokens, disk) {
            Err(ManagerError::Disk(error)) => disk.give_up(&error),
            done => done?,
        }
        Ok(())
    }
}
