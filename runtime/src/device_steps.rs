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

use cacheplan_kernels::{Backend, Graph, Rope, Rotations, Run, StepBuffer, StepLists};
use cacheplan_managers::book::StepMetadata;
use candle_core::Tensor;

use crate::error::{Result, RuntimeError};
use crate::inputs::{HostStep, StepInputs};

/// Where a model's steps run, and what its layers make of positions.
#[derive(Clone, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) backend: &'a Backend,
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
    any: Option<StepBuffer>,
    buckets: HashMap<Bucket, (StepBuffer, Progress)>,
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
    Recorded(Box<dyn Graph>, Tensor),
    /// Where there are no graphs, a step is run anew with all that the host said of the one that was recorded.
    Kept(Box<Padded>),
    /// The host has a part in it.
    Refused,
}

impl DeviceSteps {
    /// Runs a step, whose lists are uploaded once.
    pub(crate) fn run<R>(
        &self,
        step: HostStep<'_>,
        place: &Place<'_>,
        compute: impl FnOnce(&Run<'_>, &StepInputs<'_>) -> Result<R>,
    ) -> Result<R> {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        steps.upload_once(step, place, compute)
    }

    /// Runs a step for its logits, recorded if it decodes.
    pub(crate) fn logits(
        &self,
        step: HostStep<'_>,
        place: &Place<'_>,
        compute: impl Fn(&Run<'_>, &StepInputs<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.plain || !step.decodes() {
            return steps.upload_once(step, place, compute);
        }
        if steps.pools != place.pools {
            steps.buckets.clear();
            steps.pools = place.pools;
        }
        let padded = Padded::new(step, place.most);
        let logits = listed(padded.step(), place, |inputs, lists| {
            let (buffer, progress) = match steps.buckets.entry(padded.bucket()) {
                std::collections::hash_map::Entry::Occupied(bucket) => bucket.into_mut(),
                std::collections::hash_map::Entry::Vacant(bucket) => {
                    bucket.insert((StepBuffer::new(lists.words().len(), place.backend)?, Progress::New))
                }
            };
            buffer.upload(lists)?;
            progress.step(buffer, inputs, &padded, place, compute)
        })?;
        // A copy, since the next step writes where these lie.
        Ok(logits.narrow(0, 0, step.rows.len())?.copy()?)
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
        step: HostStep<'_>,
        place: &Place<'_>,
        compute: impl FnOnce(&Run<'_>, &StepInputs<'_>) -> Result<R>,
    ) -> Result<R> {
        listed(step, place, |inputs, lists| {
            let words = lists.words().len();
            let buffer = match self.any.take().filter(|buffer| buffer.capacity() >= words) {
                Some(buffer) => self.any.insert(buffer),
                None => self.any.insert(StepBuffer::new(words.next_power_of_two(), place.backend)?),
            };
            buffer.upload(lists)?;
            compute(&buffer.run(), inputs)
        })
    }
}

