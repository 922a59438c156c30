//! Steps on a device of launches: the numbers of a step are uploaded once, and steps that decode are recorded.
//!
//! A step in which every sequence has one token is padded to a bucket, of which there are few
//! ([`StepMetadata::pad_to_bucket`]). The first step of a bucket runs like any other, the second is recorded, and later
//! ones upload their numbers and run what was recorded: nothing else of the host reaches the device then. A recorded step
//! holds addresses of pools, so that all are forgotten when the pools are others.
//!
//! A step that is told something by the host after all (which of many rows an expert has, an op without a kernel) cannot
//! be recorded. Its bucket stays with launches.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, PoisonError};

use cacheplan_kernels::{DeviceBatch, Graph, HostBatch, Rope, record, warm_up};
use cacheplan_managers::book::StepMetadata;
use candle_core::{Device, Tensor};

use crate::error::RuntimeError;

/// What a model is told of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<'a> {
    pub(crate) tokens: &'a [u32],
    /// The rows that are wanted.
    pub(crate) rows: &'a [u32],
    pub(crate) metadata: &'a StepMetadata,
}

/// The device of a model's steps, and what its layers make of positions.
#[derive(Clone, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) device: &'a Device,
    pub(crate) ropes: Vec<&'a Rope>,
    /// The pools, by a number that no others have.
    pub(crate) pools: (u64, u32),
    /// The most sequences of a step.
    pub(crate) most: usize,
}

/// The memory of a model's steps, and those that were recorded.
#[derive(Debug, Default)]
pub(crate) struct DeviceSteps(Mutex<Steps>);

#[derive(Debug, Default)]
struct Steps {
    /// Whether all steps are launched.
    plain: bool,
    pools: (u64, u32),
    /// For steps of any shape; made anew where one needs more.
    any: Option<DeviceBatch>,
    buckets: HashMap<Bucket, (DeviceBatch, Progress)>,
}

/// Sequences, and blocks of a table in each pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Bucket(usize, Vec<usize>);

/// How far a bucket has come.
#[derive(Debug)]
enum Progress {
    New,
    /// The shape of its logits is known, and every kernel loaded.
    Warm(Tensor),
    Recorded(Graph, Tensor),
    /// Where there are no graphs, a step is run anew with all that the host said of the one that was recorded.
    Kept(Box<Padded>),
    /// The host has a part in it.
    Refused,
}

impl DeviceSteps {
    /// Runs a step, whose numbers are uploaded once.
    pub(crate) fn run<R>(
        &self,
        told: Told<'_>,
        place: &Place<'_>,
        compute: impl FnOnce() -> Result<R, RuntimeError>,
    ) -> Result<R, RuntimeError> {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        steps.upload_once(told, place, compute)
    }

    /// Runs a step for its logits, recorded if it decodes.
    pub(crate) fn logits(
        &self,
        told: Told<'_>,
        place: &Place<'_>,
        compute: impl Fn(Told<'_>) -> Result<Tensor, RuntimeError>,
    ) -> Result<Tensor, RuntimeError> {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.plain || !told.decodes() {
            return steps.upload_once(told, place, || compute(told));
        }
        if steps.pools != place.pools {
            steps.buckets.clear();
            steps.pools = place.pools;
        }
        let padded = Padded::new(told, place.most);
        let host = padded.told().host(&place.ropes)?;
        let (batch, progress) = match steps.buckets.entry(padded.bucket()) {
            std::collections::hash_map::Entry::Occupied(bucket) => bucket.into_mut(),
            std::collections::hash_map::Entry::Vacant(bucket) => {
                bucket.insert((DeviceBatch::new(host.words(), place.device)?, Progress::New))
            }
        };
        batch.upload(&host)?;
        let logits = progress.step(batch, &host, &padded, place, compute)?;
        // A copy, since the next step writes where these lie.
        Ok(logits.narrow(0, 0, told.rows.len())?.copy()?)
    }

    /// Gives up what was recorded and its memory.
    pub(crate) fn forget(&self) {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (steps.any, steps.buckets) = Default::default();
    }

    /// Records no steps from now on.
    pub(crate) fn only_launch(&self) {
        self.forget();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).plain = true;
    }
}

