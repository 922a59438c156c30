//! What the pools have of a sequence, as bytes, and back.

use candle_core::{Device, Tensor};

use super::{FoundPrefix, PrefixFiles};
use crate::ManagerError;
use crate::book::SequenceId;
use crate::device::error::Result;
use crate::device::mamba::MambaCacheManager;
use crate::device::manager::CacheManager;
use crate::device::pool::PoolTensor;
use crate::prefix::Token;

impl CacheManager {
    /// Keeps a settled sequence of these tokens in a file; nothing where the file is there, or the sequence has not all
    /// that a later one needs.
    ///
    /// # Errors
    /// A stale handle, a sequence that is not settled, a failing device; [`ManagerError::Disk`].
    pub fn keep_in_file(&self, sequence: SequenceId, tokens: &[Token], files: &mut PrefixFiles) -> Result<()> {
        self.ready()?;
        let settled = self.book.settled(sequence)?;
        if settled.tokens as usize != tokens.len() || files.has(tokens) {
            return Ok(());
        }
        let Some(blocks) = self.book.stored_blocks(sequence)? else { return Ok(()) };
        let mut parts = Vec::with_capacity(blocks.len());
        for (paged, blocks) in blocks.iter().enumerate() {
            let ids: Vec<u32> = blocks.iter().map(|block| block.0).collect();
            parts.push(bytes_of(&self.kv().pool(paged).read_units(&ids)?)?);
        }
        if let Some(slot) = settled.slot {
            let states = self.pools.states()?;
            for (at, pool) in states.slot_pools().enumerate() {
                let contents = pool.read_units(&[slot.0])?;
                let contents = match states.checkpoints.get(at).map(|stored| stored.encode(slot, contents.clone())) {
                    None => contents,
                    Some(Ok(encoded)) => encoded,
                    // Nobody can start from it.
                    Some(Err(ManagerError::NotQuantisable { .. })) => return Ok(()),
                    Some(Err(error)) => return Err(error),
                };
                parts.push(bytes_of(&contents)?);
            }
        }
        Ok(files.keep(tokens, &parts)?)
    }

    /// Admits a sequence with what a file has of its tokens; `None` where the file is not as it was written, and was
    /// dropped.
    ///
    /// # Errors
    /// What lacks, or a failing device; the books have not the sequence then. [`ManagerError::Disk`].
    pub fn admit_from_file(&mut self, found: &FoundPrefix, files: &mut PrefixFiles) -> Result<Option<SequenceId>> {
        self.settle()?;
        let (tokens, of) = (found.tokens as u32, found.of.len() as u32);
        let counts = |tokens| self.book.stored_counts(tokens);
        let (held, wanted) = (counts(of), counts(tokens));
        let mut expected: Vec<u64> = held
            .iter()
            .enumerate()
            .map(|(paged, &blocks)| u64::from(blocks) * self.kv().pool(paged).unit_bytes())
            .collect();
        expected.extend(self.state_pools().map(PoolTensor::unit_bytes));
        let sequence = self.book.admit_stored(tokens)?;
        let written = files
            .read(found, &expected)
            .map_err(ManagerError::from)
            .and_then(|parts| parts.map(|parts| self.write_parts(sequence, &held, &wanted, &parts)).transpose());
        match written {
            Ok(Some(())) => Ok(Some(sequence)),
            other => {
                self.book.finish(sequence)?;
                other.map(|_| None)
            }
        }
    }

    fn write_parts(&self, sequence: SequenceId, held: &[u32], wanted: &[u32], parts: &[Vec<u8>]) -> Result<()> {
        let (blocks, states) = parts.split_at(held.len());
        let ids = self.book.held_blocks(sequence)?;
        for (paged, (((ids, part), &held), &wanted)) in ids.iter().zip(blocks).zip(held).zip(wanted).enumerate() {
            let pool = self.kv().pool(paged);
            let ids: Vec<u32> = ids.iter().map(|block| block.0).collect();
            let values = tensor_of(part, pool, held as usize)?.narrow(0, 0, wanted as usize)?;
            pool.write_units(&ids, &values.contiguous()?)?;
        }
        let Some(slot) = self.book.slot(sequence)? else { return Ok(()) };
        let mamba = self.pools.states()?;
        for (at, ((part, stored), pool)) in states.iter().zip(self.state_pools()).zip(mamba.slot_pools()).enumerate() {
            let contents = tensor_of(part, stored, 1)?;
            let contents = match mamba.checkpoints.get(at) {
                Some(checkpoints) => checkpoints.decode(slot, contents, pool)?,
                None => contents,
            };
            pool.write_units(&[slot.0], &contents)?;
        }
        Ok(())
    }

    /// The pools in whose form states are kept in files: that of checkpoints.
    fn state_pools(&self) -> impl Iterator<Item = &PoolTensor> {
        self.mamba().into_iter().flat_map(MambaCacheManager::checkpoint_pools)
    }
}

fn bytes_of(values: &Tensor) -> Result<Vec<u8>> {
    let values = values.to_device(&Device::Cpu)?;
    let mut bytes = Vec::with_capacity(values.elem_count() * values.dtype().size_in_bytes());
    values.write_bytes(&mut bytes)?;
    Ok(bytes)
}

/// Units of a pool, on the CPU.
fn tensor_of(bytes: &[u8], pool: &PoolTensor, units: usize) -> Result<Tensor> {
    Ok(Tensor::from_raw_buffer(bytes, pool.tensor.dtype(), &[units, pool.unit_elems], &Device::Cpu)?)
}