/// Calls `body` with the inputs of a step, and the lists that are to be uploaded for them.
fn listed<R>(
    step: HostStep<'_>,
    place: &Place<'_>,
    body: impl FnOnce(&StepInputs<'_>, &StepLists) -> Result<R>,
) -> Result<R> {
    let mut rotations = Rotations::new(&step.metadata.positions, place.ropes.iter().copied());
    let mut lists = StepLists::default();
    let inputs = step.listed(&mut rotations, &mut lists);
    body(&inputs, &lists)
}

impl Progress {
    /// The logits of a step whose lists are uploaded.
    fn step(
        &mut self,
        buffer: &StepBuffer,
        inputs: &StepInputs<'_>,
        padded: &Padded,
        place: &Place<'_>,
        compute: impl Fn(&Run<'_>, &StepInputs<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let Backend::Launching(launcher) = place.backend else { return compute(&buffer.run(), inputs) };
        match mem::replace(self, Self::Refused) {
            Self::New => {
                let (on, mut logits) = (buffer.run(), None);
                launcher.warm_up(&mut || logits = Some(compute(&on, inputs)));
                let logits = logits.unwrap_or_else(|| compute(&on, inputs))?;
                if on.is_recordable() {
                    *self = Self::Warm(logits.zeros_like()?);
                }
                Ok(logits)
            }
            Self::Warm(logits) => {
                let mut given = Ok(());
                let recorded = launcher.record(&mut || {
                    let step = compute(&buffer.run(), inputs);
                    given = step.and_then(|made| Ok(logits.slice_set(&made, 0, 0)?));
                });
                match given.and(recorded.map_err(RuntimeError::from)) {
                    Ok(Some(graph)) => {
                        *self = Self::Recorded(graph, logits);
                        return self.step(buffer, inputs, padded, place, compute);
                    }
                    Ok(None) => *self = Self::Kept(Box::new(padded.clone())),
                    Err(error) => {
                        tracing::debug!(%error, sequences = padded.rows.len(), "a step cannot be recorded");
                    }
                }
                compute(&buffer.run(), inputs)
            }
            Self::Recorded(mut graph, logits) => {
                graph.run()?;
                *self = Self::Recorded(graph, logits.clone());
                Ok(logits)
            }
            Self::Kept(kept) => {
                let logits = listed(kept.step(), place, |inputs, _| compute(&buffer.run(), inputs));
                *self = Self::Kept(kept);
                logits
            }
            Self::Refused => compute(&buffer.run(), inputs),
        }
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
    fn new(step: HostStep<'_>, most: usize) -> Self {
        let mut metadata = step.metadata.clone();
        metadata.pad_to_bucket(most);
        let mut tokens = step.tokens.to_vec();
        tokens.resize(metadata.batch(), 0);
        Self { rows: (0..tokens.len() as u32).collect(), tokens, metadata }
    }

    fn step(&self) -> HostStep<'_> {
        HostStep { tokens: &self.tokens, rows: &self.rows, metadata: &self.metadata }
    }

    fn bucket(&self) -> Bucket {
        Bucket(self.rows.len(), self.metadata.pools.iter().map(|pool| pool.max_blocks).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use cacheplan_kernels::{KernelError, Launcher, Launches, Target};
    use candle_core::Device;
    use rstest::rstest;

    use super::*;

    /// Launches nothing: the steps of these tests are made of uploaded lists alone.
    #[derive(Debug)]
    struct Nothing;

    impl Launcher for Nothing {
        fn device(&self) -> Device {
            Device::Cpu
        }

        fn target(&self) -> Result<Target, KernelError> {
            Ok(Target { processors: 1, shared_bytes: 0 })
        }

        fn launch(&self, op: &'static str, _: &Launches<'_>) -> Result<Vec<Tensor>, KernelError> {
            Err(KernelError::NoKernel { op })
        }
    }

    /// What a step gives that adds up each token and its position, read of what was uploaded.
    fn sums(on: &Run<'_>, inputs: &StepInputs<'_>) -> Result<Tensor> {
        let read = |numbers| on.tensor(numbers);
        Ok((read(inputs.tokens)? + read(inputs.positions.numbers())?)?.unsqueeze(1)?)
    }

    /// A step of these sequences at a position.
    fn step(batch: usize, position: u32) -> (Vec<u32>, StepMetadata) {
        let mut metadata = StepMetadata { cu_seqlens: vec![0], ..StepMetadata::default() };
        metadata.pad_to(batch, 1);
        metadata.positions = vec![position; batch];
        ((0..batch as u32).map(|row| 100 * row).collect(), metadata)
    }

    /// Runs steps of three sequences at these positions: what each gives, and the position that the model was told of.
    fn run(
        steps: &DeviceSteps,
        pools: (u64, u32),
        positions: impl IntoIterator<Item = u32>,
        compute: impl Fn(&Run<'_>, &StepInputs<'_>) -> Result<Tensor>,
    ) -> Vec<(Vec<u32>, u32)> {
        let (backend, mut found) = (Backend::Launching(Arc::new(Nothing)), Vec::new());
        let place = Place { backend: &backend, ropes: Vec::new(), pools, most: 8 };
        for position in positions {
            let told_of = RefCell::new(0);
            let (tokens, metadata) = step(3, position);
            let step = HostStep { tokens: &tokens, rows: &[0, 1, 2], metadata: &metadata };
            let logits = steps.logits(step, &place, |on, inputs| {
                assert_eq!(inputs.metadata.batch(), 4);
                told_of.replace(inputs.metadata.positions[0]);
                compute(on, inputs)
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
        let found = run(&DeviceSteps::default(), (1, 0), 7..12, sums);
        let told = [7, 8, 8, 8, 8];
        assert_eq!(found, (7..12).zip(told).map(|(at, told)| (expected(at), told)).collect::<Vec<_>>());
    }

    #[rstest]
    #[case::resized((1, 1))]
    #[case::others((2, 0))]
    fn nothing_recorded_is_kept_for_other_pools(#[case] pools: (u64, u32)) {
        let steps = DeviceSteps::default();
        run(&steps, (1, 0), 7..10, sums);
        let found = run(&steps, pools, 10..13, sums);
        assert_eq!(found, [(expected(10), 10), (expected(11), 11), (expected(12), 11)]);
    }

    #[test]
    fn what_was_forgotten_is_recorded_anew() {
        let steps = DeviceSteps::default();
        run(&steps, (1, 0), 7..10, sums);
        steps.forget();
        assert_eq!(run(&steps, (1, 0), [10], sums), [(expected(10), 10)]);
    }

    #[test]
    fn a_step_that_the_host_has_a_part_in_is_never_recorded() {
        let of_host = |on: &Run<'_>, inputs: &StepInputs<'_>| {
            let positions = on.tensor((&inputs.metadata.positions).into())?;
            Ok((on.tensor(inputs.tokens)? + positions)?.unsqueeze(1)?)
        };
        let found = run(&DeviceSteps::default(), (1, 0), 7..11, of_host);
        assert_eq!(found, (7..11).map(|at| (expected(at), at)).collect::<Vec<_>>());
    }

    #[test]
    fn prompts_and_chosen_rows_are_neither_padded_nor_recorded() {
        let (steps, backend) = (DeviceSteps::default(), Backend::Launching(Arc::new(Nothing)));
        let place = Place { backend: &backend, ropes: Vec::new(), pools: (1, 0), most: 8 };
        let (tokens, metadata) = step(3, 5);
        let mut prompt = metadata.clone();
        (prompt.cu_seqlens, prompt.kv_lens) = (vec![0, 2, 3], vec![7, 1]);
        for (rows, metadata) in [(vec![0, 2], &metadata), (vec![0, 1, 2], &prompt)] {
            for _ in 0..3 {
                let step = HostStep { tokens: &tokens, rows: &rows, metadata };
                let found = steps.logits(step, &place, |on, inputs| {
                    assert_eq!((inputs.tokens.host(), inputs.metadata), (tokens.as_slice(), metadata));
                    sums(on, inputs)
                });
                assert_eq!(found.unwrap().dims(), [3, 1]);
            }
        }
    }
}