impl Steps {
    fn upload_once<R>(
        &mut self,
        told: Told<'_>,
        place: &Place<'_>,
        compute: impl FnOnce() -> Result<R, RuntimeError>,
    ) -> Result<R, RuntimeError> {
        let host = told.host(&place.ropes)?;
        let batch = match self.any.take().filter(|batch| batch.capacity() >= host.words()) {
            Some(batch) => self.any.insert(batch),
            None => self.any.insert(DeviceBatch::new(host.words().next_power_of_two(), place.device)?),
        };
        batch.upload(&host)?;
        batch.lend(&host, compute).0
    }
}

impl Progress {
    /// The logits of a step whose numbers are uploaded.
    fn step(
        &mut self,
        batch: &DeviceBatch,
        host: &HostBatch<'_>,
        padded: &Padded,
        place: &Place<'_>,
        compute: impl Fn(Told<'_>) -> Result<Tensor, RuntimeError>,
    ) -> Result<Tensor, RuntimeError> {
        let launched = || batch.lend(host, || compute(padded.told()));
        match mem::replace(self, Self::Refused) {
            Self::New => {
                let (logits, told_once) = warm_up(place.device, launched);
                let logits = logits?;
                if told_once {
                    *self = Self::Warm(logits.zeros_like()?);
                }
                Ok(logits)
            }
            Self::Warm(logits) => {
                let step = || batch.lend(host, || Ok(logits.slice_set(&compute(padded.told())?, 0, 0)?)).0;
                match record::<RuntimeError>(place.device, step) {
                    Ok(Some(graph)) => {
                        *self = Self::Recorded(graph, logits);
                        self.step(batch, host, padded, place, compute)
                    }
                    Ok(None) => {
                        *self = Self::Kept(Box::new(padded.clone()));
                        launched().0
                    }
                    Err(error) => {
                        tracing::debug!(%error, sequences = padded.rows.len(), "a step cannot be recorded");
                        launched().0
                    }
                }
            }
            Self::Recorded(mut graph, logits) => {
                graph.run()?;
                *self = Self::Recorded(graph, logits.clone());
                Ok(logits)
            }
            Self::Kept(kept) => {
                let host = kept.told().host(&place.ropes)?;
                let logits = batch.lend(&host, || compute(kept.told())).0;
                drop(host);
                *self = Self::Kept(kept);
                logits
            }
            Self::Refused => launched().0,
        }
    }
}

impl<'a> Told<'a> {
    /// Whether every sequence has one token, whose row is wanted, and nothing is guessed.
    fn decodes(&self) -> bool {
        let Self { tokens, rows, metadata } = *self;
        let each = (0u32..).zip(rows).all(|(row, wanted)| row == *wanted) && rows.len() == tokens.len();
        each && metadata.batch() == tokens.len() && metadata.draft_rows.iter().all(|row| *row < 0)
    }

    /// The same as it is uploaded.
    fn host(self, ropes: &[&Rope]) -> Result<HostBatch<'a>, RuntimeError> {
        let Self { tokens, rows, metadata } = self;
        let mut host = HostBatch::new(&metadata.positions, ropes.iter().copied())?;
        for numbers in [tokens, rows, &metadata.cu_seqlens, &metadata.kv_lens] {
            host.lengths(numbers);
        }
        host.indices(&metadata.slots);
        for pool in &metadata.pools {
            host.indices(&pool.block_tables);
            host.slots(&pool.slot_mapping);
        }
        Ok(host)
    }
}

/// A step that was padded to its bucket.
#[derive(Clone, Debug)]
struct Padded {
    tokens: Vec<u32>,
    rows: Vec<u32>,
    metadata: StepMetadata,
}

impl Padded {
    fn new(told: Told<'_>, most: usize) -> Self {
        let mut metadata = told.metadata.clone();
        metadata.pad_to_bucket(most);
        let mut tokens = told.tokens.to_vec();
        tokens.resize(metadata.batch(), 0);
        Self { rows: (0..tokens.len() as u32).collect(), tokens, metadata }
    }

    fn told(&self) -> Told<'_> {
        Told { tokens: &self.tokens, rows: &self.rows, metadata: &self.metadata }
    }

    fn bucket(&self) -> Bucket {
        Bucket(self.rows.len(), self.metadata.pools.iter().map(|pool| pool.max_blocks).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::MutexGuard;

    use cacheplan_kernels::rows;
    use rstest::rstest;

    use super::*;

    /// What is lent is known to the whole process.
    fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a step gives that adds up each token and its position, read of what was uploaded.
    fn sums(told: Told<'_>) -> Result<Tensor, RuntimeError> {
        let read = |numbers: &[u32]| rows(numbers, &Device::Cpu);
        Ok((read(told.tokens)? + read(&told.metadata.positions)?)?.unsqueeze(1)?)
    }

    /// A step of these sequences at a position.
    fn step(batch: usize, position: u32) -> (Vec<u32>, StepMetadata) {
        let mut metadata = StepMetadata { cu_seqlens: vec![0], ..StepMetadata::default() };
        metadata.pad_to(batch, 1);
        metadata.positions = vec![position; batch];
        ((0..batch as u32).map(|row| 100 * row).collect(), metadata)
    }

    fn place(pools: (u64, u32)) -> Place<'static> {
        Place { device: &Device::Cpu, ropes: Vec::new(), pools, most: 8 }
    }

    /// Runs steps of three sequences at these positions: what each gives, and the position that the model was told of.
    fn run(
        steps: &DeviceSteps,
        pools: (u64, u32),
        positions: impl IntoIterator<Item = u32>,
        compute: impl Fn(Told<'_>) -> Result<Tensor, RuntimeError>,
    ) -> Vec<(Vec<u32>, u32)> {
        let mut found = Vec::new();
        for position in positions {
            let told_of = RefCell::new(0);
            let (tokens, metadata) = step(3, position);
            let told = Told { tokens: &tokens, rows: &[0, 1, 2], metadata: &metadata };
            let logits = steps.logits(told, &place(pools), |told| {
                assert_eq!(told.metadata.batch(), 4);
                told_of.replace(told.metadata.positions[0]);
                compute(told)
            });
            found.push((logits.unwrap().flatten_all().unwrap().to_vec1().unwrap(), told_of.into_inner()));
        }
        found
    }

    fn expected(position: u32) -> Vec<u32> {
        vec![position, 100 + position, 200 + position]
    }

    #[test]
    fn steps_behind_the_recorded_one_are_told_what_that_was_and_read_what_is_uploaded() {
        let _turn = turn();
        let found = run(&DeviceSteps::default(), (1, 0), 7..12, sums);
        let told = [7, 8, 8, 8, 8];
        assert_eq!(found, (7..12).zip(told).map(|(at, told)| (expected(at), told)).collect::<Vec<_>>());
    }

    #[rstest]
    #[case::resized((1, 1))]
    #[case::others((2, 0))]
    fn nothing_recorded_is_kept_for_other_pools(#[case] pools: (u64, u32)) {
        let _turn = turn();
        let steps = DeviceSteps::default();
        run(&steps, (1, 0), 7..10, sums);
        let found = run(&steps, pools, 10..13, sums);
        assert_eq!(found, [(expected(10), 10), (expected(11), 11), (expected(12), 11)]);
    }

    #[test]
    fn what_was_forgotten_is_recorded_anew() {
        let _turn = turn();
        let steps = DeviceSteps::default();
        run(&steps, (1, 0), 7..10, sums);
        steps.forget();
        assert_eq!(run(&steps, (1, 0), [10], sums), [(expected(10), 10)]);
    }

    #[test]
    fn a_step_that_the_host_has_a_part_in_is_never_recorded() {
        let _turn = turn();
        let of_host = |told: Told<'_>| {
            let positions = told.metadata.positions.clone();
            Ok((rows(told.tokens, &Device::Cpu)? + rows(&positions, &Device::Cpu)?)?.unsqueeze(1)?)
        };
        let found = run(&DeviceSteps::default(), (1, 0), 7..11, of_host);
        assert_eq!(found, (7..11).map(|at| (expected(at), at)).collect::<Vec<_>>());
    }

    #[test]
    fn prompts_and_chosen_rows_are_neither_padded_nor_recorded() {
        let _turn = turn();
        let steps = DeviceSteps::default();
        let (tokens, metadata) = step(3, 5);
        let mut prompt = metadata.clone();
        (prompt.cu_seqlens, prompt.kv_lens) = (vec![0, 2, 3], vec![7, 1]);
        for (rows, metadata) in [(vec![0, 2], &metadata), (vec![0, 1, 2], &prompt)] {
            for _ in 0..3 {
                let told = Told { tokens: &tokens, rows: &rows, metadata };
                let found = steps.logits(told, &place((1, 0)), |told| {
                    assert_eq!((told.tokens, told.metadata), (tokens.as_slice(), metadata));
                    sums(told)
                });
                assert_eq!(found.unwrap().dims(), [3, 1]);
            }
        }
    }
}
